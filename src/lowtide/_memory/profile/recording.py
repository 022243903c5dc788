"""The memory of a tree of processes over time, in a bounded number of samples.

Two kinds of looks are kept apart. A ``Point`` is cheap and taken often: resident memory by kind and the
counters. A ``Detail`` is expensive and taken seldom: proportional shares, mapped files, page cache, cgroup.
``Series`` joins the two: the shares of the details, interpolated, applied to the points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lowtide._memory.profile.events import Event
from lowtide._memory.samples import Samples

if TYPE_CHECKING:
    from lowtide._memory.profile.series import Series

KEEP = 4096  # points kept at most, so that memory stays flat
Parts = tuple[float, float, float]
"""Anonymous, mapped and shared memory."""


class Point(NamedTuple):
    """Sums over the tree at one moment, in bytes; ``time`` in seconds from the start."""

    time: float
    epoch: int  # counts up when processes come or go
    processes: int
    anon: int
    file: int
    shared: int
    touched: int  # file pages that became resident, of all processes so far, whether still there or not
    requested: int  # bytes, by read calls
    device: int  # bytes that a device delivered
    major: int
    minor: int


def _resident(point: Point) -> int:
    return point.anon + point.file + point.shared


class Detail(NamedTuple):
    """An expensive look at the tree."""

    time: float
    epoch: int
    # Summed over processes: each page for each of them that has it, and divided among them (RSS and PSS).
    resident: Parts
    proportional: Parts
    mapped: Mapping[str, int]  # data files: path to resident bytes, each page counted once
    code: int  # as Point.touched, of programs and libraries alone
    code_size: int  # sizes of those files: as much may have come from a device for them
    data_size: int  # sizes of the data files: no more of them can be resident, however many map them
    tmpfs: int  # resident bytes of mapped files in memory file systems, summed over processes
    cached: Mapping[str, int]  # data files: path to bytes in the page cache
    unmapped: int  # page cache of the data files that no process of the tree has mapped
    usage: int | None  # of the cgroup
    working_set: int | None


@dataclass
class Recording:
    """The looks at one command or process, oldest first."""

    command: list[str]
    pid: int
    started: float  # seconds since the epoch
    interval: float
    budget: int | None = None
    limit: int | None = None  # of the cgroup, through all parents
    points: Samples = field(default_factory=lambda: Samples(KEEP, _resident))
    # The first of each group stays: growth counts from the first.
    details: Samples = field(default_factory=lambda: Samples(KEEP // 4, lambda _: 0))
    true_peak: int | None = None  # of the largest single process, from the kernel
    most_processes: int = 0
    read_total: int | None = None  # bytes requested by read calls, after the end
    ended: float | None = None
    status: int | None = None  # exit status, or minus the signal
    attached: bool = False  # to a running process: what it read before does not count
    split: bool = True  # heap and mapped files are known separately
    blind: list[str] = field(default_factory=list)  # what could not be seen, in words
    events: list[Event] = field(default_factory=list)  # kills by the kernel, throttling

    def add(self, point: Point) -> None:
        """Keep a point; thin the older ones if there are too many."""
        self.most_processes = max(self.most_processes, point.processes)
        self.points.add(point)

    def series(self) -> Series:
        """The curves: heap, mapped files and page cache over time and bytes read."""
        from lowtide._memory.profile.series import series_of  # after the command has ended: it needs NumPy

        return series_of(self)
