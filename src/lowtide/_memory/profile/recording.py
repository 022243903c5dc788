"""The memory of a tree of processes over time, in a bounded number of samples.

Two kinds of looks are kept apart. A ``Point`` is cheap and taken often: resident memory by kind and the
counters. A ``Detail`` is expensive and taken seldom: proportional shares, mapped files, page cache, cgroup.
``Series`` joins the two: the shares of the details, interpolated, applied to the points.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lowtide._memory.samples import Samples

KEEP = 4096  # points kept at most, so that memory stays flat
Parts = tuple[float, float, float]
"""Anonymous, file-mapped and shared memory."""


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

    def add(self, point: Point) -> None:
        """Keep a point; thin the older ones if there are too many."""
        self.most_processes = max(self.most_processes, point.processes)
        self.points.add(point)

    def detail(self, detail: Detail) -> None:
        """Keep an expensive look; thin the older ones if there are too many."""
        self.details.add(detail)

    def series(self) -> Series:
        """The curves: heap, mapped files and page cache over time and bytes read."""
        return _series(self)


@dataclass(frozen=True)
class Series:
    """Curves of one recording, all of one length, in bytes."""

    time: Sequence[float]
    read: Sequence[float]
    heap: Sequence[float]
    mapped: Sequence[float]
    cache: Sequence[float]
    major: Sequence[float]
    device: Sequence[float]
    code: Sequence[float]  # programs and libraries loaded so far

    @property
    def total(self) -> list[float]:
        """Memory of the processes: heap and mapped files. Page cache is the kernel's."""
        return [heap + mapped for heap, mapped in zip(self.heap, self.mapped, strict=True)]


def _series(recording: Recording) -> Series:
    points, details = recording.points, recording.details
    times = [point.time for point in points]
    column = _Interpolation(times, details)
    counted_once = _counted_once(points, details)
    code = column(lambda detail: detail.code, 0.0)
    code_size = column(lambda detail: detail.code_size, 0.0)
    tmpfs = column(lambda detail: detail.tmpfs, 0.0)
    data_size = column(lambda detail: detail.data_size, 0.0)
    unmapped = column(lambda detail: detail.unmapped, 0.0)
    cached = column(lambda detail: sum(detail.cached.values()), 0.0)

    heap, mapped, read = [], [], []
    tmpfs_touched = before = 0.0
    for index, point in enumerate(points):
        anon, file, shared = counted_once[index]
        named = min(tmpfs[index], point.shared)
        named_share = shared * named / point.shared if point.shared else 0.0
        heap.append(anon + shared - named_share)
        most = data_size[index] + code_size[index] if point.processes > 1 and details else math.inf
        mapped.append(min(file + named_share, most))
        # Reads through a mapping appear in no counter; the pages that they leave resident do.
        tmpfs_touched += max(0.0, named - before)
        before = named
        touched = max(0.0, point.touched - code[index]) + tmpfs_touched
        requested = point.requested
        if index == len(points) - 1 and recording.read_total is not None:
            requested = max(requested, recording.read_total)  # after the last point
        # What a device delivered beyond that was read through mappings that were removed between two points,
        # or is on its way: a long call that has not returned yet, or read-ahead.
        read.append(max(requested + touched, point.device - code_size[index]))
    read = _rising(read)
    if recording.attached:
        read = [size - read[0] for size in read]
    # Pages that were mapped after an expensive look are no longer among the unmapped ones.
    then = _at([detail.time for detail in details], times, mapped)
    mapped_then = column.of(then, 0.0)
    cache = [
        min(whole, max(0.0, part + before - now))
        for whole, part, before, now in zip(cached, unmapped, mapped_then, mapped, strict=True)
    ]
    return Series(
        times, read, heap, mapped, cache,
        [point.major for point in points], [point.device for point in points], code,
    )  # fmt: skip


def _counted_once(points: Sequence[Point], details: Sequence[Detail]) -> list[list[float]]:
    """Anonymous, file-mapped and shared memory at each point, with pages that processes share counted once.

    The expensive looks know it exactly. In between it follows a straight line, and deviations of the resident
    memory from its own straight line count by the share that it has there. Only looks at the same processes
    are joined: a worker that comes or goes changes everything at once.
    """
    epochs: dict[int, list[Detail]] = {}
    for detail in details:
        epochs.setdefault(detail.epoch, []).append(detail)
    parts: list[list[float]] = []
    shares = [1.0, 1.0, 1.0]
    for epoch, group in itertools.groupby(points, key=lambda point: point.epoch):
        members = list(group)
        column = _Interpolation([point.time for point in members], epochs.get(epoch, []))
        resident = [column(lambda detail, kind=kind: detail.resident[kind], 0.0) for kind in range(3)]
        proportional = [column(lambda detail, kind=kind: detail.proportional[kind], 0.0) for kind in range(3)]
        for index, point in enumerate(members):
            now = (point.anon, point.file, point.shared)
            if point.processes == 1:
                parts.append([float(size) for size in now])
                continue
            if epoch in epochs:
                lines = [
                    (whole[index], part[index]) for whole, part in zip(resident, proportional, strict=True)
                ]
                shares = [part / whole if whole else 1.0 for whole, part in lines]
            else:
                lines = [(0.0, 0.0)] * 3
            parts.append(
                [
                    max(0.0, part + share * (size - whole))
                    for size, (whole, part), share in zip(now, lines, shares, strict=True)
                ]
            )
    return parts


class _Interpolation:
    """Figures of the details at the times of the points, on straight lines between them."""

    def __init__(self, times: Sequence[float], details: Sequence[Detail]) -> None:
        self.details = details
        self.places: list[tuple[int, int, float]] = []
        after = 0
        for time in times:
            while after < len(details) and details[after].time < time:
                after += 1
            left, right = max(0, after - 1), min(after, len(details) - 1)
            span = details[right].time - details[left].time if details else 0.0
            self.places.append((left, right, (time - details[left].time) / span if span > 0 else 0.0))

    def __call__(self, figure: Any, missing: float) -> list[float]:
        return self.of([float(figure(detail)) for detail in self.details], missing)

    def of(self, values: Sequence[float], missing: float) -> list[float]:
        """The same for values that belong to the details, one each."""
        if not values:
            return [missing] * len(self.places)
        return [
            values[left] + min(1.0, max(0.0, part)) * (values[right] - values[left])
            for left, right, part in self.places
        ]


def _at(moments: Sequence[float], times: Sequence[float], values: Sequence[float]) -> list[float]:
    """The values at the last of ``times`` that is not after each of ``moments``."""
    return [values[max(0, bisect.bisect_right(times, time) - 1)] for time in moments] if values else []


def _rising(values: list[float]) -> list[float]:
    """Bytes read never fall; a dip is a child that ended between two looks."""
    highest = -math.inf
    return [highest := max(highest, value) for value in values]
