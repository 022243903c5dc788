"""lowtide._gpt.archive: files of torch.save, verified and not run."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide._gpt import archive
from lowtide._memory.peaks import Peak
from lowtide.errors import FormatError, NotAFileError, TruncatedFileError

MIB = 2**20


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.pt")


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and all(map(same, left, right))
    return bool(left == right)


def test_load_matches_torch_load(path: str) -> None:
    shared = torch.arange(10.0)
    content = {
        "plain": [1, -1, 2**40, 2**70, 1.5, "ü", None, True, False, (), (1,), (1, 2, 3, 4), {}],
        "model": torch.nn.Linear(3, 2).state_dict(),
        "dtypes": [torch.ones(2, dtype=dtype) for dtype in archive._STORAGES.values()],
        "shared": (shared, shared[2:5], shared.view(2, 5)),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
        "many": list(range(3000)),
        7: "an integer for a key",
    }
    torch.save(content, path)
    expected = torch.load(path, weights_only=True)
    value = archive.load(path)
    assert same(value, {**expected, "model": dict(expected["model"])})
    assert value["shared"][0].data_ptr() == value["shared"][2].data_ptr()


def test_flipped_bit_in_weights_raises(path: str) -> None:
    torch.save({"weights": torch.ones(1000)}, path)
    data = bytearray(Path(path).read_bytes())
    data[data.index(struct.pack("<f", 1.0) * 10) + 2] ^= 0x80
    Path(path).write_bytes(data)
    assert not torch.load(path, weights_only=True)["weights"].eq(1).all(), "PyTorch does not look"
    with pytest.raises(TruncatedFileError, match=r"damaged \(BadZipFile: Bad CRC-32 .*; copy the file again"):
        archive.load(path)


def with_pickle(path: str, data: bytes, **members: bytes) -> str:
    """A complete zip with this pickle."""
    with zipfile.ZipFile(path, "w") as zip_file:
        zip_file.writestr("archive/data.pkl", data)
        for name, content in members.items():
            zip_file.writestr(f"archive/data/{name}", content)
    return path


@pytest.mark.parametrize(
    "value",
    [os.mkdir, bytearray(3), {1, 2}, b"bytes", 1j, torch.device("cpu"), torch.float32],
    ids=lambda value: type(value).__name__,
)
def test_unsupported_objects_raise(value: Any, path: str) -> None:
    torch.save({"value": value}, path)
    with pytest.raises(FormatError, match="something other than tensors and plain values"):
        archive.load(path)


def test_huge_bytearray_in_pickle_raises(path: str) -> None:
    # torch.load(weights_only=True) makes it: bytearray is one of the functions that it trusts.
    with_pickle(path, b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (2**34).to_bytes(5, "little") + b"\x85R.")
    with pytest.raises(FormatError, match=re.escape("(GLOBAL 'builtins bytearray' at byte 2)")):
        archive.load(path)


def storage(kind: str = "FloatStorage", key: str = "0", count: int = 2) -> bytes:
    return (
        b"(X\x07\0\0\0storagectorch\n" + kind.encode() + b"\n"
        + b"X" + len(key).to_bytes(4, "little") + key.encode()
        + b"X\x03\0\0\0cpuM" + count.to_bytes(2, "little") + b"tQ"
    )  # fmt: skip


def tensor(offset: bytes = b"K\0", shape: bytes = b"K\x02\x85", strides: bytes = b"K\x01\x85") -> bytes:
    head = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    return head + storage() + offset + shape + strides + b"\x89NtR."


def test_handwritten_pickle_loads(path: str) -> None:
    with_pickle(path, tensor(), **{"0": struct.pack("<2f", 1, 2)})
    assert archive.load(path).tolist() == [1, 2]


@pytest.mark.parametrize(
    "data",
    [
        tensor(offset=b"K\x01"),
        tensor(shape=b"K\x03\x85"),
        tensor(shape=b"J\xff\xff\xff\x7f\x85", strides=b"K\0\x85"),
        tensor(shape=b"J\xff\xff\xff\xff\x85"),
        tensor(shape=b"N\x85"),
        tensor(shape=b"]"),
        tensor(strides=b"K\x01K\x01\x86"),
        b"\x80\x02" + storage(count=3) + b".",
        b"\x80\x02" + storage(key="1") + b".",
        b"\x80\x02" + storage(key="../0") + b".",
        b"\x80\x02" + storage(kind="DoubleStorage") + b".",
        b"\x80\x02Q.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02}K\x01K\x02.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02]N}s.",
        b"\x80\x02}Na.",
        b"\x80\x02h\x09.",
        b"\x80\x02t.",
        b"\x80\x02R.",
        b"\x80\x02.",
        b"\x80\x02}",
        b"",
        b"(" * 1000,
    ],
)
def test_invalid_pickle_raises(data: bytes, path: str) -> None:
    with_pickle(path, data, **{"0": struct.pack("<2f", 1, 2)})
    with pytest.raises(FormatError, match=r"x\.pt: "):
        archive.load(path)


def test_zip_bomb_raises_without_allocating(path: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zip_file:
        zip_file.writestr("archive/data.pkl", pickle.dumps({}, 2))
        zip_file.writestr("archive/data/0", bytes(256 * MIB))
    assert os.path.getsize(path) < MIB
    peak = Peak()
    with pytest.raises(FormatError, match=r"\(members of 268435\d+ bytes in a file of \d+, expected"):
        archive.load(path)
    assert peak.read() - peak.base < 32 * MIB
    peak.close()


def test_huge_zip_directory_raises_without_allocating(path: str) -> None:
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 2**31, 0, 0)
    with open(path, "wb") as file:
        file.truncate(2**32)  # sparse
        file.seek(0, io.SEEK_END)
        file.write(end)
    peak = Peak()
    with pytest.raises(FormatError, match="its directory has 2147483648 bytes, expected at most 16777216"):
        archive.load(path)
    assert peak.read() - peak.base < 32 * MIB
    peak.close()


def test_foreign_zip_and_folder_raise(path: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(path, "w") as zip_file:
        zip_file.writestr("x.npy", b"")
    with pytest.raises(FormatError, match=r"is a zip, but not a file that torch\.save wrote"):
        archive.load(path)
    with pytest.raises(NotAFileError):
        archive.load(str(tmp_path))
