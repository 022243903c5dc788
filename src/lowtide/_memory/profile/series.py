"""The curves of a recording: the shares of the details, interpolated, applied to the points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide._memory.profile.recording import Detail, Point, Recording

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Curves of one recording, all of one length, in bytes."""

    time: Curve
    read: Curve
    heap: Curve
    mapped: Curve
    cache: Curve
    major: Curve
    device: Curve
    code: Curve  # programs and libraries loaded so far

    @property
    def total(self) -> Curve:
        """Memory of the processes: heap and mapped files. Page cache is the kernel's."""
        return self.heap + self.mapped


def series_of(recording: Recording) -> Series:
    """Heap, mapped files and page cache over time and bytes read."""
    details = recording.details
    points = np.array(recording.points, np.float64).reshape(-1, len(Point._fields)).T
    if not points.size:
        return Series(*([np.empty(0)] * 8))
    now: Any = Point(*points)

    def column(figure: Callable[[Detail], float]) -> Curve:
        return _between(now.time, details, [figure(detail) for detail in details])

    anon, file, shared = _counted_once(points, details)
    code = column(lambda detail: detail.code)
    code_size = column(lambda detail: detail.code_size)
    named = np.minimum(column(lambda detail: detail.tmpfs), now.shared)
    named_share = shared * _ratio(named, now.shared, 0.0)
    mapped = file + named_share
    if details:
        sizes = column(lambda detail: detail.data_size) + code_size
        mapped = np.minimum(mapped, np.where(now.processes > 1, sizes, np.inf))
    # Reads through a mapping appear in no counter; the pages that they leave resident do.
    tmpfs_touched = np.cumsum(np.maximum(0.0, np.diff(named, prepend=0.0)))
    touched = np.maximum(0.0, now.touched - code) + tmpfs_touched
    requested = now.requested.copy()
    if recording.read_total is not None:
        requested[-1] = max(requested[-1], recording.read_total)  # after the last point
    # What a device delivered beyond that was read through mappings that were removed between two points,
    # or is on its way: a long call that has not returned yet, or read-ahead. Bytes read never fall: a dip is
    # a child that ended between two looks.
    read = np.maximum.accumulate(np.maximum(requested + touched, now.device - code_size))
    if recording.attached:
        read -= read[0]
    # Pages that were mapped after an expensive look are no longer among the unmapped ones.
    looks = np.searchsorted(now.time, [detail.time for detail in details], side="right")
    mapped_then = _between(now.time, details, mapped[np.maximum(0, looks - 1)])
    unmapped = np.maximum(0.0, column(lambda detail: detail.unmapped) + mapped_then - mapped)
    cache = np.minimum(column(lambda detail: sum(detail.cached.values())), unmapped)
    return Series(now.time, read, anon + shared - named_share, mapped, cache, now.major, now.device, code)


def _counted_once(points: Curve, details: Sequence[Detail]) -> Curve:
    """Anonymous, mapped and shared memory at each point, with pages that processes share counted once.

    The expensive looks know it exactly. In between it follows a straight line, and deviations of the resident
    memory from its own straight line count by the share that it has there. Only looks at the same processes
    are joined: a worker that comes or goes changes everything at once.
    """
    now: Any = Point(*points)
    sizes = np.array([now.anon, now.file, now.shared])
    several = now.processes > 1
    shares = np.ones((3, 1))  # the last that are known
    start = 0
    for epoch, group in itertools.groupby(now.epoch):
        here = slice(start, start := start + len(list(group)))
        looks = [detail for detail in details if detail.epoch == epoch]
        times = now.time[here]
        whole = np.array([_between(times, looks, [look.resident[i] for look in looks]) for i in range(3)])
        part = np.array([_between(times, looks, [look.proportional[i] for look in looks]) for i in range(3)])
        if looks and several[here].any():
            share = _ratio(part, whole, 1.0)
            shares = share[:, np.flatnonzero(several[here])[-1:]]
        else:
            share = shares
        counted = np.maximum(0.0, part + share * (sizes[:, here] - whole))
        sizes[:, here] = np.where(several[here], counted, sizes[:, here])
    return sizes


def _between(times: Curve, details: Sequence[Detail], values: Sequence[float] | Curve) -> Curve:
    """Figures of the details at other times, on straight lines between them; 0 if there are none."""
    return np.interp(times, [detail.time for detail in details], values) if details else np.zeros(len(times))


def _ratio(part: Curve, whole: Curve, otherwise: float) -> Curve:
    return np.divide(part, whole, out=np.full_like(part, otherwise), where=whole != 0)
