"""Inside a memory limit: what the container is charged for that no process has.

Page cache that is used again becomes active and is part of the working set, for which a pod is evicted.
Shared memory, files in memory file systems and kernel memory cannot be reclaimed at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide._memory.profile.outcome import Cause
from lowtide._memory.profile.recording import Recording
from lowtide._memory.profile.series import Curve, Series
from lowtide._memory.profile.shape import LEAST_POINTS, Shape, shape_of, without_end

MIB = 2**20
_LEAST = 16 * MIB
_LEAST_CACHE = 64 * MIB
_PART = 0.02  # of the limit: a smaller rise is not what a container is killed for
FILE_BOUND = 0.8
"""Page cache and mapped files level off when a file ends; with a longer file they would have continued. If
they are level for more of the run than this, they are what the program works on."""


@dataclass(frozen=True)
class Charge:
    """A part of what the container is charged for, and how it rises over time (page cache: over reads)."""

    cause: Cause
    shape: Shape
    since: float  # seconds


def rising(recording: Recording, series: Series, start: float) -> Charge | None:
    """The part that rises most after ``start`` seconds, if one does; heap is judged by its processes."""
    looks = [look for look in recording.charges if look.time >= start]
    if len(looks) < LEAST_POINTS or recording.limit is None:
        return None
    time, _, working_set, heap, shared, kernel, _ = np.array(looks, np.float64).T
    least = max(_LEAST, _PART * recording.limit)
    risen = []
    causes: dict[Cause, Curve] = {"shared memory / tmpfs": shared, "kernel memory": kernel}
    for cause, curve in causes.items():
        stop = without_end(time, curve)
        shape = shape_of(time[:stop], curve[:stop], least)
        if shape.rises:
            risen.append(Charge(cause, shape, shape.start))
    read = np.interp(time, series.time, series.read)
    active = working_set - heap - shared - kernel
    shape = shape_of(read, active, max(_LEAST_CACHE, least))
    # Active page cache is judged by its rise: it stops where the file ends.
    if shape.kind != "flat" and shape.rise >= _LEAST_CACHE and shape.flat_part < FILE_BOUND:
        risen.append(Charge("page cache", shape, float(np.interp(shape.start, read, time))))
    return max(risen, key=lambda charge: charge.shape.rise, default=None)


def unwritten(recording: Recording) -> int:
    """The most page cache above the start that was not on disk yet."""
    figures = [look.unwritten for look in recording.charges]
    return max(figures) - figures[0] if figures else 0
