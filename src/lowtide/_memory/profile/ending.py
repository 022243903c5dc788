"""How a program ends: memory is freed, workers end one by one. That does not make it bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from lowtide._memory.profile.recording import Recording
from lowtide._memory.profile.series import Curve, Series
from lowtide._memory.profile.shape import LEAST_POINTS, shape_of, summit_of, without_end

_LEAST_CLIMB = 64 * 2**20  # of workers that have ended, to be mentioned


def stop(recording: Recording, series: Series) -> int:
    """Where the program starts to end: workers end one after the other, memory is freed."""
    total, time = series.total, series.time
    several = recording.most_processes > 1
    end = without_end(time, total, several)
    if end < len(total) or not several:
        return end
    # Workers that end after they have been level for a while.
    span, depth = float(time[-1] - time[0]), float(total.max() - total.min())
    processes = np.array([point.processes for point in recording.points])
    more = np.flatnonzero(np.diff(processes) > 0)
    fewer = np.flatnonzero(np.diff(processes) < 0)
    fewer = fewer[fewer > (more[-1] if more.size else -1)]  # no process has started since
    later = np.maximum.accumulate(total[::-1])[::-1]  # the highest from each point on
    for index in fewer:
        if total[index] >= 0.97 * later[index] and total[index] - total[-1] >= 0.05 * depth:
            return int(index) + 1 if time[-1] - time[index] <= 0.35 * span else len(total)
    return len(total)


def as_if_workers_stayed(recording: Recording, series: Series) -> tuple[Series, int]:
    """The curves with what workers had when they ended, if all started before the first one ended.

    On a busy machine some workers end long before others. What they release says nothing about whether they
    would have continued to grow. Where processes come and go, what they release is not missed. The second
    result is where the last one ends, unless the program works for long after that.
    """
    total = len(series.time)
    processes = np.array([point.processes for point in recording.points])
    ends = np.flatnonzero(np.diff(processes) < 0) + 1
    starts = np.flatnonzero(np.diff(processes) > 0) + 1
    if not ends.size or not starts.size or starts[-1] > ends[0]:
        return series, total
    # A helper process, such as multiprocessing's, may outlive the workers: what counts is the memory.
    large = [int(end) for end in ends if series.total[max(0, end - 3) : end].max() > 1.1 * series.total[end]]
    last = large[-1] if large else total
    if series.time[-1] - series.time[last - 1] > 0.5 * (series.time[-1] - series.time[0]):
        return series, total
    kept = (_kept(curve, ends) for curve in (series.heap, series.mapped, series.shared))
    heap, mapped, shared = kept
    return replace(series, heap=heap, mapped=mapped, shared=shared), last


def _kept(curve: Curve, ends: Iterable[int]) -> Curve:
    """A curve without the falls at or right before some points."""
    result = curve.copy()
    window = max(3, len(curve) // 16)  # a worker frees its memory, then it ends
    for end in ends:
        before = max(0, int(end) - window)
        result[end:] += max(0.0, float(result[before:end].max() - result[end]))
    return result


def risen_in_workers(recording: Recording, series: Series, start: int) -> float:
    """The rise up to the highest point, if processes ended after it and the rest of the run is short."""
    summit = summit_of(series.total)
    rest = float(series.time[-1] - series.time[summit])
    if recording.most_processes < 2 or rest > 0.6 * float(series.time[-1] - series.time[0]):
        return 0.0
    here = slice(start, summit + 1)
    depth = float(series.total.max() - series.total[start])
    if series.total[summit] - series.total[-1] < 0.3 * depth or depth < _LEAST_CLIMB:
        return 0.0
    for x in (series.time[here], series.read[here]):
        shape = shape_of(x, series.total[here], _LEAST_CLIMB)
        few = np.count_nonzero(x >= shape.level) < LEAST_POINTS  # too few to say that it was level
        if shape.kind in ("rises", "undecided") or (shape.kind == "levels off" and few):
            return depth
    return 0.0
