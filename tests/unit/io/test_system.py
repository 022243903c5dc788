"""Platforms that lack system calls: Windows has no pread and pwrite, macOS no fdatasync and posix_fadvise."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide._arrays.orders import OrderName
from lowtide._io import aio, pread, system
from lowtide._io.reader import Cache

POSITIONED = ("pread", "preadv", "pwrite", "pwritev")
OTHERS = ("fdatasync", "posix_fallocate", "posix_fadvise", "fchmod", "fchown")
ROWS = np.arange(6000, dtype="f4").reshape(1000, 6)


@pytest.fixture(params=["windows", "macos"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Without the calls that the platform lacks."""
    name: str = request.param
    for call in (POSITIONED if name == "windows" else ()) + OTHERS:
        monkeypatch.delattr(os, call, raising=False)
    monkeypatch.setattr(aio, "_new", lambda: None)
    monkeypatch.setattr(aio, "_IDLE", deque())
    monkeypatch.setattr(pread, "_NOWAIT", 0)
    monkeypatch.setattr(pread, "_DONTCACHE", 0)
    return name


def test_bytes_are_read_and_written_at_an_offset(tmp_path: Path, platform: str) -> None:
    fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    system.write_at(fd, memoryview(b"0123456789"), 0)
    system.write_at(fd, memoryview(b"ab"), 4)
    out = bytearray(4)
    assert system.read_at(fd, memoryview(out), 3) == 4
    assert (bytes(out), system.bytes_at(fd, 100, 8)) == (b"3ab6", b"89")
    assert system.read_at(fd, memoryview(out), 10) == 0
    system.sync_data(fd)
    os.close(fd)


def test_create_and_append_work_on_other_platforms(tmp_path: Path, platform: str) -> None:
    path = tmp_path / "out.npy"
    with lowtide.create(path, "f4", row_shape=6) as out:
        out.append(ROWS[:500])
    with lowtide.create(path, append=True) as out:
        out.append(ROWS[500:])
    assert (np.load(path) == ROWS).all()
    with pytest.raises(ZeroDivisionError), lowtide.create(path, append=True) as out:
        out.append(ROWS)
        out.append(ROWS[: 1 // 0])
    assert (np.load(path) == ROWS).all()
    assert [file.name for file in tmp_path.iterdir()] == ["out.npy"]


def test_shuffled_file_is_the_same_on_other_platforms(tmp_path: Path, platform: str) -> None:
    np.save(tmp_path / "in.npy", ROWS)
    lowtide.shuffle(tmp_path / "in.npy", tmp_path / "out.npy", seed=3, budget="16 KiB")
    with lowtide.open(tmp_path / "in.npy") as array:
        expected = np.concatenate(list(array.chunks(100, shuffle=True, seed=3)))
    assert (np.load(tmp_path / "out.npy") == expected).all()


@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("order", ["sequential", "shuffle", "blocks"])
def test_rows_are_the_same_on_other_platforms(
    tmp_path: Path, platform: str, cache: Cache, order: OrderName
) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    with lowtide.open(tmp_path / "a.npy", cache=cache) as array:
        assert array.reader.startswith("remap" if platform == "windows" else "pread")
        assert (array[::-7, 2] == ROWS[::-7, 2]).all()
        assert (array.take([5, 1, 1]) == ROWS[[5, 1, 1]]).all()
        chunks = array.chunks(90, order=order, with_rows=True)
        rows = [
            int(number) for numbers, chunk in chunks for number in numbers[(chunk == ROWS[numbers]).all(1)]
        ]
    assert sorted(rows) == list(range(1000))


def test_append_does_not_change_open_array(tmp_path: Path, platform: str) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    with lowtide.open(tmp_path / "a.npy") as array:
        with lowtide.create(tmp_path / "a.npy", append=True) as out:
            out.append(ROWS)
        assert (array[:] == ROWS).all()
