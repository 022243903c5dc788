"""HDF5: contiguous datasets are found by h5py, and what is not in one piece is refused with the remedy."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5s, h5t
from hypothesis import given

from lowtide._arrays.formats import inspect, members
from lowtide.errors import FormatError, MemberError, MissingExtraError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import assert_honest, assert_same, damaged, refused, write

COMPOUND = np.dtype([("a", "<i2"), ("b", ">f4", (2,)), ("c", [("x", "<c8"), ("s", "S3")])])
ALIGNED = np.dtype([("a", "i1"), ("b", "<f8")], align=True)


@pytest.mark.parametrize(
    "dtype",
    ["<f4", ">f8", "<f2", "<i1", ">i2", "<u4", ">u8", "?", "<c16", "S7", "V5", "g", COMPOUND, ALIGNED],
    ids=lambda dtype: str(dtype)[:12],
)
@pytest.mark.parametrize("userblock", [0, 512, 2048])
def test_datasets_of_h5py_are_read_in_place(tmp_path: Path, dtype: Any, userblock: int) -> None:
    path = tmp_path / "a.h5"
    array = np.zeros((3, 4), dtype)
    array.reshape(-1)[1:] = np.ones(11).astype(dtype) if array.dtype.names is None else np.ones(11, dtype)
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file["deep/down/x"] = array
    layout = inspect(path)
    assert (layout.format, layout.name) == ("hdf5", "deep/down/x")
    assert_same(layout, array)


@pytest.mark.parametrize("name", ["train/x", "/train/x", "train//x/", "./train/x"])
def test_dataset_names_ignore_redundant_slashes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["train/x"] = np.arange(5)
        file["val/x"] = np.arange(4)
    assert_same(inspect(path, name=name), np.arange(5))


def test_scalar_empty_subarray_and_enum_datasets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    enum = h5py.enum_dtype({"a": 1, "b": 2}, "<i2")
    with h5py.File(path, "w", userblock_size=512) as file:
        file["scalar"] = np.float32(3)
        file["empty"] = np.zeros((0, 3))
        file.create_dataset("arrays", (2,), np.dtype(("<f4", (3,))))[...] = np.ones((2, 3))
        file.create_dataset("enum", data=np.array([1, 2, 1]), dtype=enum)
        file.create_dataset("utf8", data=[b"abc"], dtype=h5py.string_dtype("utf-8", 5))
    assert_same(inspect(path, name="scalar"), np.array(3, "<f4"))
    assert_same(inspect(path, name="empty"), np.zeros((0, 3)))
    assert_same(inspect(path, name="arrays"), np.ones((2, 3), "<f4"))
    assert_same(inspect(path, name="enum"), np.array([1, 2, 1], "<i2"))
    assert_same(inspect(path, name="utf8"), np.array([b"abc"], "S5"))
    # h5py's metadata would follow the dtype everywhere.
    assert all(member.layout is not None and member.layout.dtype.metadata is None for member in members(path))
    assert pickle.loads(pickle.dumps(inspect(path, name="enum"))) == inspect(path, name="enum")


def odd_integers(file: h5py.File) -> None:
    kind = h5t.STD_I16LE.copy()
    kind.set_precision(12)
    kind.set_offset(2)
    h5py.Dataset(h5d.create(file.id, b"d", kind, h5s.create_simple((3,))))[...] = np.arange(3)


def padded_strings(file: h5py.File) -> None:
    kind = h5t.C_S1.copy()
    kind.set_size(5)
    kind.set_strpad(h5t.STR_SPACEPAD)
    h5py.Dataset(h5d.create(file.id, b"d", kind, h5s.create_simple((3,))))[...] = np.array([b"ab"] * 3)


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3,), "<f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset("d", layout)


def update(file: h5py.File, link: Any) -> None:
    file["d"] = link


def compact(file: h5py.File) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5d.COMPACT)
    space = h5s.create_simple((3,))
    h5py.Dataset(h5d.create(file.id, b"d", h5t.IEEE_F32LE, space, plist))[...] = 1


@dataclass(frozen=True)
class Refusal:
    id: str
    make: Any
    says: tuple[str, ...]


REFUSALS = [
    Refusal(
        "chunked",
        lambda f: f.create_dataset("d", (4, 4), "f4", chunks=(2, 2)),
        ("(2, 2)", "contiguous", "h5repack"),
    ),
    Refusal(
        "resizable",
        lambda f: f.create_dataset("d", (4,), "f4", maxshape=(None,)),
        ("chunked", "maxshape=", "h5repack"),
    ),
    Refusal(
        "compressed",
        lambda f: f.create_dataset("d", (4,), "f4", compression="gzip"),
        ("'gzip'", "compression=", "h5repack"),
    ),
    Refusal("compact", compact, ("compact", "contiguous", "h5py")),
    Refusal("virtual", virtual, ("virtual", "contiguous", "'other.h5'")),
    Refusal(
        "external",
        lambda f: f.create_dataset("d", (4,), "<f4", external=[("data.bin", 8, 16)]),
        ("1 other files", "lowtide.open('data.bin', dtype='<f4', offset=8)"),
    ),
    Refusal(
        "unwritten",
        lambda f: f.create_dataset("d", (4,), "<f4"),
        ("16 bytes", "fill value 0.0", "write it first"),
    ),
    Refusal("null", lambda f: f.create_dataset("d", data=h5py.Empty("f4")), ("no shape", "nothing to read")),
    Refusal(
        "strings",
        lambda f: f.create_dataset("d", data=["a", "bc"]),
        ("variable length", "fixed-width", "'S16'"),
    ),
    Refusal(
        "rows",
        lambda f: f.create_dataset("d", (2,), h5py.vlen_dtype("f4")),
        ("variable length", "fixed-width"),
    ),
    Refusal(
        "strings-inside",
        lambda f: f.create_dataset("d", (2,), np.dtype([("a", "<f4"), ("b", h5py.string_dtype())])),
        ("variable length", "fixed-width"),
    ),
    Refusal(
        "references", lambda f: f.create_dataset("d", (2,), h5py.ref_dtype), ("references", "fixed-width")
    ),
    Refusal("odd-integers", odd_integers, ("int16", "h5py converts them", "dtype='<i2'")),
    Refusal("padded-strings", padded_strings, ("S5", "h5py converts them", "dtype='|S5'")),
    Refusal(
        "soft-link", lambda f: update(f, h5py.SoftLink("/x")), ("link to '/x'", "not followed", "own name")
    ),
    Refusal("dangling", lambda f: update(f, h5py.SoftLink("/q")), ("link to '/q'", "not followed")),
    Refusal(
        "external-link",
        lambda f: update(f, h5py.ExternalLink("o.h5", "/y")),
        ("link to '/y' in the file 'o.h5'", "own name"),
    ),
]


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_unsupported_dataset_error_has_remedy(tmp_path: Path, case: Refusal, userblock: int) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file["x"] = np.arange(5)
        case.make(file)
    with refused(UnsupportedError, f"{path}['d']", *case.says):
        inspect(path, name="d")
    assert_same(inspect(path, name="x"), np.arange(5))
    listed = {member.name: member for member in members(path)}
    assert listed["x"].layout is not None
    if "link" not in case.id and case.id != "dangling":
        assert listed["d"].layout is None
        assert case.says[0] in listed["d"].reason


def test_external_link_to_pipe_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)
        file["group"] = h5py.ExternalLink("pipe.h5", "/")
    with refused(UnsupportedError, "'group' is a link", "pipe.h5"):
        inspect(path, name="group/x")
    assert [member.name for member in members(path)] == ["x"]


def test_cyclic_group_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["g/x"] = np.arange(5)
        file["g/again"] = file["g"]
        file["type"] = np.dtype("<f4")  # a named type, not an array
    assert [member.name for member in members(path)] == ["g/x"]


def test_deeply_nested_groups_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(1200):
            group = group.create_group("g")
        group["x"] = np.arange(5)
    assert_same(inspect(path), np.arange(5))


@pytest.mark.parametrize("name", ["g", "", "/", "g/x/y", "g/z", "type", "q\0", "\ud800"], ids=repr)
def test_name_that_is_not_a_dataset_raises(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["g/x"] = np.arange(5)
        file["type"] = np.dtype("<f4")
    with refused(MemberError, path, f"no array {name!r}", "'g/x'"):
        inspect(path, name=name)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_truncated_file_raises(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = np.arange(1000)
    size = path.stat().st_size
    for keep in (size - 1, size // 2, 100, 9):
        short = write(tmp_path / f"{keep}.h5", path.read_bytes()[:keep])
        with refused(FormatError, short, "truncated", "copy or write it again"):
            inspect(short)


def test_missing_h5py_error_has_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with refused(MissingExtraError, path, "h5py", "pip install 'lowtide[hdf5]'"):
        inspect(path)


def original(tmp: Path, **options: Any) -> bytes:
    with h5py.File(tmp / "original.h5", "w", **options) as file:
        file["a/x"] = np.arange(12.0).reshape(3, 4)
        file["a/s"] = np.zeros(3, COMPOUND)
        file.create_dataset("c", (10,), "f4", chunks=(5,), compression="gzip")[...] = 1
        file["soft"] = h5py.SoftLink("/a/x")
    return (tmp / "original.h5").read_bytes()


def test_damaged_files_raise_only_lowtide_errors(tmp_path: Path) -> None:
    originals = [
        original(tmp_path),
        original(tmp_path, libver="latest"),
        original(tmp_path, userblock_size=512),
    ]

    @examples(3, deadline=5000)
    @given(data=damaged(originals, head=4000))
    def survives(data: bytes) -> None:
        assert_honest(write(tmp_path / "fuzz.h5", data))

    survives()
