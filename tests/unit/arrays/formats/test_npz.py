"""NPZ: stored members are found where they lie, whatever the zip's headers look like."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from lowtide._arrays.formats import inspect, members
from lowtide._arrays.formats.npy import make_header
from lowtide._arrays.formats.npz import MAX_DIRECTORY
from lowtide.errors import FormatError, MemberError, TruncatedFileError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import assert_honest, assert_same, damaged, refused, write

X = np.arange(12, dtype="<f4").reshape(3, 4)
Y = np.asfortranarray(np.arange(6, dtype=">i8").reshape(2, 3))


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def savez(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def zipped(members: dict[str, bytes], **options: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", x=X, y=Y, z=np.array(7), e=np.zeros((0, 3)))
    return tmp_path / "a.npz"


@pytest.mark.parametrize("name", ["x", "y", "z", "e"])
@pytest.mark.parametrize("suffix", ["", ".npy"])
def test_members_of_np_savez_are_read_in_place(path: Path, name: str, suffix: str) -> None:
    layout = inspect(path, name=name + suffix)
    assert (layout.format, layout.name) == ("npz", name)
    with np.load(path) as loaded:
        assert_same(layout, loaded[name])
    assert inspect(path, name="y").fortran


def test_member_names_match_np_load(path: Path) -> None:
    with np.load(path) as loaded:
        assert [member.name for member in members(path)] == loaded.files
    assert all(member.layout is not None and member.reason == "" for member in members(path))


def test_single_member_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X)
    assert inspect(tmp_path / "a.npz").name == "arr_0"
    assert_same(inspect(tmp_path / "a.npz"), X)


def test_data_offset_uses_extra_field_of_local_header(tmp_path: Path) -> None:
    # np.savez itself forces a zip64 field into the local header only; here the directory has another one.
    info = zipfile.ZipInfo("x.npy")
    info.extra = struct.pack("<HH6s", 0x9999, 6, b"filler")
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w") as archive,
        archive.open(info, "w", force_zip64=True) as file,
    ):
        file.write(npy(X))
    assert_same(inspect(tmp_path / "a.npz"), X)


def test_zip64_member_beyond_4_gib_is_read(tmp_path: Path) -> None:
    """A sparse archive whose second member lies where only zip64 fields can point."""
    path = tmp_path / "big.npz"
    rows, small, full = 2**32, npy(X), 2**32 - 1  # a size or offset of `full` means: see the zip64 field
    start = make_header("|u1", (rows,))
    size = len(start) + rows
    sizes = struct.pack("<HHQQ", 1, 16, size, size)
    place = struct.pack("<HHQ", 1, 8, 30 + 7 + len(sizes) + size)
    date, crc = 33, zlib.crc32(small)

    def local(name: bytes, crc: int, size: int, extra: bytes) -> bytes:
        fixed = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, date, crc, size, size, len(name), len(extra))
        return fixed + name + extra

    def central(name: bytes, crc: int, size: int, extra: bytes, offset: int) -> bytes:
        lengths = (len(name), len(extra), 0, 0, 0, 0, offset)
        return (
            struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, date, crc, size, size, *lengths)
            + name
            + extra
        )

    directory = central(b"big.npy", 0, full, sizes, 0) + central(b"x.npy", crc, len(small), place, full)
    with path.open("wb") as file:
        file.write(local(b"big.npy", 0, full, sizes) + start)
        file.seek(size - len(start), io.SEEK_CUR)
        file.write(local(b"x.npy", crc, len(small), b"") + small)
        begin = file.tell()
        file.write(directory)
        file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(directory), begin))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, begin + len(directory), 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(directory), full, 0))
    with zipfile.ZipFile(path) as archive:  # the standard library agrees that this is a zip
        assert archive.read("x.npy") == small
    assert inspect(path, name="big").shape == (rows,)
    assert inspect(path, name="x").offset > 2**32
    assert_same(inspect(path, name="x"), X)


def test_deflated_member_raises_but_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=X)
    says = (
        f"{path}['x']",
        "method 8, deflate",
        "method 0",
        "np.savez instead of np.savez_compressed",
        "np.load",
    )
    with refused(UnsupportedError, *says):
        inspect(path)
    [member] = members(path)
    assert (member.name, member.layout) == ("x", None)
    assert "np.savez_compressed" in member.reason


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_bzip2_and_lzma_members_raise(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", npy(X))
    with refused(UnsupportedError, path, f"method {method}", "np.savez"):
        inspect(path)


def test_encrypted_member_raises(tmp_path: Path) -> None:
    data = zipped({"x.npy": npy(X)})
    directory = data.index(b"PK\1\2")
    both = bytearray(data)
    both[6] |= 1
    both[directory + 8] |= 1
    with refused(UnsupportedError, "['x']", "encrypted", "0x1", "decrypt"):
        inspect(write(tmp_path / "a.npz", bytes(both)))
    only_local = bytearray(data)
    only_local[6] |= 1
    with refused(FormatError, "['x']", "byte 0", "damaged"):
        inspect(write(tmp_path / "b.npz", bytes(only_local)))


def test_object_member_raises_and_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=X, o=np.array([{}], dtype=object))
    with refused(UnsupportedError, f"{path}['o']", "pickle", "allow_pickle=True"):
        inspect(path, name="o")
    assert_same(inspect(path, name="x"), X)
    assert [bool(member.reason) for member in members(path)] == [False, True]


def test_member_size_not_matching_header_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", zipped({"x.npy": npy(X)[:-1], "y.npy": npy(X) + b"!"}))
    with refused(TruncatedFileError, f"{path}['x']", 176, 175, "(3, 4)", "truncated"):
        inspect(path, name="x")
    with refused(FormatError, f"{path}['y']", 176, 177, "(3, 4)", "damaged"):
        inspect(path, name="y")


def test_header_beyond_member_end_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", zipped({"x.npy": npy(X)[:40], "y.npy": npy(X)}))
    with refused(TruncatedFileError, f"{path}['x']", "truncated"):
        inspect(path, name="x")


def test_duplicate_member_names_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy(X))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", npy(Y))
    with refused(FormatError, f"{path}['x']", "2 members of this name", "1 was expected"):
        inspect(path, name="x")


def test_listed_name_takes_precedence_over_file_name(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    savez(path, {"x.npy": X, "x": Y})  # as files: x.npy.npy and x.npy
    assert_same(inspect(path, name="x.npy"), X)
    assert_same(inspect(path, name="x"), Y)


def test_non_array_members_are_not_listed(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.npz", zipped({"notes.txt": b"hello you", "bare": npy(X), "x.npy": npy(Y), "dir/": b""})
    )
    assert [member.name for member in members(path)] == ["x"]
    assert_same(inspect(path, name="bare"), X)
    with refused(FormatError, f"{path}['notes.txt']", r"b'\x93NUMPY'", "b'hello '", "np.save"):
        inspect(path, name="notes.txt")
    with refused(MemberError, "no array 'dir/'"):
        inspect(path, name="dir/")


def test_member_with_empty_name_is_ignored(tmp_path: Path) -> None:
    data = zipped({"x.npy": npy(X), "q": b""})
    at = data.rindex(b"PK\1\2")
    nameless = data[: at + 28] + b"\0\0" + data[at + 30 : at + 46] + data[at + 47 :]
    nameless = nameless[:-10] + struct.pack("<I", len(nameless) - 22 - data.index(b"PK\1\2")) + nameless[-6:]
    path = write(tmp_path / "a.npz", nameless)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["x.npy", ""]
    assert_same(inspect(path), X)


def test_archive_without_arrays_raises(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    with refused(MemberError, tmp_path / "a.npz", "holds no array", "1 or more"):
        inspect(tmp_path / "a.npz")
    assert members(tmp_path / "a.npz") == []


@pytest.mark.parametrize("cut", [1, 22, 60, 400])
def test_truncated_archive_raises(path: Path, cut: int) -> None:
    size = path.stat().st_size - cut
    write(path, path.read_bytes()[:-cut])
    with refused(FormatError, path, size, "truncated", "copy or write it again"):
        inspect(path, name="x")


def test_directory_and_local_header_mismatch_raises(tmp_path: Path) -> None:
    data = zipped({"x.npy": npy(X), "y.npy": npy(Y)})
    swapped = data.replace(b"x.npy", b"q.npy", 1)  # the local one comes first
    path = write(tmp_path / "a.npz", swapped)
    with refused(FormatError, f"{path}['x']", "byte 0", "b'q.npy'", "b'x.npy'", "damaged"):
        inspect(path, name="x")
    directory = data.index(b"PK\1\2")
    lying = bytearray(data)
    lying[directory + 42 : directory + 46] = struct.pack("<I", 2**31)
    with refused(FormatError, "['x']", 2**31, "expected between 0 and", directory, "damaged"):
        inspect(write(path, bytes(lying)), name="x")
    lying = bytearray(data)
    lying[directory + 20 : directory + 28] = struct.pack("<II", 2**30, 2**30)
    with refused(TruncatedFileError, "['x']", 2**30, directory, "damaged"):
        inspect(write(path, bytes(lying)), name="x")
    lying[directory + 20 : directory + 24] = struct.pack("<I", 12)
    with refused(FormatError, "['x']", "found 12 and", 2**30, "damaged"):
        inspect(write(path, bytes(lying)), name="x")


def test_overlapping_members_raise(tmp_path: Path) -> None:
    data = bytearray(zipped({"x.npy": npy(X), "y.npy": npy(X)}))
    second = data.index(b"PK\3\4", 4)
    skipped = second  # the first member's data: that of the second, past an extra field that is as long
    data[28:30] = struct.pack("<H", skipped)
    path = write(tmp_path / "a.npz", bytes(data))
    with refused(FormatError, f"{path}['x']", "overlap", f"member at byte {second}", "damaged"):
        inspect(path, name="x")
    assert_same(inspect(path, name="y"), X)


def test_non_ascii_member_names_are_read(tmp_path: Path) -> None:
    savez(tmp_path / "a.npz", {"größe": X, "高さ": Y})
    assert_same(inspect(tmp_path / "a.npz", name="高さ"), Y)
    assert_same(inspect(tmp_path / "a.npz", name="größe.npy"), X)


def test_huge_central_directory_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    size = 2**32 - 2
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.seek(size)
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, size, 0, 0))
    with refused(FormatError, path, size, MAX_DIRECTORY, "split the archive"):
        inspect(path)


ORIGINALS = [
    zipped({"x.npy": npy(X)}),
    zipped({"x.npy": npy(X), "y.npy": npy(Y), "größe.npy": npy(X)}),
    zipped({"x.npy": npy(X)}, compression=zipfile.ZIP_DEFLATED),
]


@examples(6, deadline=2000)
@given(data=damaged(ORIGINALS, head=200))
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    assert_honest(write(tmp_path_factory.getbasetemp() / "fuzz.npz", data))
