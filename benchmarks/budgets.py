"""What a budget buys: shuffled rows of 1 KiB from a file larger than the memory of its container.

Bars, cold and in a memory cgroup, against one read per row: on this device 1.5 times with a budget of 1/8 of
the file; on a cloud disk (3,000 operations and 125 MB per second, by the blkio controller) 4 times with 1/8
and 12 times with 1/2, which is 100 times np.memmap re-created for each chunk with the read-ahead of this
device. With a budget that holds the file, at least as fast as a kept np.memmap, cold and warm. Every pass
runs in its own process and goes through the whole file, except those that would take minutes: they are
stopped after some seconds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tests.support.cgroup import CgroupUnavailableError, LimitedGroup, memory_cgroup

import lowtide
from benchmarks.harness import MIB, Report, make_cold, make_warm, matrix, run
from benchmarks.limits import BANDWIDTH, OPERATIONS, NoLoopDeviceError, cloud_disk, loop_mounted, read_ahead
from lowtide._arrays.orders import ShuffledOrder
from lowtide._io.buffers import Buffers
from lowtide._permutation import Shuffled

SIZE = 512 * MIB
ROWS = 1024
NONE, PLAIN, EIGHTH, HALF = "one read per row", "default budget", "budget 1/8", "budget 1/2"
MEMMAP, WHOLE, KEPT = "np.memmap, re-created", "budget of the file", "np.memmap, kept"
BARE = "bare: os.preadv into new memory by two threads, np.take"
BUDGETS = {PLAIN: 0, EIGHTH: SIZE // 8, HALF: SIZE // 2, WHOLE: SIZE + 64 * MIB}


class Speed(NamedTuple):
    """Rows per second of a pass, seconds until its first chunk, and the longest wait for another."""

    rows: float
    first: float
    pause: float


def walk(path: str, name: str, seconds: float) -> Speed:
    """One pass, or its first ``seconds``; imports are in no figure."""
    for module in ("files", "stored", "chunks"):
        import_module(f"lowtide._arrays.{module}")
    started = time.perf_counter()
    rows, times = 0, [started]
    walks = {MEMMAP: _memmap, KEPT: _kept, BARE: _loaded}
    for count in walks[name](path) if name in walks else _lowtide(path, name):
        rows += count
        times.append(time.perf_counter())
        if times[-1] - started > seconds:
            break
    waits = np.diff(times)
    return Speed(rows / (times[-1] - started), float(waits[0]), float(waits[1:].max(initial=0)))


def _lowtide(path: str, name: str) -> Iterator[int]:
    array = lowtide.open(path)
    chunks = array.chunks(ROWS, shuffle=True, seed=1, budget=BUDGETS.get(name) or None)
    if name == NONE:
        order = chunks._plan._order
        assert isinstance(order, ShuffledOrder)
        order._lookahead = None
    for chunk in chunks:
        yield len(chunk)


def _kept(path: str) -> Iterator[int]:
    kept = np.load(path, mmap_mode="r")
    order = np.random.default_rng(1).permutation(len(kept))
    for start in range(0, len(kept), ROWS):
        yield len(kept[order[start : start + ROWS]])


def _loaded(path: str) -> Iterator[int]:
    """The whole file read once, and rows taken from there: the least that it takes without a map."""
    rows, offset = len(np.load(path, mmap_mode="r")), 128
    memory = Buffers(rows * 1024, most=0).empty((rows, 256), np.dtype(np.float32))
    pieces = iter(range(0, rows, 2048))
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(2) as pool:

        def work() -> None:
            for first in pieces:
                part = memory[first : first + 2048].data
                assert os.preadv(file.fileno(), [part], offset + first * 1024) == part.nbytes

        for done in [pool.submit(work) for _ in range(2)]:
            done.result()
    order, out = np.random.default_rng(1).permutation(rows), np.empty((ROWS, 256), np.float32)
    for start in range(0, rows, ROWS):
        np.take(memory, order[start : start + ROWS], axis=0, out=out, mode="clip")
        yield ROWS


def _memmap(path: str) -> Iterator[int]:
    order = Shuffled(len(np.load(path, mmap_mode="r")), 1)
    for start in range(0, order.n, 64):  # few at a time: each takes a fault, and perhaps 8 MiB of read-ahead
        yield len(np.load(path, mmap_mode="r")[order(start, start + 64)])


def _speed(path: str, name: str, seconds: float, group: LimitedGroup | None, enter: list[str]) -> Speed:
    command = [*enter, sys.executable, "-m", "benchmarks.budgets", "--walk", path, name, str(seconds)]
    done = subprocess.run(
        group.command(command) if group else command,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return Speed(*json.loads(done.stdout))


def build(options: argparse.Namespace) -> list[Report]:
    """Shuffled rows within budgets, on this device and on a cloud disk."""
    here = Report("This device: rows of 1 KiB, 512 MiB, cold, in a memory cgroup of the budget and 160 MiB")
    cloud = Report(f"Cloud disk ({OPERATIONS:,} reads/s, {BANDWIDTH // 10**6} MB/s): the same")
    with matrix(SIZE, options.folder) as path:
        try:
            speeds = _speeds(path, (NONE, PLAIN, EIGHTH, HALF), [], options.rounds)
            _table(here, speeds, {EIGHTH: 1.5})
            with cloud_disk(path) as enter:
                slow = _speeds(path, (NONE, PLAIN, EIGHTH, HALF, MEMMAP), enter, 1)
            _table(cloud, slow, {EIGHTH: 4, HALF: 12})
            ahead = f"read-ahead {(read_ahead(path) or 0) // 1024} KiB"
            cloud.claim(f"{HALF} / {MEMMAP}, {ahead}", slow[HALF].rows / slow[MEMMAP].rows, 100)
            usual = _usual_read_ahead(options.folder)
            cloud.row(f"{MEMMAP}, read-ahead 128 KiB", **{"rows/s": usual})
            cloud.notes.append(f"{HALF} / {MEMMAP}, read-ahead 128 KiB: {slow[HALF].rows / usual:.1f}")
        except (CgroupUnavailableError, NoLoopDeviceError) as error:
            (cloud if here.rows else here).notes.append(f"skipped: {error}")
        whole = _whole(path, options.rounds)
    return [here, cloud, whole]


def _usual_read_ahead(folder: str | None) -> float:
    """np.memmap re-created, on a cloud disk that reads ahead as most devices do."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as where,
        loop_mounted(where, SIZE + 128 * MIB) as mounted,
        matrix(SIZE, mounted) as path,
        cloud_disk(path) as enter,
    ):
        return _speeds(path, (MEMMAP,), enter, 1)[MEMMAP].rows


def _whole(path: str, rounds: int) -> Report:
    """A budget that holds the file against a kept np.memmap, with no limit on memory."""
    report = Report("A budget that holds the file: 512 MiB, no cgroup")
    for state, prepare in (("cold", make_cold), ("warm", make_warm)):
        speeds: dict[str, list[float]] = {KEPT: [], WHOLE: [], BARE: []}
        for _ in range(rounds):
            for name, figures in speeds.items():
                prepare(path)
                _touch(2 * SIZE + 64 * MIB)  # for the page cache and for the rows
                figures.append(_speed(path, name, 600, None, []).rows)
        middle = {name: statistics.median(figures) for name, figures in speeds.items()}
        for name, rows in middle.items():
            report.row(f"{name}, {state}", **{"rows/s": rows, "MB/s": rows * 1024 / 1e6})
        report.claim(f"{state}: {WHOLE} / {KEPT}", middle[WHOLE] / middle[KEPT], 1)
    return report


def _touch(nbytes: int) -> None:
    """Use memory and give it back: a host may have taken what was free, and gives it again page by page."""
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, nbytes, mmap.PAGESIZE):
            memory[page] = 1


def _speeds(path: str, names: tuple[str, ...], enter: list[str], rounds: int) -> dict[str, Speed]:
    result: dict[str, list[Speed]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            make_cold(path)
            with memory_cgroup(BUDGETS.get(name, 0) + 160 * MIB) as group:
                result[name].append(_speed(path, name, 8 if name in (NONE, MEMMAP) else 600, group, enter))
    return {name: Speed(*np.median(speeds, axis=0).tolist()) for name, speeds in result.items()}


def _table(report: Report, speeds: dict[str, Speed], bars: dict[str, float]) -> None:
    for name, (rows, first, pause) in speeds.items():
        ratio = rows / speeds[NONE].rows
        waits = {"first chunk, s": first, "longest pause, s": pause}
        report.row(name, **{"rows/s": rows, "MB/s": rows * 1024 / 1e6, f"x {NONE}": ratio, **waits})
    for name, bar in bars.items():
        report.claim(f"{name} / {NONE}", speeds[name].rows / speeds[NONE].rows, bar)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--walk"]:
        print(json.dumps(walk(sys.argv[2], sys.argv[3], float(sys.argv[4]))))
    else:
        run(build, rounds=3)
