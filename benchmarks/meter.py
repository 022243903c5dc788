"""What looking costs: the guard's sampler, the profiler, and how soon each is useful.

    python -m benchmarks.meter [--json FILE]

Claims: at the default interval the sampler takes less than 1 % of one core; a watch is useful at once (its
first look and the kernel's peak are there before the block starts); the sampler's own first look comes
within 5 ms of its interpreter's start; a watch costs well under a millisecond once the sampler runs;
``lowtide profile`` takes less than 1 % of one core, and slows a program by at most 1 %; a measured line takes
a tenth of what memory_profiler, in the same run, adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from typing import Any

import numpy as np

import lowtide
from lowtide._io import pagecache
from lowtide._memory import helper, proc

MIB = 2**20


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the steady measurements")
    parser.add_argument(
        "--resident", type=int, default=1024, metavar="MIB", help="memory of the watched process"
    )
    options = parser.parse_args()
    result = measure(options.seconds, options.resident)
    for name, row in result.items():
        mark = "" if row["limit"] is None else f"  (at most {row['limit']}: {'yes' if row['met'] else 'NO'})"
        print(f"{name:<44} {row['value']:>10.3f} {row['unit']}{mark}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


def measure(seconds: float, resident: int) -> dict[str, dict[str, Any]]:
    """All figures by name."""
    result: dict[str, dict[str, Any]] = {}

    def note(name: str, value: float, unit: str, limit: float | None = None) -> None:
        met = None if limit is None else value <= limit
        result[name] = {"value": value, "unit": unit, "limit": limit, "met": met}

    held = np.ones(resident * MIB, dtype="u1")
    armed, own, from_spawn = zip(*(_first_watch() for _ in range(15)), strict=True)
    note("watch: useful after entering it", statistics.median(armed), "ms", 5)
    note("sampler: first look after its interpreter's start", statistics.median(own), "ms", 5)
    note("sampler: first look after it was spawned", statistics.median(from_spawn), "ms")
    note("watch: enter and leave, sampler running", _warm_watch(), "ms")
    note("sampler: part of one core", 100 * _sampler_load(seconds), "%", 1)
    note("sampler: resident", _sampler_size() / MIB, "MiB")
    note("profiler: part of one core, steady", 100 * _profiler_load(seconds), "%", 1)
    processor, wall = _slowdown()
    note("profiler: processor time of a program, more by", 100 * processor, "%", 1)
    note("profiler: wall time of a program, more by", 100 * wall, "%")
    ours, theirs = _line()
    note("lines: a measured line, more by", ours, "us")
    if theirs is not None:
        note("lines: the same by memory_profiler", theirs, "us")
        note("lines: part of memory_profiler's", 100 * ours / theirs, "%", 10)
    note("one look: status", _each(lambda: proc.status()), "us")
    note("one look: smaps_rollup", _each(lambda: proc.rollup(), 30), "us")
    note("one look: smaps by file", _each(lambda: proc.mappings(), 30), "us")
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1 << 30)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        note(
            "one look: page cache of a 1 GiB file", _each(lambda: pagecache.resident_fd(file.fileno())), "us"
        )
    del held
    return result


def _first_watch() -> tuple[float, float, float]:
    """Milliseconds to enter a first watch; from the sampler's first line and its birth to its first look."""
    helper.shut_down()
    before = time.perf_counter()
    with lowtide.watch() as watch:
        entered = time.perf_counter()
        spawned = time.time()
        time.sleep(0.08)
    return (entered - before) * 1e3, _own_start(), max(0.0, (watch.samples[0].time - spawned) * 1e3)


def _own_start() -> float:
    """Milliseconds from the first line of the sampler's program to its first look at this process."""
    gauge = "lowtide._memory.gauges:Resident"
    timed = "import time; started = time.perf_counter()\n" + helper._BOOT.replace(
        "sampler.main()",
        f"sampler.start({os.getpid()}, '{gauge}', 'False', '0.01', '{1 << 62}').look()\n"
        "print((time.perf_counter() - started) * 1000)",
    )
    package = os.path.dirname(os.path.abspath(lowtide.__file__))
    command = [sys.executable, "-I", "-S", "-c", timed, package]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _warm_watch() -> float:
    times = []
    for _ in range(100):
        before = time.perf_counter()
        with lowtide.watch():
            pass
        times.append((time.perf_counter() - before) * 1e3)
    return statistics.median(times)


def _sampler_load(seconds: float) -> float:
    """Processor time of the sampler at the default interval, as a part of the time that passes."""
    with lowtide.watch():
        time.sleep(0.3)
        before, started = _cpu(helper.helper().pid), time.monotonic()
        time.sleep(seconds)
        return (_cpu(helper.helper().pid) - before) / (time.monotonic() - started)


def _sampler_size() -> int:
    with lowtide.watch():
        time.sleep(0.1)
        return proc.status(helper.helper().pid).rss


def _profiler_load(seconds: float) -> float:
    """The same for the profiler, looking at this process after the first seconds are over."""
    script = (
        "import os, sys, time\nfrom lowtide._memory.profile import profiler\n"
        "watched = profiler.attach(os.getppid())\n"
        "def follow(seconds):\n"
        "    until = time.monotonic() + seconds\n"
        "    while time.monotonic() < until:\n"
        "        watched.look(); watched.rest()\n"
        "accounts = [watched.points, watched.shares.governor, watched.files.governor]\n"
        "follow(1.0)\n"
        "for account in accounts:\n"
        "    account.advance = account.early = account.spent = 0.0\n"
        "    account.started = time.monotonic()\n"
        f"before = time.process_time()\nfollow({seconds})\n"
        f"print((time.process_time() - before) / {seconds})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _slowdown(rounds: int = 5) -> tuple[float, float]:
    """How much more processor time and wall time a program takes under ``lowtide profile``: medians of pairs.

    On a machine that does other things as well, wall time says nothing.
    """
    work = (
        "import time, numpy as np\na = np.ones(2**25, 'u1'); total = 0\n"
        "started = time.process_time(), time.perf_counter()\n"
        "for i in range(600): total += int(a.sum()) + len(bytes(2**22)) + sum(range(60_000))\n"
        "print(time.process_time() - started[0], time.perf_counter() - started[1])"
    )
    plain = [sys.executable, "-c", work]
    profiled = [sys.executable, "-c", "from lowtide.cli import main; main()", "profile", "--", *plain]
    ratios = []
    for _ in range(rounds):
        before, after = (
            map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
            for command in (plain, profiled)
        )
        ratios.append([b / a - 1 for a, b in zip(before, after, strict=True)])
    processor, wall = (statistics.median(column) for column in zip(*ratios, strict=True))
    return processor, wall


def _line(rounds: int = 15) -> tuple[float, float | None]:
    """Microseconds that measuring adds to a line: ``profile_lines``, and memory_profiler if installed."""
    times = 500

    def work() -> int:
        total = 0
        for index in range(times):
            total += index
            total -= 1
            total ^= 1
        return total

    decorators: list[Any] = [lowtide.memory.profile_lines]
    with contextlib.suppress(ImportError):
        decorators.append(import_module("memory_profiler").profile)
    measured = [work, *(decorator(stream=io.StringIO())(work) for decorator in decorators)]
    rows = [[_each(function, 1) / (4 * times) for function in measured] for _ in range(rounds)]
    plain, ours, *theirs = map(statistics.median, zip(*rows, strict=True))
    return ours - plain, theirs[0] - plain if theirs else None


def _cpu(pid: int) -> float:
    """Processor seconds of a process, to the nanosecond that the scheduler keeps."""
    return int(proc.read(f"/proc/{pid}/schedstat").split()[0]) / 1e9


def _each(look: Any, times: int = 300) -> float:
    """Median microseconds of one call."""
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        look()
        taken.append((time.perf_counter() - before) * 1e6)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
