"""What a budget buys: shuffled rows of 1 KiB from a file larger than the memory of its container.

Bars, cold and in a memory cgroup, against one read per row: on this device 1.5 times with a budget of 1/8 of
the file; on a cloud disk (3,000 operations and 125 MB per second, by the blkio controller) 4 times with 1/8
and 12 times with 1/2. Every pass runs in its own process and goes through the whole file, except those that
would take minutes: they are stopped after some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tests.support.cgroup import CgroupUnavailableError, LimitedGroup, memory_cgroup

import lowtide
from benchmarks.harness import MIB, Report, make_cold, matrix, run
from lowtide._permutation import Shuffled

SIZE = 512 * MIB
ROWS = 1024
OPERATIONS, BANDWIDTH = 3000, 125_000_000
_BLKIO = Path("/sys/fs/cgroup/blkio")
NONE, EIGHTH, HALF, MEMMAP = "one read per row", "budget 1/8", "budget 1/2", "np.memmap, re-created"
BUDGETS = {NONE: 0, EIGHTH: SIZE // 8, HALF: SIZE // 2}


def walk(path: str, name: str, seconds: float) -> float:
    """Rows per second of one pass, or of its first ``seconds``."""
    started = time.perf_counter()
    rows = 0
    for count in _memmap(path) if name == MEMMAP else _lowtide(path, BUDGETS[name]):
        rows += count
        if time.perf_counter() - started > seconds:
            break
    return rows / (time.perf_counter() - started)


def _lowtide(path: str, budget: int) -> Iterator[int]:
    for chunk in lowtide.open(path).chunks(ROWS, shuffle=True, seed=1, budget=budget or None):
        yield len(chunk)


def _memmap(path: str) -> Iterator[int]:
    order = Shuffled(len(np.load(path, mmap_mode="r")), 1)
    for start in range(0, order.n, 64):  # few at a time: each takes a fault, and perhaps 8 MiB of read-ahead
        yield len(np.load(path, mmap_mode="r")[order(start, start + 64)])


@contextmanager
def cloud_disk(path: str) -> Iterator[list[str]]:
    """A command that enters a group in which the device below ``path`` is as slow as a usual cloud disk."""
    if not os.access(_BLKIO, os.W_OK):
        raise CgroupUnavailableError("the blkio controller of cgroup v1 cannot be used here")
    group = _BLKIO / f"lowtide-bench-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        device = os.stat(path).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        (group / "blkio.throttle.read_iops_device").write_text(f"{name} {OPERATIONS}")
        (group / "blkio.throttle.read_bps_device").write_text(f"{name} {BANDWIDTH}")
        yield ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
    finally:
        group.rmdir()


def _speed(path: str, name: str, seconds: float, group: LimitedGroup, enter: list[str]) -> float:
    make_cold(path)
    command = [*enter, sys.executable, "-m", "benchmarks.budgets", "--walk", path, name, str(seconds)]
    done = subprocess.run(
        group.command(command), capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return float(json.loads(done.stdout))


def build(options: argparse.Namespace) -> list[Report]:
    """Shuffled rows within budgets, on this device and on a cloud disk."""
    here = Report("This device: rows of 1 KiB, 512 MiB, cold, in a memory cgroup of the budget and 160 MiB")
    cloud = Report(f"Cloud disk ({OPERATIONS:,} reads/s, {BANDWIDTH // 10**6} MB/s): the same")
    with matrix(SIZE, options.folder) as path:
        try:
            speeds = _speeds(path, (NONE, EIGHTH, HALF), [], options.rounds)
            _table(here, speeds, {EIGHTH: 1.5})
            with cloud_disk(path) as enter:
                slow = _speeds(path, (NONE, EIGHTH, HALF, MEMMAP), enter, 1)
            _table(cloud, slow, {EIGHTH: 4, HALF: 12})
            cloud.claim(f"{HALF} / {MEMMAP}", slow[HALF] / slow[MEMMAP], 100)
        except CgroupUnavailableError as error:
            (cloud if here.rows else here).notes.append(f"skipped: {error}")
    return [here, cloud]


def _speeds(path: str, names: tuple[str, ...], enter: list[str], rounds: int) -> dict[str, float]:
    result: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            with memory_cgroup(BUDGETS.get(name, 0) + 160 * MIB) as group:
                result[name].append(_speed(path, name, 8 if name in (NONE, MEMMAP) else 600, group, enter))
    return {name: statistics.median(speeds) for name, speeds in result.items()}


def _table(report: Report, speeds: dict[str, float], bars: dict[str, float]) -> None:
    for name, rows in speeds.items():
        report.row(name, **{"rows/s": rows, "MB/s": rows * 1024 / 1e6, f"x {NONE}": rows / speeds[NONE]})
    for name, bar in bars.items():
        report.claim(f"{name} / {NONE}", speeds[name] / speeds[NONE], bar)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--walk"]:
        print(json.dumps(walk(sys.argv[2], sys.argv[3], float(sys.argv[4]))))
    else:
        run(build, rounds=3)
