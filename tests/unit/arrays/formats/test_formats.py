"""Which format a file has, which of its members is meant, and what looking into it costs."""

from __future__ import annotations

import io
import pickle
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import formats
from lowtide._arrays.formats import Format, Layout, inspect, members
from lowtide._arrays.formats.layout import size_error
from lowtide._io.identity import Identity
from lowtide._io.store import Store
from lowtide.errors import ArgumentError, FormatError, MemberError, TruncatedFileError
from tests.support.examples import examples
from tests.support.formats import assert_honest, refused, write


def save(path: Path, format: str, arrays: dict[str, Any]) -> Path:
    if format == "npz":
        np.savez(path, **arrays)
    elif format == "safetensors":
        safetensors.numpy.save_file(arrays, path)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


CONTAINERS = pytest.mark.parametrize("format", ["npz", "safetensors", "hdf5"])


@CONTAINERS
def test_format_is_detected_by_content_not_suffix(tmp_path: Path, format: str) -> None:
    path = tmp_path / "array.npz"
    save(path, format, {"x": np.arange(4)})
    path.rename(tmp_path / "array.npy")
    assert inspect(tmp_path / "array.npy").format == format


@CONTAINERS
def test_missing_member_name_error_lists_members(tmp_path: Path, format: str) -> None:
    path = save(tmp_path / "a.npz", format, {f"m{i:03}": np.arange(3) for i in range(21)})
    names = [f"'m{i:03}'" for i in range(20)]
    with refused(
        MemberError, path, format, "21 arrays", *names, "1 more", f"lowtide.open({str(path)!r}, name='m000')"
    ):
        inspect(path)
    with pytest.raises(MemberError) as caught:
        inspect(path)
    assert "'m020'" not in str(caught.value)


@CONTAINERS
def test_unknown_member_name_suggests_close_matches(tmp_path: Path, format: str) -> None:
    path = save(tmp_path / "a.npz", format, {"weights": np.arange(3), "bias": np.arange(2)})
    with refused(MemberError, path, "no array 'weigths'", "did you mean 'weights'?", "2: ", "'bias'"):
        inspect(path, name="weigths")
    with refused(MemberError, path, "no array 'qqq'.", "2: ", "'bias'"):
        inspect(path, name="qqq")
    with refused(ArgumentError, path, "must be a str", "got 3"):
        inspect(path, name=3)  # type: ignore[arg-type]


def test_member_name_for_single_array_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with refused(MemberError, tmp_path / "a.npy", "single NPY array", "name='x'", "leave it out"):
        inspect(tmp_path / "a.npy", name="x")
    [member] = members(tmp_path / "a.npy")
    assert (member.name, member.layout) == (None, inspect(tmp_path / "a.npy"))


def test_unknown_format_error_lists_known_signatures(tmp_path: Path) -> None:
    path = write(tmp_path / "train.bin", b"\x01\x02\x03\x04\x05\x06\x07\x08\x09")
    says = (r"b'\x01\x02", r"b'\x93NUMPY'", r"b'PK\x03\x04'", r"b'\x89HDF", "safetensors")
    with refused(FormatError, path, *says, f"lowtide.open({str(path)!r}, dtype='uint16')"):
        inspect(path)
    with pytest.raises(FormatError) as caught:
        members(path)
    assert "OLMo" not in str(caught.value)


def test_raw_file_with_npy_suffix_error_suggests_dtype(tmp_path: Path) -> None:
    path = write(tmp_path / "part-0.npy", np.arange(100, dtype="<u2").tobytes())
    with refused(FormatError, path, "OLMo and Dolma", "dtype='uint16'"):
        inspect(path)
    assert inspect(path, dtype="uint16").shape == (100,)


@pytest.mark.parametrize("magic", [b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh9"], ids=repr)
def test_compressed_file_error_suggests_decompressing(tmp_path: Path, magic: bytes) -> None:
    path = write(tmp_path / "a.npy.gz", magic + bytes(20))
    with refused(FormatError, path, "compressed", "decompress it"):
        inspect(path)


def test_safetensors_suffix_gives_safetensors_error(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", bytes(100))
    with refused(FormatError, path, "safetensors header"):
        inspect(path)


def test_pickled_layout_is_small(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", "npz", {"x": np.arange(4)})
    layout = inspect(path)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert len(pickle.dumps(layout)) < 400 + len(layout.path)


@examples(6, deadline=2000)
@given(
    magic=st.sampled_from(
        [b"", b"\x93NUMPY", b"PK\3\4", b"PK\5\6", b"\x89HDF\r\n\x1a\n", struct.pack("<Q", 20) + b"{"]
    ),
    rest=st.binary(max_size=100),
)
def test_random_bytes_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, magic: bytes, rest: bytes
) -> None:
    assert_honest(write(tmp_path_factory.getbasetemp() / "fuzz.any", magic + rest))


ABSURD = {
    "npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    "safetensors": struct.pack("<Q", 100_000_000) + b"\0",
    "safetensors-length": struct.pack("<Q", 2**64 - 1) + b"{",
    "raw": b"\0",
}


@pytest.mark.parametrize("start", ABSURD.values(), ids=ABSURD)
def test_huge_header_length_allocates_no_memory(tmp_path: Path, start: bytes) -> None:
    path = write(tmp_path / "a.safetensors", start)
    with path.open("r+b") as file:
        file.truncate(2**33)  # sparse: the bytes are there, and cost nothing until they are read
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refused(FormatError, path):
        inspect(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 8 * 2**20


class Grid(Format):
    """What CONTRIBUTING shows: a format in one class."""

    name = "grid"
    title = "a GRID"
    signature = "GRID's b'GRID'"
    magics = (b"GRID",)

    def inspect(self, store: Store, name: str | None = None) -> Layout:
        rows = int.from_bytes(store.read(4, 4, "number of rows"), "little")
        if store.size != 8 + 4 * rows:
            raise size_error(store.path, store.size, 8 + 4 * rows, f"{rows} rows")
        return Layout(store.path, self.name, 8, np.dtype("<f4"), (rows,), file_size=store.size)


def test_registered_format_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "x.grid", b"GRID" + (3).to_bytes(4, "little") + np.arange(3, dtype="<f4").tobytes()
    )
    with refused(FormatError, path, "not a known format", "b'GRID", "HDF5"):
        inspect(path)
    monkeypatch.setattr(formats, "FORMATS", [*formats.FORMATS, Grid()])
    assert lowtide.open(path)[:].tolist() == [0, 1, 2]
    [member] = members(path)
    assert member.layout == inspect(path)
    assert member.layout.identity is not None
    with refused(ArgumentError, path, "a GRID file", "offset="):
        inspect(path, "u1")
    path.write_bytes(path.read_bytes()[:-1])
    with refused(TruncatedFileError, path, "19 bytes, expected 20 for 3 rows"):
        inspect(path)
    write(tmp_path / "other", b"\x01\x02\x03\x04")
    with refused(FormatError, "GRID's b'GRID'"):  # the error lists it
        inspect(tmp_path / "other")


class Memory(Store):
    """An object that is not a file of this machine."""

    def __init__(self, data: bytes) -> None:
        super().__init__("mem://bucket/object", Identity(0, 0, len(data), 0))
        self._data = data

    def read_some(self, offset: int, count: int) -> bytes:
        return self._data[offset : offset + count]


def test_formats_read_stores_that_are_not_files() -> None:
    array = np.arange(12, dtype="<f4").reshape(3, 4)
    npy, npz, hdf5 = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    np.savez(npz, x=array)
    with h5py.File(hdf5, "w") as file:
        file["x"] = array
    header = b'{"x": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}'
    safetensors = len(header).to_bytes(8, "little") + header + array.tobytes()
    for data, name in (
        (npy.getvalue(), "npy"),
        (npz.getvalue(), "npz"),
        (hdf5.getvalue(), "hdf5"),
        (safetensors, "safetensors"),
    ):
        store = Memory(data)
        format = formats.detect(store)
        layout = format.inspect(store)
        assert (format.name, layout.shape, layout.dtype.str) == (name, (3, 4), "<f4")
        assert data[layout.offset : layout.offset + layout.nbytes] == array.tobytes()
