"""Token batches: 64 x 1,024 as int64 tensors, against nanoGPT's get_batch as published and other loaders.

Bars: warm, as batches come by default, at most 1.15 times as long as 64 reads and the widening alone, no
slower than without prefetch, and ahead of a map released by MADV_DONTNEED; without prefetch at least 10 times
nanoGPT (goal: 0.7 of a gather from RAM); a consumer that computes for 5 ms on all cores waits at most 60 us
per batch, and 300 us once in a hundred; on a cloud disk a budget makes it faster; cold, the first 200 batches
of 8 GB at least 8 times nanoGPT and 0.7 of fio's random reads; in a memory cgroup of 256 MiB at least 500
times nanoGPT with a read-ahead of 8 MiB and 12 times with the usual 128 KiB, at least half of the cold speed
outside, and not slower than LitData when both shuffle in blocks; 2,000 batches take no more memory than the
buffers in flight and 8 MiB; cache="drop" leaves nothing behind for at most a third of the speed; the first
batch of a 1 TB corpus, or of 10,000 shards, in 0.2 s.

Every loader runs in its own process; imports are in no figure. Loaders take turns; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.cgroup import CgroupUnavailableError, memory_cgroup

from benchmarks.corpora import GB, Corpora, say
from benchmarks.harness import MIB, Report, fio, make_cold, make_warm, run
from benchmarks.limits import (
    BANDWIDTH,
    OPERATIONS,
    LoaderEndedError,
    LoaderProcess,
    NoLoopDeviceError,
    cloud_disk,
    loop_mounted,
    read_ahead,
)
from benchmarks.loaders import BATCH, LENGTH, LOADERS, PEERS

LIMIT = 256 * MIB
NANO, ALONE, DEFAULT = "nanoGPT as published", "lowtide, no prefetch", "lowtide"
DROP, BLOCKS, LITDATA = "lowtide, cache=drop", "lowtide, order=blocks", "LitData, converted"
EIGHTH, HALF = "lowtide, budget 1/8", "lowtide, budget 1/2"
BARE, RELEASED = "bare: 64 reads and widening", "map with MADV_RANDOM and MADV_DONTNEED"
FIO = "fio, 2 KiB, libaio, depth 64"
Speeds = dict[str, float | str]
"""Batches a second, or why there is no figure."""


def _files(folder: str, name: str) -> Iterator[str]:
    """The files that a loader reads."""
    where = Path(folder, LOADERS[name].reads)
    yield from (str(path) for path in ([where] if where.is_file() else where.rglob("*")) if path.is_file())


def _cool(folder: str, name: str) -> None:
    for path in _files(folder, name):
        make_cold(path)


def _medians(result: dict[str, list[float]], lost: dict[str, str]) -> Speeds:
    return {name: statistics.median(speeds) for name, speeds in result.items() if speeds} | lost


def _table(report: Report, speeds: Speeds, names: Iterable[str]) -> None:
    base = speeds.get(NANO)
    for name in names:
        speed = speeds.get(name)
        if isinstance(speed, str):
            report.notes.append(f"{name}: {speed}")
            speed = None
        ratio = speed / base if isinstance(speed, float) and isinstance(base, float) else None
        version = LOADERS[name].version if name in LOADERS and LOADERS[name].package else None
        report.row(name, **{"batches/s": speed, "x nanoGPT": ratio, "version": version})


def _ratio(report: Report, text: str, speeds: Speeds, ours: str, theirs: str, bar: float) -> None:
    """A claim of a ratio, or a note of which figure is missing."""
    a, b = speeds.get(ours), speeds.get(theirs)
    if isinstance(a, float) and isinstance(b, float):
        report.claim(text, a / b, bar)
    else:
        report.notes.append(f"{text}: n/a ({theirs}: {b if isinstance(a, float) else a})")


# The parts


def warm(options: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """Everything in the page cache; the processes live through all rounds."""
    report = Report("Warm, one thread: 64 x 1,024 tokens as int64 tensors")
    peers = corpora.peers if options.peers else {}
    make_warm(os.path.join(corpora.small, "train.bin"))
    result: dict[str, list[float]] = {name: [] for name in LOADERS if name not in PEERS}
    result |= {name: [] for name, wrong in peers.items() if not wrong}
    lost = {name: wrong for name, wrong in peers.items() if wrong}
    with ExitStack() as stack:
        running = {}
        for name in result:
            say(f"warm: {name}")
            try:
                running[name] = stack.enter_context(LoaderProcess(name, corpora.small))
                running[name].run(seconds=0.5)  # the first pass over code and pages is not a figure
            except LoaderEndedError as error:
                running.pop(name, None)
                lost[name] = str(error)
        for _ in range(2 * options.rounds + 1):
            for name, process in running.items():
                message = process.run(seconds=0.25)
                result[name].append(message["batches"] / message["seconds"])
    speeds = _medians(result, lost)
    _table(report, speeds, [*result, *(name for name in lost if name not in result)])
    _ratio(report, "lowtide, no prefetch / nanoGPT", speeds, ALONE, NANO, 10)
    _ratio(report, "lowtide's get_batch / nanoGPT", speeds, "lowtide's get_batch for nanoGPT", NANO, 10)
    _ratio(report, "lowtide / gather from RAM (goal)", speeds, DEFAULT, "gather from RAM", 0.7)
    _ratio(report, "lowtide, no prefetch / gather from RAM (goal)", speeds, ALONE, "gather from RAM", 0.7)
    _ratio(report, "lowtide / bare (1/1.15)", speeds, DEFAULT, BARE, 1 / 1.15)
    _ratio(report, "lowtide, no prefetch / bare (1/1.15)", speeds, ALONE, BARE, 1 / 1.15)
    _ratio(report, "lowtide / lowtide, no prefetch", speeds, DEFAULT, ALONE, 0.97)
    _ratio(report, "lowtide / map with MADV_RANDOM and MADV_DONTNEED", speeds, DEFAULT, RELEASED, 1)
    _ratio(report, "lowtide, budget 1/8 / lowtide", speeds, EIGHTH, DEFAULT, 0.97)
    return [report]


def prefetch(options: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """What a training loop waits for its batches."""
    report = Report("With prefetch: the wait for a batch, after 5 ms of work on the last one")
    path = os.path.join(corpora.small, "train.bin")
    result: dict[tuple[str, str], list[dict[str, float]]] = {}
    make_warm(path)
    cases = [("warm", compute) for _ in range(options.rounds) for compute in _WORK] + [("cold", "torch")]
    for state, compute in cases:
        if state == "cold":
            make_cold(path)
        message = _probe("waits", folder=corpora.small, compute=compute, milliseconds=5, batches=200)
        result.setdefault((state, compute), []).append(message)
    for (state, compute), waits in result.items():
        microseconds = {key: 1e6 * statistics.median(one[key] for one in waits) for key in ("median", "p99")}
        figures = {"median us": microseconds["median"], "99th percentile": microseconds["p99"]}
        report.row(f"{state}, {_WORK[compute]}", **figures)
        if state == "warm" and compute == "cores":
            report.claim("wait for a batch, warm, us", microseconds["median"], 60, at_most=True)
            report.claim("99th percentile of it, us", microseconds["p99"], 300, at_most=True)
    return [report]


_WORK = {
    "cores": "matrices multiplied by torch on all cores",
    "torch": "matrices multiplied by torch in one thread",
    "sleep": "sleep",
    "python": "a Python loop that holds the interpreter lock",
}


def cold(options: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """The first 200 batches; a new process for each round, since what is mapped cannot be dropped."""
    report = Report(f"Cold: the first 200 batches of {options.size:g} GB")
    # nanoGPT last: it pulls the whole file into memory, and a virtual machine whose host took that back when
    # it was dropped gets it again page by page, at the cost of whoever reads next.
    speeds = _cold_speeds(corpora.large, (DEFAULT, ALONE, DROP, BLOCKS, FIO), options.rounds)
    speeds |= _cold_speeds(corpora.large, (NANO,), options.rounds)
    _table(report, speeds, (NANO, *(name for name in speeds if name != NANO)))
    _ratio(report, "lowtide / nanoGPT", speeds, DEFAULT, NANO, 8)
    _ratio(report, "lowtide / fio", speeds, DEFAULT, FIO, 0.7)
    _ratio(report, "lowtide with cache=drop / lowtide", speeds, DROP, DEFAULT, 2 / 3)
    return [report]


def _cold_speeds(folder: str, names: Sequence[str], rounds: int) -> Speeds:
    result: dict[str, list[float]] = {name: [] for name in names}
    lost: dict[str, str] = {}
    for nth in range(rounds):
        for name in names:
            say(f"cold, round {nth + 1}: {name}")
            if name != FIO:
                with LoaderProcess(name, folder) as process:
                    _cool(folder, name)
                    message = process.run(batches=200)
                result[name].append(message["batches"] / message["seconds"])
                continue
            try:
                # Direct reads start and end on sectors, so 2 KiB stand for the 2,050 bytes of a window.
                reads = fio(os.path.join(folder, "train.bin"), rw="randread", bs="2k", depth=64, seconds=2)
                result[name].append(reads["iops"] / BATCH)
            except FileNotFoundError:
                lost[name] = "not installed"
    return _medians(result, lost)


def limited(options: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """A corpus of 2 GB in 256 MiB of memory, on the device itself."""
    ahead = read_ahead(corpora.small)
    message = "unknown" if ahead is None else f"{ahead // 1024} KiB"
    report = Report(f"In a 256 MiB memory cgroup, 2 GB: the device's own read-ahead, {message}")
    peers = corpora.peers if options.peers else {}
    lost = {name: wrong for name, wrong in peers.items() if wrong}
    contenders = [NANO, DEFAULT, DROP, BLOCKS, *([LITDATA] if peers.get(LITDATA) == "" else [])]
    others = ["gather from a kept np.memmap", "DataLoader over np.memmap"]
    others += [name for name, wrong in peers.items() if not wrong and name != LITDATA]
    try:
        speeds = _limited_speeds(corpora.small, contenders, options.rounds)
        speeds |= _limited_speeds(corpora.small, others, 1)
    except CgroupUnavailableError as error:
        report.notes.append(f"skipped: {error}")
        return [report]
    speeds |= lost
    outside = _cold_speeds(corpora.small, [DEFAULT], options.rounds)
    speeds["lowtide, cold, outside"] = outside[DEFAULT]
    _table(report, speeds, [*contenders, *others, *lost, "lowtide, cold, outside"])
    if ahead is not None and ahead >= 8 * MIB:
        _ratio(report, "lowtide / nanoGPT", speeds, DEFAULT, NANO, 500)
    else:
        report.notes.append("lowtide / nanoGPT with a read-ahead of 8 MiB: n/a (the device reads ahead less)")
    _ratio(report, "lowtide / its cold speed outside", speeds, DEFAULT, "lowtide, cold, outside", 0.5)
    _ratio(report, "lowtide, order=blocks / LitData", speeds, BLOCKS, LITDATA, 1)
    _ratio(report, "lowtide with cache=drop / lowtide", speeds, DROP, DEFAULT, 2 / 3)
    report.notes.append("Loaders that have no claim were looked at once, not in rounds.")
    return [report]


def usual(options: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """The same on a device that reads 128 KiB ahead, as most do: a loop device has its own setting."""
    report = Report("In a 256 MiB memory cgroup, 2 GB: a loop device with direct I/O")
    names = (NANO, DEFAULT, DROP, BLOCKS)
    path = os.path.join(corpora.small, "train.bin")
    try:
        with loop_mounted(corpora.folder, os.path.getsize(path) + 256 * MIB) as mounted:
            ahead = read_ahead(mounted)
            report.title += f", read-ahead {ahead // 1024 if ahead else '?'} KiB"
            say("copying the corpus to the loop device")
            shutil.copy(path, mounted)
            speeds = _limited_speeds(mounted, names, options.rounds)
    except (NoLoopDeviceError, CgroupUnavailableError) as error:
        report.notes.append(f"skipped: {error}")
        return [report]
    _table(report, speeds, names)
    _ratio(report, "lowtide / nanoGPT", speeds, DEFAULT, NANO, 12)
    return [report]


def _limited_speeds(folder: str, names: Sequence[str], rounds: int) -> Speeds:
    """Each time a new group and an empty page cache: pages that another group paid for would be free."""
    result: dict[str, list[float]] = {name: [] for name in names}
    lost: dict[str, str] = {}
    for nth in range(rounds):
        for name in names:
            if name in lost:
                continue
            say(f"in 256 MiB, round {nth + 1}: {name}")
            try:
                with memory_cgroup(LIMIT) as group, LoaderProcess(name, folder, group) as process:
                    _cool(folder, name)
                    process.run(seconds=1)  # until the group is full and has to reclaim
                    message = process.run(seconds=4 if name == NANO else 2)
            except LoaderEndedError as error:
                lost[name] = str(error)
                continue
            result[name].append(message["batches"] / message["seconds"])
    return _medians(result, lost)


def cloud(_: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """A disk with few operations per second: what memory buys."""
    size = os.path.getsize(os.path.join(corpora.small, "train.bin"))
    report = Report(
        f"Cloud disk ({OPERATIONS} reads, {BANDWIDTH / 1e6:g} MB per second), {size / GB:g} GB, cold"
    )
    speeds: Speeds = {}
    seconds = {DEFAULT: 5, EIGHTH: 2.5 * size / BANDWIDTH, HALF: 1.5 * size / BANDWIDTH}
    try:
        with cloud_disk(corpora.small) as enter:
            for name, limit in seconds.items():
                say(f"cloud disk: {name}")
                room = size // (8 if name == EIGHTH else 2) if name != DEFAULT else 0
                with (
                    memory_cgroup(room + LIMIT) as group,
                    LoaderProcess(name, corpora.small, group, enter=enter) as process,
                ):
                    _cool(corpora.small, name)
                    message = process.run(seconds=limit)
                speeds[name] = message["batches"] / message["seconds"]
    except (CgroupUnavailableError, LoaderEndedError) as error:
        report.notes.append(f"skipped: {error}")
        return [report]
    for name, speed in speeds.items():
        report.row(name, **{"batches/s": speed, "MB/s": float(speed) * BATCH * LENGTH * 2 / 1e6})
    _ratio(report, "budget 1/8 / no budget", speeds, EIGHTH, DEFAULT, 2)
    _ratio(report, "budget 1/2 / no budget", speeds, HALF, DEFAULT, 6)
    return [report]


def memory(_: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """What 2,000 batches leave in the process and in the page cache."""
    from benchmarks.probes import IN_FLIGHT

    report = Report("Memory: 2,000 batches of 2 GB, from a cold start")
    path = os.path.join(corpora.small, "train.bin")
    # Two prefetched, one in the making, one at the consumer's.
    allowed = 4 * IN_FLIGHT / MIB + 8
    for cache, order in (("keep", "shuffle"), ("drop", "shuffle"), ("keep", "blocks")):
        make_cold(path)
        message = _probe("growth", folder=corpora.small, cache=cache, order=order, batches=2000)
        figures = {
            "RSS grew, MiB": message["rss"] / MIB,
            "at its peak": message["peak"] / MIB,
            "page cache, MiB": message["cached"] / MIB if message["cached"] is not None else None,
        }
        report.row(f"lowtide, cache={cache}, order={order}", **figures)
        # Blocks are shuffled in a buffer, which is in flight too.
        more = 17 if order == "blocks" else 0
        report.claim(
            f"peak above the start, cache={cache}, order={order}, MiB",
            message["peak"] / MIB,
            allowed + more,
            at_most=True,
        )
        if cache == "drop" and message["cached"] is not None:
            read = 2000 * BATCH * 2 * (LENGTH + 1)
            report.claim(
                "page cache left by cache=drop / bytes read", message["cached"] / read, 0.01, at_most=True
            )
    return [report]


def first(options: argparse.Namespace, corpora: Corpora) -> list[Report]:
    """The first batch, from opening the corpus on, in a new process whose imports are done."""
    report = Report("The first batch, opening included, imports not")
    shards = os.path.join(corpora.folder, "shards")
    os.mkdir(shards)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 100_000  # llm.c's magic number and version, and the tokens that follow
    for number in range(10_000):
        with open(os.path.join(shards, f"web_train_{number:06}.bin"), "wb") as file:
            header.tofile(file)
            file.truncate(1024 + 2 * 100_000)
    sparse = os.path.join(corpora.folder, "sparse")
    os.mkdir(sparse)
    with open(os.path.join(sparse, "train.bin"), "wb") as file:
        file.truncate(10**12)
    cases = {
        "1 TB, sparse, one file": (sparse, None),
        "10,000 shards of llm.c": (shards, None),
        "10,000 shards, raw": (os.path.join(shards, "*.bin"), "uint16"),
    }
    result: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, (path, dtype) in cases.items():
            result[name].append(_probe("first", path=path, dtype=dtype))
    for name, message in result.items():
        middle = {key: statistics.median(one[key] for one in message) for key in message[0]}
        report.row(
            name,
            **{
                "seconds": middle["seconds"],
                "files open": middle["files"],
                "peak, MiB": middle["peak"] / MIB,
                "CPU seconds": middle["cpu"],
            },
        )
        report.claim(f"first batch, {name}, s", middle["seconds"], 0.2, at_most=True)
    return [report]


def _probe(name: str, **arguments: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.probes", name, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    message: dict[str, Any] = json.loads(done.stdout)
    return message


PARTS: dict[str, Callable[[argparse.Namespace, Corpora], list[Report]]] = {
    part.__name__: part for part in (warm, prefetch, cold, limited, usual, cloud, memory, first)
}


@contextmanager
def _folder(parent: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="lowtide-tokens-", dir=parent) as folder:
        yield folder


def build(options: argparse.Namespace) -> list[Report]:
    """Token batches, against nanoGPT's get_batch and other loaders."""
    reports: list[Report] = []
    with _folder(options.folder) as folder:
        need = (options.size + 12) * GB
        if shutil.disk_usage(folder).free < need:
            raise SystemExit(f"{folder}: {need / GB:g} GB must be free; see --size and --folder")
        corpora = Corpora(folder, options.size)
        for name in options.only or PARTS:
            say(f"part: {name}")
            before = os.getloadavg()[0]
            result = PARTS[name](options, corpora)
            for report in result:
                load = f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
                report.notes.append(f"{load}, on {os.cpu_count()} cores")
            reports += result
    return reports


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these parts")
    parser.add_argument("--size", type=float, default=8, help="GB of the cold corpus")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without other libraries")


if __name__ == "__main__":
    run(build, _arguments, rounds=3)
