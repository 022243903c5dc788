"""Globally shuffled rows of 1 KiB, cold and warm.

Bars: cold, at least 5 times MADV_RANDOM + MADV_DONTNEED for each chunk and at least 0.7 of fio's random
reads at queue depth 64; warm, at least as fast as re-creating np.memmap for each chunk.
"""

from __future__ import annotations

import argparse
import mmap
import os

import numpy as np

import lowtide
from benchmarks.harness import Report, fio, make_cold, make_warm, matrix, rounds, run
from lowtide._permutation import Shuffled

ROWS = 4096


def _memmap(path: str, chunks: int, *, release: str) -> None:
    """np.memmap through shuffled indices; ``release`` is what happens after each chunk."""
    mapped = np.load(path, mmap_mode="r")
    order = Shuffled(len(mapped), 1)
    if release == "random+dontneed":
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    for chunk in range(chunks):
        rows = order(chunk * ROWS, (chunk + 1) * ROWS)
        mapped[rows]
        if release == "recreate":
            mapped = np.load(path, mmap_mode="r")
        elif release != "keep":
            mapped._mmap.madvise(mmap.MADV_DONTNEED)


def _lowtide(path: str, chunks: int, shuffle: object = True, **how: object) -> None:
    with (
        lowtide.open(path, **how) as array,  # type: ignore[arg-type]
        array.chunks(ROWS, shuffle=shuffle, seed=1) as passed,  # type: ignore[arg-type]
    ):
        for _ in range(chunks):
            next(passed)


def _preadv_loop(path: str, chunks: int) -> None:
    """What one writes by hand with os.preadv."""
    with lowtide.open(path) as array:
        rows, width, start = len(array), array.row_nbytes, array._layout.offset
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    order = Shuffled(rows, 1)
    for chunk in range(chunks):
        out = bytearray(ROWS * width)
        view = memoryview(out)
        for i, row in enumerate(order(chunk * ROWS, (chunk + 1) * ROWS).tolist()):
            os.preadv(fd, [view[i * width : (i + 1) * width]], start + row * width)
    os.close(fd)


def build(options: argparse.Namespace) -> list[Report]:
    """Shuffled, cold and warm."""
    cold = Report("Shuffled, cold: rows of 1 KiB from a 4 GiB matrix")
    with matrix(4 * 2**30, options.folder) as path:
        chunks = 24
        times = rounds(
            {
                "np.memmap + MADV_RANDOM + MADV_DONTNEED": lambda: _memmap(
                    path, 2, release="random+dontneed"
                ),
                "os.preadv, one by one": lambda: _preadv_loop(path, 2),
                "lowtide": lambda: _lowtide(path, chunks),
                "lowtide, cache=drop": lambda: _lowtide(path, chunks, cache="drop"),
                "lowtide, shuffle=blocks": lambda: _lowtide(path, chunks, "blocks"),
            },
            options.rounds,
            before=lambda: make_cold(path),
        )
        few = ("np.memmap + MADV_RANDOM + MADV_DONTNEED", "os.preadv, one by one")
        speed = {name: (2 if name in few else chunks) * ROWS / seconds for name, seconds in times.items()}
        try:
            make_cold(path)
            speed["fio, 1 KiB, libaio, depth 64"] = fio(path, rw="randread", bs="1k", depth=64, seconds=3)[
                "iops"
            ]
        except FileNotFoundError:
            print("fio is not installed (Debian: apt-get install fio)")
        for name, rows in speed.items():
            cold.row(name, **{"rows/s": rows})
        cold.claim("lowtide / MADV_RANDOM + MADV_DONTNEED", speed["lowtide"] / speed[few[0]], 5)
        if "fio, 1 KiB, libaio, depth 64" in speed:
            cold.claim("lowtide / fio", speed["lowtide"] / speed["fio, 1 KiB, libaio, depth 64"], 0.7)

    warm = Report("Shuffled, warm: rows of 1 KiB from a 1 GiB matrix")
    with matrix(2**30, options.folder) as path:
        make_warm(path)
        kept = np.load(path, mmap_mode="r")

        def kept_open() -> None:
            order = Shuffled(len(kept), 1)
            for chunk in range(64):
                kept[order(chunk * ROWS, (chunk + 1) * ROWS)]

        methods = {
            "np.memmap, kept open": kept_open,
            "np.memmap, re-created for each chunk": lambda: _memmap(path, 64, release="recreate"),
            "np.memmap + MADV_DONTNEED": lambda: _memmap(path, 64, release="dontneed"),
            "os.preadv, one by one": lambda: _preadv_loop(path, 64),
            "lowtide": lambda: _lowtide(path, 64),
            "lowtide, shuffle=blocks": lambda: _lowtide(path, 64, "blocks"),
        }
        times = rounds(methods, options.rounds)
        for name, seconds in times.items():
            warm.row(name, **{"rows/s": 64 * ROWS / seconds})
        theirs = times["np.memmap, re-created for each chunk"]
        warm.claim("lowtide / np.memmap re-created for each chunk", theirs / times["lowtide"], 1)
        warm.claim(
            "lowtide / np.memmap kept open (moonshot)", times["np.memmap, kept open"] / times["lowtide"], 1
        )
    return [cold, warm]


if __name__ == "__main__":
    run(build, rounds=5)
