"""Rows with labels for a model: 256 rows of 1 KiB and their labels as tensors, shuffled, without workers.

Bars: warm at least twice DataLoader over np.memmap; in a memory cgroup of 256 MiB, with a file of several
times that, at least 50 times every peer that maps the file, and ahead of the others. Reductions from the
device at 0.8 of the speed at which the same file is read in order and nothing is computed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from tests.support.cgroup import CgroupUnavailableError, memory_cgroup

import lowtide
from benchmarks.corpora import say
from benchmarks.harness import MIB, Report, make_cold, make_warm, rounds, run
from benchmarks.limits import LoaderEndedError, LoaderProcess, read_ahead
from benchmarks.row_loaders import ARRAYS, BATCH, CHUNKS, COLUMNS, LOADERS, MEMMAP

MODULE = "benchmarks.row_loaders"
OURS = (ARRAYS, CHUNKS)
LIMIT = "256 MiB"
ROOT = Path(__file__).parents[1]
Speeds = dict[str, float | str]


@contextmanager
def pair(nbytes: int, folder: str | None) -> Iterator[str]:
    """A folder with features and labels; the first feature of a row is its label."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=folder) as where:
        say(f"writing {nbytes / 2**30:g} GiB of rows")
        rows = nbytes // (4 * COLUMNS)
        labels = np.random.default_rng(1).integers(0, 1000, rows)
        np.save(os.path.join(where, "y.npy"), labels)
        block = np.random.default_rng(0).random((4096, COLUMNS), dtype=np.float32)
        with lowtide.create(os.path.join(where, "x.npy"), "float32", row_shape=COLUMNS) as out:
            for first in range(0, rows, len(block)):
                block[:, 0] = labels[first : first + len(block)]
                out.append(block)
        yield where


def _files(folder: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            for where, _, files in os.walk(path):
                yield from (os.path.join(where, file) for file in files)
        else:
            yield path


def _converted(folder: str) -> Speeds:
    """Makes the files of peers; who cannot take part, and why."""
    lost: Speeds = {}
    for name, loader in LOADERS.items():
        if not loader.installed:
            lost[name] = "not installed"
        elif loader.convert is not None:
            say(f"converting for {name}")
            command = [sys.executable, "-m", MODULE, name, f"convert:{folder}"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
            if done.returncode:
                lost[name] = f"not converted: {done.stderr.strip().splitlines()[-1]}"
    return lost


def _medians(taken: dict[str, list[float]], lost: Speeds) -> Speeds:
    return {name: lost.get(name) or statistics.median(speeds) for name, speeds in taken.items()}


def warm(folder: str, lost: Speeds, options: argparse.Namespace) -> Report:
    """Everything in the page cache; the processes live through all rounds."""
    report = Report("Warm: batches of 256 rows of 1 KiB with labels, DataLoader without workers")
    taken: dict[str, list[float]] = {name: [] for name in LOADERS}
    lost = dict(lost)
    reads = {file for name, loader in LOADERS.items() if name not in lost for file in loader.reads}
    for path in _files(folder, sorted(reads)):  # before anybody maps them
        make_warm(path)
    with ExitStack() as stack:
        running = {}
        for name in LOADERS:
            if name in lost:
                continue
            say(f"warm: {name}")
            try:
                running[name] = stack.enter_context(LoaderProcess(name, folder, module=MODULE))
                running[name].run(seconds=0.5)  # the first pass over code and pages is not a figure
            except LoaderEndedError as error:
                running.pop(name, None)
                lost[name] = str(error)
        for _ in range(2 * options.rounds + 1):
            for name, process in running.items():
                message = process.run(seconds=0.1 if options.quick else 0.3)
                taken[name].append(message["batches"] / message["seconds"])
    speeds = _medians(taken, lost)
    _table(report, speeds)
    for name in OURS:
        _claim(report, name, MEMMAP, speeds, 2)
    return report


def cold(folder: str, lost: Speeds, options: argparse.Namespace, limit: str | None = None) -> Report:
    """From the device; a new process for each round, since what is mapped cannot be dropped."""
    ahead = (read_ahead(folder) or 0) // 1024
    where = f"In a memory cgroup of {limit}" if limit else "Cold"
    report = Report(f"{where}, {options.size:g} GiB: the device reads {ahead} KiB ahead")
    taken: dict[str, list[float]] = {name: [] for name in LOADERS}
    lost = dict(lost)
    for nth in range(options.rounds):
        for name, loader in LOADERS.items():
            if name in lost:
                continue
            say(f"{'limited' if limit else 'cold'}, round {nth + 1}: {name}")
            try:
                with ExitStack() as stack:
                    group = stack.enter_context(memory_cgroup(limit)) if limit else None
                    process = stack.enter_context(LoaderProcess(name, folder, group, module=MODULE))
                    for path in _files(folder, loader.reads):
                        make_cold(path)
                    if limit:
                        process.run(seconds=1)  # until the group is full and has to reclaim
                    message = process.run(seconds=1 if options.quick else 3)
            except LoaderEndedError as error:
                lost[name] = str(error)
                continue
            except CgroupUnavailableError as error:
                report.notes.append(f"skipped: {error}")
                return report
            taken[name].append(message["batches"] / message["seconds"])
    speeds = _medians(taken, lost)
    _table(report, speeds)
    for name, loader in LOADERS.items() if limit else ():
        if name not in OURS:
            _claim(report, ARRAYS, name, speeds, 50 if loader.maps else 1)
            _claim(report, CHUNKS, name, speeds, 50 if loader.maps else 1)
    return report


def _table(report: Report, speeds: Speeds) -> None:
    base = speeds[MEMMAP]
    for name, speed in speeds.items():
        if isinstance(speed, str):
            report.notes.append(f"{name}: {speed}")
            report.row(name, **{"batches/s": None, "rows/s": None, "x np.memmap": None})
        else:
            times = speed / base if isinstance(base, float) else None
            report.row(name, **{"batches/s": speed, "rows/s": speed * BATCH, "x np.memmap": times})


def _claim(report: Report, ours: str, theirs: str, speeds: Speeds, bar: float) -> None:
    speed, other = speeds[ours], speeds[theirs]
    if isinstance(speed, float) and isinstance(other, float):
        report.claim(f"{ours} / {theirs}", speed / other, bar)
    elif isinstance(speed, float):
        report.notes.append(f"{ours} / {theirs}: there is nothing to compare with ({other})")
    else:
        report.claim(f"{ours} / {theirs}: {speed}", 0, bar)


def reductions(folder: str, options: argparse.Namespace, state: str) -> Report:
    """One pass of each reduction beside a pass that computes nothing."""
    report = Report(f"Reductions over {options.size:g} GiB of float32, {state}")
    path = os.path.join(folder, "x.npy")
    array = lowtide.open(path)

    def read() -> None:
        for _ in array.chunks(budget=16 * MIB):
            pass

    methods: dict[str, Callable[[], object]] = {
        "read in order": read,
        "sum(axis=0)": lambda: array.sum(axis=0),
        "mean(axis=0)": lambda: array.mean(axis=0),
        "mean()": lambda: array.mean(),
        "std(axis=0)": lambda: array.std(axis=0),
        "min(axis=0)": lambda: array.min(axis=0),
        "max()": lambda: array.max(),
        "histogram(20, (0, 1))": lambda: array.histogram(20, (0, 1)),
        "np.load(mmap_mode='r').mean(axis=0)": lambda: np.load(path, mmap_mode="r").mean(axis=0),
    }
    before: Callable[[], object] = lambda: None  # noqa: E731
    if state == "cold":
        before = lambda: make_cold(path)  # noqa: E731
    else:
        make_warm(path)
    times = rounds(methods, options.rounds, before)
    for name, seconds in times.items():
        speed, times_reading = array.nbytes / seconds / 1e9, times["read in order"] / seconds
        report.row(name, **{"GB/s": speed, "x reading": times_reading})
    for name in methods if state == "cold" else ():
        if name.startswith(("sum", "mean", "std", "min", "max", "histogram")):
            report.claim(f"{name} / read in order", times["read in order"] / times[name], 0.8)
    return report


def build(options: argparse.Namespace) -> list[Report]:
    """Features and labels for a model, and reductions."""
    if options.quick:
        options.rounds, options.size = min(options.rounds, 1), min(options.size, 0.75)
    reports = []
    with pair(int(options.size * 2**30), options.folder) as folder:
        lost = {} if options.only == ["reductions"] else _converted(folder)
        parts: dict[str, Callable[[], list[Report]]] = {
            "warm": lambda: [warm(folder, lost, options)],
            "cold": lambda: [cold(folder, lost, options)],
            "limited": lambda: [cold(folder, lost, options, LIMIT)],
            "reductions": lambda: [reductions(folder, options, state) for state in ("cold", "warm")],
        }
        for name in options.only or parts:
            reports += parts[name]()
    return reports


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="one round of 0.75 GiB: to see that it works")
    parser.add_argument("--size", type=float, default=2, help="GiB of features [default: 2]")
    parser.add_argument(
        "--only", nargs="+", choices=("warm", "cold", "limited", "reductions"), help="parts to run"
    )


if __name__ == "__main__":
    run(build, _more, rounds=3)
