"""Globally shuffled rows of 1 KiB, cold and warm.

Bars: cold, at least 5 times MADV_RANDOM + MADV_DONTNEED for each chunk and at least 0.7 of fio's random
reads at queue depth 64; warm, at least as fast as re-creating np.memmap for each chunk. Single rows ``a[i]``
take at most twice a bare ``os.preadv`` into a new array, and 8 us. Tiny rows and columns, warm, at least 0.3
of np.memmap.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

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
        lowtide.open(path, **how) as array,  # type: ignore[call-overload]
        array.chunks(ROWS, shuffle=shuffle, seed=1) as passed,
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
        singles = _singles(path, kept, options.rounds)
    return [cold, warm, singles, _tiny(options)]


def _singles(path: str, kept: npt.NDArray[np.float32], count: int) -> Report:
    """Rows and elements by their numbers, one after another."""
    report = Report("Single rows of 1 KiB, warm, at random")
    array, fd = lowtide.open(path), os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    numbers = Shuffled(len(array), 2)(0, 5000)
    indices, start, width = numbers.tolist(), array._layout.offset, array.row_nbytes

    def bare() -> None:
        for i in indices:
            os.preadv(fd, [np.empty(256, np.float32)], start + i * width)  # type: ignore[list-item]

    def checked() -> None:
        for i in indices:
            os.preadv(fd, [np.empty(256, np.float32)], start + i * width)  # type: ignore[list-item]
            os.fstat(fd)

    methods = {
        "os.preadv into a new array, bare": bare,
        "the same and os.fstat, bare: whether the file was written to": checked,
        "lowtide, a[i]": lambda: [array[i] for i in indices],
        "lowtide, a[-i]": lambda: [array[-1 - i] for i in indices],
        "lowtide, a[np.int64]": lambda: [array[i] for i in numbers],
        "lowtide, a[i, j]": lambda: [array[i, 7] for i in indices],
        "np.memmap, kept open": lambda: [np.array(kept[i]) for i in indices],
    }
    times = rounds(methods, 2 * count + 1)
    os.close(fd)
    taken = times["os.preadv into a new array, bare"]
    for name, seconds in times.items():
        us = seconds / len(indices) * 1e6
        report.row(name, **{"us": us, "x bare": seconds / taken})
    report.claim("bare os.preadv / a[i]", taken / times["lowtide, a[i]"], 0.5)
    report.claim("8 us / a[i]", 8e-6 * len(indices) / times["lowtide, a[i]"], 1)
    return report


def _read_all(path: str) -> None:
    """Copy a file out of the page cache: the least that a column takes without a map."""
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(2) as pool:
        pieces = iter(range(0, os.path.getsize(path), 2**19))

        def work() -> None:
            buffer = mmap.mmap(-1, 2**19)
            for piece in pieces:
                os.preadv(file.fileno(), [buffer], piece)

        for done in [pool.submit(work) for _ in range(2)]:
            done.result()


def _tiny(options: argparse.Namespace) -> Report:
    """Rows of 1 to 16 bytes, shuffled, and columns; np.memmap in the order of ``rng.permutation``."""
    report = Report("Tiny rows, shuffled in chunks of 4,096, and a column: warm, 256 MiB")
    with matrix(256 * 2**20, options.folder) as path:
        make_warm(path)
        for width, budget in ((1, None), (4, None), (16, None), (16, "512 MiB")):
            count = min(256 * 2**20 // width, 2**23)
            dtype = np.dtype((np.void, width)) if width > 4 else np.dtype(f"u{width}")
            kept = np.memmap(path, dtype, "r", 128, (256 * 2**20 // width,))
            array = lowtide.open(path, dtype=dtype, offset=128)

            def theirs(kept: npt.NDArray[np.void] = kept, count: int = count) -> None:
                order = np.random.default_rng(0).permutation(len(kept))
                for first in range(0, count, ROWS):
                    kept[order[first : first + ROWS]]

            def ours(array: lowtide.Array = array, count: int = count, budget: str | None = budget) -> None:
                with array.chunks(ROWS, shuffle=True, budget=budget) as passed:
                    for _ in range(count // ROWS):
                        next(passed)

            times = rounds({"memmap": theirs, "lowtide": ours}, max(1, options.rounds // 2))
            name = f"rows of {width} B, budget {budget or '64 MiB'}"
            report.row(
                name,
                **{"M rows/s": count / times["lowtide"] / 1e6, "np.memmap": count / times["memmap"] / 1e6},
            )
            report.claim(f"{name}: lowtide / np.memmap", times["memmap"] / times["lowtide"], 0.3)
        kept, array = np.load(path, mmap_mode="r"), lowtide.open(path)
        # The same column again is in the processor's cache for a map, another one in memory.
        for name, step in (("a[:, 7], again and again", 0), ("a[:, j], another one each time", 16)):
            columns = itertools.count(7, step)

            def mapped(columns: Iterator[int] = columns) -> None:
                np.array(kept[:, next(columns) % kept.shape[1]])

            def read(columns: Iterator[int] = columns) -> None:
                array[:, next(columns) % kept.shape[1]]

            methods = {"memmap": mapped, "lowtide": read, "bare": lambda: _read_all(path)}
            times = rounds(methods, 2 * options.rounds + 1)
            speeds = {"M rows/s": len(array) / times["lowtide"] / 1e6}
            report.row(name, **speeds, **{"np.memmap": len(array) / times["memmap"] / 1e6})
            # A map loads one line of the processor's cache per row; a read copies all of them.
            bare = {"M rows/s": len(array) / times["bare"] / 1e6}
            report.row("bare: every byte by os.preadv in two threads, none picked", **bare)
            report.claim(f"{name}: lowtide / np.memmap", times["memmap"] / times["lowtide"], 0.3)
    return report


if __name__ == "__main__":
    run(build, rounds=5)
