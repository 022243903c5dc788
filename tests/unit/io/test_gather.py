"""Gather: extents of several files in one buffer, whatever the readers of the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide._io.extents import Extents
from lowtide._io.gather import gather
from lowtide._io.reader import Reader, ReaderName, open_reader
from lowtide.errors import TruncatedFileError

KINDS: list[tuple[ReaderName, ...]] = [("pread",) * 3, ("remap",) * 3, ("pread", "remap", "pread")]


def open_all(folder: Path, names: tuple[ReaderName, ...]) -> dict[int, Reader]:
    """Files of 1,000 bytes; every byte of file ``i`` is ``i``, except the first."""
    readers = {}
    for number, name in enumerate(names):
        path = folder / f"{number}.bin"
        path.write_bytes(b"\xff" + bytes([number]) * 999)
        readers[number] = open_reader(str(path), 1000, name)
    return readers


def extents(offsets: np.ndarray, length: int) -> Extents:
    lengths = np.full(len(offsets), length, np.int64)
    return Extents(offsets.astype(np.int64), np.cumsum(lengths) - lengths, lengths)


@pytest.mark.parametrize("names", KINDS, ids="-".join)
@pytest.mark.parametrize("ahead", [1, 2**20])
def test_each_extent_is_read_from_its_file(tmp_path: Path, names: tuple[ReaderName, ...], ahead: int) -> None:
    readers = open_all(tmp_path, names)
    which = np.array([2, 0, 1, 1, 2, 0])
    out = np.zeros(60, np.uint8)
    outcome = gather(readers, which, extents(np.arange(1, 7) * 100, 10), out, ahead).wait()
    assert outcome.total == 6
    assert out.reshape(6, 10).tolist() == [[number] * 10 for number in which.tolist()]


def test_extents_of_one_file_need_no_other_reader(tmp_path: Path) -> None:
    readers = open_all(tmp_path, ("pread",))
    out = np.zeros(2, np.uint8)
    gather(readers, np.array([0, 0]), extents(np.array([0, 1]), 1), out).wait()
    assert out.tolist() == [255, 0]


def test_error_names_the_truncated_file(tmp_path: Path) -> None:
    readers = open_all(tmp_path, ("pread",) * 3)
    (tmp_path / "1.bin").write_bytes(b"short")
    with pytest.raises(TruncatedFileError, match=r"/1\.bin: "):
        gather(readers, np.array([0, 1, 2]), extents(np.full(3, 500), 9), np.zeros(27, np.uint8)).wait()
