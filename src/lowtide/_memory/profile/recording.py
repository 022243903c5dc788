"""The memory of a tree of processes over time, in a bounded number of samples.

Kinds of looks are kept apart. A ``Point`` is cheap and taken often: resident memory by kind and the counters.
``Shares`` are expensive: what the processes of a tree share, counted once. So is a ``Detail``: mapped files,
page cache, shared memory. ``Charges`` are what the container is charged for. ``Series`` joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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
    written: int = 0  # bytes, by write calls
    stored: int = 0  # bytes that were written for a device


def _resident(point: Point) -> int:
    return point.anon + point.file + point.shared


class Shares(NamedTuple):
    """What the processes have, and what of it is left when pages that they share count once."""

    time: float
    epoch: int
    minor: int  # faults so far: copy-on-write shows in no other cheap figure
    # Summed over processes: each page for each of them that has it, and divided among them (RSS and PSS).
    resident: Parts
    proportional: Parts


class Charges(NamedTuple):
    """What the cgroup is charged for."""

    time: float
    usage: int
    working_set: int
    heap: int
    shared: int  # shared memory and memory file systems, mapped or not
    kernel: int
    unwritten: int  # page cache that is not on disk yet


class Detail(NamedTuple):
    """A look at the files of the tree."""

    time: float
    epoch: int
    # Summed over processes: each page for each of them that has it, and divided among them (RSS and PSS).
    resident: Parts
    proportional: Parts
    mapped: Mapping[str, int]  # data files: path to resident bytes, each page counted once
    code: int  # as Point.touched, of programs and libraries alone
    code_size: int  # sizes of those files: as much may have come from a device for them
    data_size: int | None  # of the data files that are mapped: no more can be resident, however many map them
    tmpfs: int  # resident bytes of mapped files in memory file systems
    cached: Mapping[str, int]  # data files: path to bytes in the page cache
    unmapped: int  # page cache of the data files that no process of the tree has mapped
    usage: int | None  # of the cgroup
    working_set: int | None
    program: int = 0  # resident bytes of programs and libraries so far, each file counted once
    memory_files: Mapping[str, int] = MappingProxyType({})  # path to bytes: files in memory file systems
    dirty: Mapping[str, int] = MappingProxyType({})  # mapped data files: path to bytes not yet on disk
    memory_used: int = 0  # in all memory file systems, by whomever
    sizes: Mapping[str, int] = MappingProxyType({})  # data files: path to size


Look = Point | Shares | Charges | Detail
KINDS: dict[type, str] = {Point: "points", Shares: "shares", Charges: "charges", Detail: "details"}
"""Where each kind of look is in a recording."""


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
    shares: Samples = field(default_factory=lambda: Samples(KEEP, lambda _: 0))
    charges: Samples = field(default_factory=lambda: Samples(KEEP, lambda look: look.usage))
    true_peak: int | None = None  # of the largest single process, from the kernel
    most_processes: int = 0
    read_total: int | None = None  # bytes requested by read calls, after the end
    ended: float | None = None
    status: int | None = None  # exit status, or minus the signal
    attached: bool = False  # to a running process: what it read before does not count
    split: bool = True  # heap and mapped files are known separately
    blind: list[str] = field(default_factory=list)  # what could not be seen, in words
    events: list[Event] = field(default_factory=list)  # kills by the kernel, throttling

    def add(self, look: Look) -> None:
        """Keep a look; thin the older ones of its kind if there are too many."""
        if isinstance(look, Point):
            self.most_processes = max(self.most_processes, look.processes)
        getattr(self, KINDS[type(look)]).add(look)

    def series(self) -> Series:
        """The curves: heap, mapped files and page cache over time and bytes read."""
        from lowtide._memory.profile.series import series_of  # after the command has ended: it needs NumPy

        return series_of(self)
