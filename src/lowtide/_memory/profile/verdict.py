"""Does memory grow with what is read, or is it bounded? The verdict in one line.

The curve is memory over bytes read. Its slope is the median of the slopes between all pairs of points
(Theil and Sen), so that a step, a spike or a saw does not count as growth; and growth must be seen in both
halves, since a program that fills its buffers and then stays is bounded.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from lowtide._memory.profile.recording import Recording
from lowtide._memory.profile.series import Curve, Series
from lowtide._printable import printable
from lowtide._sizes import format_size

MIB, GIB = 2**20, 2**30
Cause = Literal["heap", "mapped", "page cache"]

_LEAST_GROWTH = 8 * MIB  # less than this over a whole run is the noise of an interpreter
_LEAST_GROWTH_OVER_TIME = 32 * MIB  # without reads there is nothing to relate it to: ask for more
_LEAST_READ = 16 * MIB  # below this a slope per GiB means nothing; nor below the libraries that were loaded
_BINS = 48


@dataclass(frozen=True)
class Verdict:
    """The verdict on a recording."""

    grows: bool
    cause: Cause | None
    files: tuple[str, ...]  # the mapped or cached files that grew, the one that grew most first
    base: int
    peak: int
    read: int
    per_read: float | None  # bytes of memory per byte read; None where hardly anything was read
    per_second: float | None  # for growth that has nothing to do with reading
    cache_growth: int
    read_known: bool = True  # a .dat file has no bytes read

    @property
    def line(self) -> str:
        """The verdict in one line that starts with ``bounded`` or ``grows``."""
        if not self.grows:
            pace = (
                f"{rate(self.per_read)} per GiB read"
                if self.per_read is not None
                else "hardly any read calls seen"
            )
            pace = pace if self.read_known else "bytes read not known"
            line = f"bounded: peak {_mib(self.peak - self.base)} over base, {pace}"
            if self.cache_growth >= 64 * MIB:
                line += f"; page cache +{_mib(self.cache_growth)}"
            return line
        if self.per_second is not None:
            pace = f"{format_size(self.per_second)} per second"
        else:
            pace = f"{rate(self.per_read or 0.0)} per GiB read"
        names = ", ".join(printable(os.path.basename(path)) for path in self.files[:1])
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        named = f": {names}{more}" if names and self.cause == "mapped" else ""
        cause = self.cause or "heap or mapped files: a .dat file has only their sum"
        return f"grows: {pace}, {cause}{named}"

    def as_json(self) -> dict[str, Any]:
        """The figures under their names in the document of ``lowtide profile --save``."""
        return {
            "verdict": self.line,
            "grows": self.grows,
            "base_mib": round(self.base / MIB, 3),
            "peak_mib": round(self.peak / MIB, 3),
            "mib_per_gib_read": None if self.per_read is None else round(self.per_read * 1024, 3),
            **{key: value for key, value in asdict(self).items() if key in ("cause", "files", "per_second")},
            "bytes_read": self.read,
            "page_cache_growth_mib": round(self.cache_growth / MIB, 3),
        }


def judge(recording: Recording) -> Verdict:
    """The verdict on a recording, complete or still under way."""
    series = recording.series()
    if not len(series.time):
        peak = recording.true_peak or 0
        return Verdict(False, None, (), 0, peak, recording.read_total or 0, None, None, 0)
    time, read, heap, mapped, code = series.time, series.read, series.heap, series.mapped, series.code
    total = series.total
    # A program that starts reads modules, about as much as it maps of libraries, and grows by them.
    least_read = max(_LEAST_READ, float(code.max()))
    start = _start(read, code, least_read)
    # The highest memory: the kernel's own mark, and what the points saw of several processes at once.
    peak = max(int(total.max()), recording.true_peak or 0)
    verdict = Verdict(
        False, None, (), int(total[start]), peak, int(read[-1]), None, None,
        _cache_growth(recording), recording.split,
    )  # fmt: skip
    much_read = read[-1] - read[start] >= least_read
    if much_read:
        grew, per_read = _trend(read[start:], total[start:], _LEAST_GROWTH)
        verdict = replace(verdict, per_read=per_read)
        if grew:
            cause, files = _cause(recording, read[start:], heap[start:], mapped[start:])
            return replace(verdict, grows=True, cause=cause, files=files)
    # A short run without reads is a program that starts; a .dat file has nothing but time.
    grew, per_second = _trend(time[start:], total[start:], _LEAST_GROWTH_OVER_TIME)
    if grew and (time[-1] - time[start] >= 1.0 or not recording.split):
        cause, files = _cause(recording, time[start:], heap[start:], mapped[start:])
        return replace(verdict, grows=True, cause=cause, files=files, per_second=per_second)
    if much_read and recording.limit is not None:
        grew, slope, files = _cache_pressure(recording, series, start)
        if grew:
            return replace(verdict, grows=True, cause="page cache", files=files, per_read=slope)
    return verdict


def _start(read: Curve, code: Curve, least_read: float) -> int:
    """Where reading data starts: when most of the program and its libraries has been loaded.

    A program that continues to load while it reads has no such point; there it is the last one before 1 %
    was read. One that reads little else but itself has, whenever that was.
    """
    loaded = int(np.argmax(code >= 0.8 * code.max()))
    total = read[-1] - read[0]
    if read[loaded] - read[0] <= 0.1 * total or total < least_read:
        return loaded
    early = read[0] + 0.01 * (read[-1] - read[0])
    return max(0, int(np.searchsorted(read, early, side="right")) - 1)


def _trend(x: Curve, y: Curve, least: float) -> tuple[bool, float]:
    """Whether ``y`` grows along ``x`` by at least ``least`` in all, and its slope."""
    span = float(x[-1] - x[0])
    if span <= 0:
        return False, 0.0
    bins = np.minimum(((x - x[0]) / span * _BINS).astype(int), _BINS - 1)
    used = np.unique(bins)
    xs = np.array([x[bins == index].mean() for index in used])
    ys = np.array([np.median(y[bins == index]) for index in used])
    if len(used) < 6:
        # Read in a few large calls: no curve to follow, only whether what came in stayed.
        slope = float(np.median(y[-3:]) - y[0]) / span
        return slope > 0.5 and slope * span >= least, slope
    slope = _theil_sen(xs, ys)
    half = len(xs) // 2
    halves = (_theil_sen(xs[: half + 1], ys[: half + 1]), _theil_sen(xs[half:], ys[half:]))
    steady = slope > 0 and min(halves) >= slope / 4
    return steady and slope * span >= least, slope


def _theil_sen(x: Curve, y: Curve) -> float:
    left, right = np.triu_indices(len(x), 1)
    return float(np.median((y[right] - y[left]) / (x[right] - x[left])))


def _cause(
    recording: Recording, x: Curve, heap: Curve, mapped: Curve
) -> tuple[Cause | None, tuple[str, ...]]:
    if not recording.split:
        return None, ()
    if _trend(x, heap, 0.0)[1] >= _trend(x, mapped, 0.0)[1]:
        return "heap", ()
    return "mapped", _grown([detail.mapped for detail in recording.details])


def _grown(looks: list[Any]) -> tuple[str, ...]:
    """Paths whose figure rose by a tenth of the largest rise or more, the largest first."""
    rises: dict[str, int] = {}
    for look in looks:
        for path, size in look.items():
            rises[path] = max(rises.get(path, 0), size - looks[0].get(path, 0))
    largest = max(rises.values(), default=0)
    grown = [path for path, rise in rises.items() if rise >= max(largest / 10, MIB)]
    return tuple(sorted(grown, key=lambda path: -rises[path]))


def _cache_growth(recording: Recording) -> int:
    """By how much the page cache of the files read rose, mapped or not."""
    sizes: dict[str, list[int]] = {}
    for detail in recording.details:
        for path, size in detail.cached.items():
            sizes.setdefault(path, []).append(size)
    return sum(max(rise) - rise[0] for rise in sizes.values())


def _cache_pressure(recording: Recording, series: Series, start: int) -> tuple[bool, float, tuple[str, ...]]:
    """Whether page cache that the system counts against the limit grows with what is read.

    Inactive page cache is reclaimed at once and does not count. Active page cache is what a pod is
    evicted for, so it counts, but only where there is a limit.
    """
    looks = [detail for detail in recording.details if detail.working_set is not None]
    if len(looks) < 6:
        return False, 0.0, ()
    read = np.interp([look.time for look in looks], series.time, series.read)
    kept = read >= series.read[start]
    if kept.sum() < 6:
        return False, 0.0, ()
    working_set = np.array([float(look.working_set or 0) for look in looks])
    grew, slope = _trend(read[kept], working_set[kept], 4 * _LEAST_GROWTH)
    return grew, slope, _grown([look.cached for look in looks])


def _mib(size: float) -> str:
    return f"{max(0.0, size) / MIB:.0f} MiB"


def rate(slope: float) -> str:
    """Memory for each GiB read, in the unit that reads best."""
    size = max(0.0, slope) * GIB
    return f"{size / GIB:.1f} GiB" if size >= 0.95 * GIB else f"{size / MIB:.1f} MiB"
