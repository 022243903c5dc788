"""What the benchmarks share: files to read, caches to empty, fair rounds, tables, JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import lowtide
from lowtide._io import pagecache

MIB = 2**20


@dataclass
class Report:
    """Rows of one benchmark, and the claims that they bear out or not."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, name: str, **figures: Any) -> None:
        self.rows.append({"name": name, **figures})

    def claim(self, text: str, value: float, bar: float, *, at_most: bool = False) -> None:
        """A figure against its bar."""
        met = value <= bar if at_most else value >= bar
        self.claims.append({"claim": text, "value": value, "bar": bar, "at_most": at_most, "met": met})

    def print(self) -> None:
        print(f"\n{self.title}")
        headings = [key for key in self.rows[0] if key != "name"] if self.rows else []
        width = max([len(row["name"]) for row in self.rows], default=0) + 2
        columns = {heading: max(16, len(heading) + 2) for heading in headings}
        print(" " * width + "".join(f"{heading:>{wide}}" for heading, wide in columns.items()))
        for row in self.rows:
            cells = (f"{_cell(row.get(heading)):>{wide}}" for heading, wide in columns.items())
            print(f"{row['name']:<{width}}" + "".join(cells))
        for claim in self.claims:
            sign = "<=" if claim["at_most"] else ">="
            verdict = "met" if claim["met"] else "NOT MET"
            print(f"  {claim['claim']}: {claim['value']:.3g} (bar: {sign} {claim['bar']:g}) {verdict}")
        for note in self.notes:
            print(f"  {note}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def run(
    build: Callable[[argparse.Namespace], list[Report]],
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    **defaults: Any,
) -> None:
    """The command line of a benchmark: ``--json FILE``, ``--rounds N``, ``--folder DIR``, and ``more``."""
    parser = argparse.ArgumentParser(description=build.__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=defaults.get("rounds", 5), help="medians of so many")
    parser.add_argument(
        "--folder", default=None, help="where big files are made (default: the temporary folder)"
    )
    more(parser)
    options = parser.parse_args()
    reports = build(options)
    for report in reports:
        report.print()
    if options.json:
        message = {"machine": machine(), "reports": [vars(report) for report in reports]}
        Path(options.json).write_text(json.dumps(message, indent=1, default=float))


def machine(folder: str | None = None) -> dict[str, Any]:
    """What the figures were measured on; ``folder`` is where the big files are."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "kernel": platform.release(),
        "processor": _processor(),
        "file_system": _file_system(folder or tempfile.gettempdir()),
        "disk": _disk(folder or tempfile.gettempdir()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "lowtide": lowtide.__version__,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: str) -> str:
    """ext4, say: the kind of the mount whose device ``folder`` is on."""
    device = os.stat(folder).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            # proc(5): the third field is the device, and the kind comes after the dash.
            if line.split()[2] == numbers:
                return line.partition(" - ")[2].split()[0]
    return "unknown"


def _disk(folder: str) -> str:
    """The driver of the device that ``folder`` is on (virtio_blk, nvme); no names of devices."""
    device = os.stat(folder).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for place in (node, node.parent):  # of a partition the disk above it
        with contextlib.suppress(OSError):
            return (place / "device/driver").resolve(strict=True).name
    return "unknown"


@contextmanager
def matrix(nbytes: int, folder: str | None = None, columns: int = 256) -> Iterator[str]:
    """A float32 matrix of 1 KiB rows in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=folder) as where:
        path = os.path.join(where, "matrix.npy")
        random = np.random.default_rng(0)
        block = random.random((4096, columns), dtype=np.float32)
        with lowtide.create(path, "float32", row_shape=columns) as out:
            for _ in range(nbytes // block.nbytes):
                out.append(block)
                block = np.roll(block, 1, axis=0)
        yield path


def make_cold(path: str) -> None:
    pagecache.drop(path)
    left = pagecache.resident(path)
    if left is not None and left[0] > os.stat(path).st_size // 50:
        raise SystemExit(f"{path}: {left[0]} bytes stayed in the page cache; a cold figure would be false")


def make_warm(path: str) -> None:
    """Fill the page cache by one pass in order: what is left of the writing would be in smaller folios."""
    make_cold(path)
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(4 * MIB)
        while file.readinto(buffer):
            pass


def rounds(
    methods: Mapping[str, Callable[[], object]], count: int, before: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Median seconds of each method; they take turns, so that a noisy minute hits them all."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(count):
        for name, method in methods.items():
            before()
            started = time.perf_counter()
            method()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in times.items()}


def ratio(ours: Callable[[], object], theirs: Callable[[], object], count: int) -> float:
    """How many times as fast as theirs ours is: the median of pairs, one made right after the other."""
    result = []
    for _ in range(count):
        times = rounds({"theirs": theirs, "ours": ours}, 1)
        result.append(times["theirs"] / times["ours"])
    return statistics.median(result)


def fio(
    path: str,
    *,
    rw: str,
    bs: str,
    depth: int,
    seconds: float,
    direct: bool = True,
    enter: Sequence[str] = (),
) -> dict[str, float]:
    """Reads a second and bytes a second that fio gets from a file; ``enter`` goes before its command."""
    command = [
        *enter,
        "fio",
        "--name=r",
        f"--filename={path}",
        f"--rw={rw}",
        f"--bs={bs}",
        "--ioengine=libaio",
    ]
    command += [f"--iodepth={depth}", f"--direct={int(direct)}", f"--runtime={seconds}", "--time_based"]
    command += ["--readonly", "--output-format=json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    read = json.loads(ended.stdout[ended.stdout.index("{") :])["jobs"][0]["read"]
    return {"iops": read["iops"], "bytes": read["bw_bytes"]}
