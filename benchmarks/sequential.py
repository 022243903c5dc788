"""In order: 4,096-row chunks of a 1 GiB float32 matrix, warm and cold.

Bars: warm at least 0.95 of np.memmap kept open with each chunk copied, and 1.5 times it with ``reuse=True``;
cold at least 0.95 of dd.
"""

from __future__ import annotations

import argparse
import mmap
import os
import subprocess
from functools import partial

import numpy as np
import numpy.typing as npt

import lowtide
from benchmarks.harness import Report, fio, make_cold, make_warm, matrix, ratio, rounds, run
from lowtide._io.threads import in_threads

ROWS = 4096


def _copy_chunks(mapped: npt.NDArray[np.float32]) -> None:
    held = None
    for start in range(0, len(mapped), ROWS):
        # As in any loop, the last chunk is still held while the next is made; else one buffer would do.
        held = np.array(mapped[start : start + ROWS])
    del held


def _preadv(path: str) -> None:
    """The bare system call into fresh memory: what copying out of the page cache costs at least."""
    fd, held = os.open(path, os.O_RDONLY), None
    for start in range(128, os.stat(path).st_size, ROWS * 1024):
        chunk = np.empty((ROWS, 256), np.float32)
        os.preadv(fd, [chunk.data], start)
        held = chunk
    os.close(fd)
    del held


def _preadv_halves(path: str) -> None:
    """The same into one buffer, half of each chunk by another thread: the most that ``reuse=True`` can do."""
    fd, buffer, half = os.open(path, os.O_RDONLY), memoryview(mmap.mmap(-1, ROWS * 1024)), ROWS * 512
    for start in range(128, os.stat(path).st_size, ROWS * 1024):
        second = partial(os.preadv, fd, [buffer[half:]], start + half)
        in_threads([partial(os.preadv, fd, [buffer[:half]], start), second])
    os.close(fd)


def _memmap(path: str) -> None:
    _copy_chunks(np.load(path, mmap_mode="r"))


def _remapped(path: str) -> None:
    rows = len(np.load(path, mmap_mode="r"))
    for start in range(0, rows, ROWS):
        np.array(np.load(path, mmap_mode="r")[start : start + ROWS])


def _lowtide(path: str, **how: object) -> None:
    with lowtide.open(path, **how) as array:  # type: ignore[call-overload]
        _chunks(array)


def _chunks(array: lowtide.Array, *, reuse: bool = False) -> None:
    for _ in array.chunks(ROWS, reuse=reuse):
        pass


def _dd(path: str) -> None:
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], check=True, stderr=subprocess.DEVNULL)


def build(options: argparse.Namespace) -> list[Report]:
    """In order, warm and cold."""
    with matrix(2**30, options.folder) as path:
        make_warm(path)
        kept, array = [np.load(path, mmap_mode="r")], lowtide.open(path)
        warm = Report("In order, warm: 1 GiB in chunks of 4,096 rows of 1 KiB")
        methods = {
            "np.memmap, kept open": lambda: _copy_chunks(kept[0]),
            "np.memmap, opened for the pass": lambda: _memmap(path),
            "np.memmap, re-created for each chunk": lambda: _remapped(path),
            "os.preadv, bare": lambda: _preadv(path),
            "os.preadv, bare, into one buffer by two threads": lambda: _preadv_halves(path),
            "lowtide, kept open": lambda: _chunks(array),
            "lowtide, kept open, reuse=True": lambda: _chunks(array, reuse=True),
            "lowtide, opened for the pass": lambda: _lowtide(path),
            "lowtide, reader=advise": lambda: _lowtide(path, reader="advise"),
        }
        times = rounds(methods, 2 * options.rounds + 1)
        for name, seconds in times.items():
            warm.row(name, **{"GB/s": 2**30 / seconds / 1e9})
        # A pass takes 70 ms, and a busy neighbour lasts longer than that: it is pairs that tell.
        ours, theirs, bare = (
            methods[name] for name in ("lowtide, kept open", "np.memmap, kept open", "os.preadv, bare")
        )
        pairs = 8 * options.rounds + 1
        warm.claim("lowtide / np.memmap, both kept open", ratio(ours, theirs, pairs), 0.95)
        reused = methods["lowtide, kept open, reuse=True"]
        warm.claim("lowtide, reuse=True / np.memmap, both kept open", ratio(reused, theirs, pairs), 1.5)
        warm.notes.append(
            f"The bare system call is at {ratio(bare, theirs, pairs):.2f} of np.memmap, which needs none: "
            "that is the kernel's, and changes with how it laid the file into the page cache."
        )

        kept.clear()  # pages that somebody maps cannot be put out of the page cache
        cold = Report("In order, cold: the same file from the device")
        times = rounds(
            {
                "dd bs=1M": lambda: _dd(path),
                "np.memmap": lambda: _memmap(path),
                "lowtide": lambda: _lowtide(path),
                "lowtide, cache=drop": lambda: _lowtide(path, cache="drop"),
            },
            2 * options.rounds + 1,
            before=lambda: make_cold(path),
        )
        for name, seconds in times.items():
            cold.row(name, **{"GB/s": 2**30 / seconds / 1e9})
        make_cold(path)
        cold.row("fio, buffered, 1 MiB", **{"GB/s": _fio(path)})
        cold.claim("lowtide / dd", times["dd bs=1M"] / times["lowtide"], 0.95)
    return [warm, cold]


def _fio(path: str) -> float | None:
    try:
        return fio(path, rw="read", bs="1m", depth=1, seconds=1, direct=False)["bytes"] / 1e9
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    run(build)
