"""Does memory grow, is it bounded, or can it not be decided?

Two curves are judged by their shapes: memory over time and memory over bytes read. A program that reads and
whose memory is level is bounded, and so is one that has loaded its data and computes. Inside a memory limit,
what the container is charged for is judged as well. What cannot be decided is ``unclear``, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide._memory.profile import container, ending
from lowtide._memory.profile.outcome import MIB, Cause, Verdict, mib, rate
from lowtide._memory.profile.recording import Recording
from lowtide._memory.profile.series import Curve, Series
from lowtide._memory.profile.shape import LEAST_POINTS, Shape, shape_of
from lowtide._sizes import format_size

__all__ = ["Verdict", "judge", "rate"]
_LEAST_GROWTH = 8 * MIB  # less than this over a whole run is the noise of an interpreter
_LEAST_GROWTH_OVER_TIME = 16 * MIB  # without reads there is nothing to relate it to: ask for more
_LEAST_READ = 16 * MIB  # below this a slope per GiB means nothing; nor below the libraries that were loaded
_LEAST_SECONDS = 0.1
_LEAST_LEVEL = 0.25  # seconds in which memory must be level to be bounded, if little is read and written
_PARTS = 48  # of a curve: what it rises by in one of them is a step
_CREEPS = 10  # times what still came over time: so much at once before it, and the bytes read decide
_LEAST_CLIMBING = 1.75  # seconds of growth without reads: an allocation takes less
_SHORT = 3.0  # seconds: in less, growth over time alone may be a program that still starts
_LEAST_HIDDEN = 16 * MIB
_SECOND_CAUSE = 0.2  # of the growth, from which on the heap is named beside a file that grows more
_LATE = 0.25  # of the run: growth that starts later says since when
_BLIND_PART = 0.25  # of the run without a look at shared pages, after which nothing is known of them

_UNDECIDED = {
    "short": "too short to see a trend ({seconds:.2f} s after it was loaded); run it longer, or on more data",
    "few points": "too few looks after the program was loaded; run it longer, or on more data",
    "few steps": "too few looks after the program was loaded; run it longer, or on more data",
    "sudden": "memory rose by {rise} in less than two seconds, at the end of the run; run it longer",
    "late step": "memory rose by {rise} at the end of the run; run it longer to see whether it stays there",
    "two steps": "memory rose by {rise} in steps; run it longer to see whether more follow",
    "just level": "memory rose by {rise} and is level since {level:.1f} s; run it longer",
    "swings": "memory swings too much to see a trend (+{rise} in all); run it longer",
    "disagree": "memory rises over time by {rise}, but not with the last bytes read; run it longer",
}


@dataclass(frozen=True)
class _Curves:
    """The part of the curves that is judged: after the start of the program, before it is taken down."""

    time: Curve
    read: Curve
    total: Curve
    parts: Mapping[Cause, Curve]
    program: float  # bytes of programs and libraries

    @property
    def seconds(self) -> float:
        return float(self.time[-1] - self.time[0])


def judge(recording: Recording) -> Verdict:
    """The verdict on a recording, complete or still under way."""
    verdict = _judged(recording)
    killed = recording.status == -9 and any(event.kind == "oom_kill" for event in recording.events)
    if verdict.state == "unclear" and killed:  # it cannot run longer within this limit
        seen = verdict.reason.partition("; ")[0]
        remedy = "run it with a higher limit to see whether memory continues to grow"
        return replace(verdict, reason=f"{seen}, then the kernel OOM-killed it; {remedy}")
    return verdict


def _judged(recording: Recording) -> Verdict:
    series = recording.series()
    read = int(series.read[-1]) if len(series.read) else recording.read_total or 0
    peak = max(int(series.total.max(initial=0.0)), recording.true_peak or 0)
    verdict = Verdict("unclear", 0, peak, read, split=recording.split, cache_growth=_cache_growth(recording))
    ended = float(series.time[-1]) if len(series.time) else 0.0
    if len(series.time) < LEAST_POINTS or (ended < _LEAST_SECONDS and recording.split):
        looks = f"{len(series.time)} looks in {ended:.2f} s"
        return replace(verdict, reason=f"too short to see a trend ({looks}); run it longer, or on more data")
    # A program that starts reads modules, about as much as it maps of libraries, and grows by them.
    least_read = max(_LEAST_READ, float(series.program.max()))
    start = _start(series.read, series.program, least_read)
    verdict = replace(verdict, base=int(series.total[start]))
    verdict = _of_processes(recording, series, start, ending.stop(recording, series), verdict)
    if not verdict.grows and ending.risen_in_workers(recording, series, start):
        kept, stop = ending.as_if_workers_stayed(recording, series)
        if (again := _of_processes(recording, kept, start, stop, verdict)).grows:
            return again
    return verdict if verdict.grows else _outside_processes(recording, series, start, verdict)


def _of_processes(recording: Recording, series: Series, start: int, stop: int, verdict: Verdict) -> Verdict:
    """The verdict on the memory of the processes between two points."""
    here = slice(start, max(stop, start + 1))
    parts: dict[Cause, Curve] = {
        "heap": series.heap[here],
        "mapped": series.mapped[here],
        "shared memory / tmpfs": series.shared[here],
    }
    program = float(series.program.max())
    curves = _Curves(series.time[here], series.read[here], series.total[here], parts, program)
    # A program that starts reads modules, about as much as it maps of libraries, and grows by them.
    least_read = max(_LEAST_READ, program)
    much_read = bool(curves.read[-1] - curves.read[0] >= least_read)
    written = recording.points[here.stop - 1].written - recording.points[start].written
    shape, over_reads = _shape(recording, curves, much_read, worked=written >= least_read)
    return _worded(recording, curves, shape, over_reads, verdict, much_read)


def _start(read: Curve, program: Curve, least_read: float) -> int:
    """Where reading data starts: when most of the program and its libraries has been loaded.

    A program that continues to load while it reads has no such point; there it is the last one before 1 %
    was read. One that reads little else but itself has, whenever that was.
    """
    loaded = int(np.argmax(program >= 0.8 * program.max()))
    total = read[-1] - read[0]
    if read[loaded] - read[0] <= 0.1 * total or total < least_read:
        return loaded
    early = read[0] + 0.01 * (read[-1] - read[0])
    return max(0, int(np.searchsorted(read, early, side="right")) - 1)


def _shape(recording: Recording, curves: _Curves, much_read: bool, worked: bool) -> tuple[Shape, bool]:
    """The shape that decides, and whether it is the one over bytes read."""
    least = _LEAST_GROWTH_OVER_TIME * (2 if curves.seconds < _SHORT and recording.split else 1)
    by_time = shape_of(curves.time, curves.total, least)
    if not much_read:
        if by_time.rises and by_time.level - by_time.start < _LEAST_CLIMBING and recording.split:
            return replace(by_time, kind="undecided", reason="sudden"), False
        if by_time.kind == "flat" and curves.seconds < _LEAST_LEVEL and recording.split and not worked:
            return replace(by_time, kind="undecided", reason="short"), False
        return by_time, False
    by_read = shape_of(curves.read, curves.total, _LEAST_GROWTH)
    if by_read.reason == "few steps" and by_time.kind in ("rises", "undecided"):
        # Read in a few large calls: no curve to follow, only whether what came in stayed.
        span, rise = float(curves.read[-1] - curves.read[0]), float(curves.total[-1] - curves.total[0])
        if rise >= 0.5 * span:
            ends = float(curves.read[0]), float(curves.read[-1])
            return Shape("rises", rise, *ends, flat_part=0.0, slope=rise / span), True
    if by_read.rises:
        # What was read is all in memory, and nothing was read since: loaded, if that is a while ago.
        return (by_time, False) if by_time.kind == "levels off" else (by_read, True)
    if by_read.kind == "levels off" and by_time.rises:
        if _stopped(curves, by_time, by_read) or by_time.before >= _CREEPS * by_time.rise:
            return by_read, True
        return replace(by_time, kind="undecided", reason="disagree"), False
    if by_read.reason in ("two steps", "swings", "just level") and by_time.rises:
        return by_read, True
    if by_read.kind in ("levels off", "flat") and by_time.kind == "undecided":
        return by_read, True
    span = float(curves.read[-1] - curves.read[0])
    little = 4 * by_read.spread <= by_read.rise < min(least, span / 8)  # for the curve over time to show
    if by_read.kind == "undecided" and by_time.kind == "flat" and little:
        return by_read, True
    return by_time, False


def _stopped(curves: _Curves, by_time: Shape, by_read: Shape) -> bool:
    """Whether memory stopped to rise with the last bytes read, which were read in a short time.

    Where it rises in steps, as the heap of a JVM does, two more of them must be missing.
    """
    level = min(int(np.searchsorted(curves.read, by_read.level)), len(curves.read) - 1)
    expected = by_time.slope * float(curves.time[-1] - curves.time[level])
    places = np.linspace(curves.read[0], curves.read[-1], _PARTS + 1)
    step = float(np.diff(np.interp(places, curves.read, curves.total)).max())
    least = max(2 * _LEAST_GROWTH, 2 * step)
    return expected >= least and curves.total[-1] - curves.total[level] < 0.3 * expected


def _worded(
    recording: Recording, curves: _Curves, shape: Shape, over_reads: bool, verdict: Verdict, much_read: bool
) -> Verdict:
    """The verdict that a shape of the processes' memory gives."""
    x = curves.read if over_reads else curves.time
    first, last = (min(int(np.searchsorted(x, place)), len(x) - 1) for place in (shape.start, shape.level))
    span = float(curves.read[-1] - curves.read[0])
    per_read = max(0.0, shape.rise) / span if much_read and span > 0 else None
    verdict = replace(verdict, per_read=per_read)
    if shape.kind == "undecided":
        level = float(curves.time[last])
        reason = _UNDECIDED[shape.reason].format(rise=mib(shape.rise), level=level, seconds=curves.seconds)
        return replace(verdict, state="unclear", reason=reason)
    if shape.kind == "flat":
        return replace(verdict, state="bounded", shape=_flat(curves, verdict, much_read))
    cause, files = _cause(recording, curves, first, last)
    if not shape.rises and not (cause == "mapped" and _to_its_end(recording, files, curves, last)):
        return replace(verdict, state="bounded", cause=cause, shape=_loaded(curves, shape, verdict, last))
    since = float(curves.time[first])
    late = since - curves.time[0] >= _LATE * curves.seconds
    late = late and x[first] - x[0] >= _LATE * (x[-1] - x[0])
    seconds = max(float(curves.time[last] - curves.time[first]), 1e-3)
    grown = float(curves.total[last] - curves.total[first])
    notes = [] if shape.rises else [f"level since {mib(curves.total[last] - verdict.base)}, the whole file"]
    if shape.before:
        notes = [f"after a load of {mib(shape.before)}"]
    heap = float(curves.parts["heap"][last] - curves.parts["heap"][first])
    if cause == "mapped" and heap >= max(2 * _LEAST_GROWTH_OVER_TIME, _SECOND_CAUSE * grown):
        notes.append(f"heap too, by {mib(heap)}")  # inside a limit it is the heap that cannot be taken back
    per_second = None
    if over_reads and cause in ("heap", "mapped"):
        per_read = shape.slope
    elif not much_read or cause not in ("heap", "mapped") or not _read_meanwhile(curves, first, last):
        per_second = shape.slope if not over_reads and shape.rises else grown / seconds
    else:
        per_read = grown / float(curves.read[last] - curves.read[first])
    return replace(
        verdict,
        state="grows",
        cause=cause,
        files=files,
        per_read=per_read,
        per_second=per_second,
        since=since if late else None,
        shape="; ".join(notes),
    )


def _read_meanwhile(curves: _Curves, first: int, last: int) -> bool:
    """Whether growth has to do with reading: a good part of the bytes was read while it grew."""
    meanwhile = float(curves.read[last] - curves.read[first])
    return meanwhile >= max(_LEAST_READ, 0.2 * float(curves.total[last] - curves.total[first]))


def _flat(curves: _Curves, verdict: Verdict, much_read: bool) -> str:
    span = float(curves.read[-1] - curves.read[0])
    over = f"over {format_size(span)} read" if much_read else f"for {curves.seconds:.1f} s"
    return f"peak {mib(verdict.peak - verdict.base)} over base, flat {over}"


def _loaded(curves: _Curves, shape: Shape, verdict: Verdict, last: int) -> str:
    """Words for a curve that rises and is level then."""
    level = float(np.median(curves.total[last:]))
    height = mib(level - verdict.base)
    seconds = float(curves.time[-1] - curves.time[last])
    early = float(curves.time[last] - curves.time[0]) <= 0.5 * curves.seconds
    words = f"loads {height}, then flat for {seconds:.1f} s" if early else f"flat since {height} over base"
    above = verdict.peak - level
    return (
        f"{words}, peak {mib(verdict.peak - verdict.base)}"
        if above > max(16 * MIB, shape.rise / 4)
        else words
    )


def _cause(
    recording: Recording, curves: _Curves, first: int, last: int
) -> tuple[Cause | None, tuple[str, ...]]:
    """What of the memory grew between two points, and the files behind it."""
    if not recording.split:
        return None, ()
    rises = {cause: float(part[last] - part[first]) for cause, part in curves.parts.items()}
    cause = max(rises, key=lambda name: rises[name])
    if cause == "shared memory / tmpfs":
        return cause, _grown([detail.memory_files for detail in recording.details])
    if cause == "heap":
        return cause, ()
    files = _grown([detail.mapped for detail in recording.details])
    resident = sum(_most(recording, "mapped", path) for path in files)
    if files and sum(_most(recording, "dirty", path) for path in files) >= resident / 2:
        return "written, not yet on disk", files
    return cause, files


def _most(recording: Recording, name: str, path: str) -> int:
    return max((getattr(detail, name).get(path, 0) for detail in recording.details), default=0)


def _to_its_end(recording: Recording, files: Sequence[str], curves: _Curves, last: int) -> bool:
    """Whether mapped files are level because they are mapped to their end."""
    if (curves.time[-1] - curves.time[last]) >= container.FILE_BOUND * curves.seconds:
        return False
    sizes = sum(_most(recording, "sizes", path) for path in files)
    # The last look at files may have been before their end.
    mapped = float(curves.parts["mapped"][last]) - curves.program
    seen = sum(_most(recording, "mapped", path) for path in files)
    return bool(files) and max(seen, mapped) >= 0.9 * sizes


def _outside_processes(recording: Recording, series: Series, start: int, verdict: Verdict) -> Verdict:
    """The verdict after a look at what no process has, and at what could not be seen."""
    if (charge := container.rising(recording, series, float(series.time[start]))) is not None:
        shape, looks = charge.shape, recording.details
        files: tuple[str, ...] = ()
        if charge.cause == "page cache":
            files = _grown([detail.cached for detail in looks])
        elif charge.cause == "shared memory / tmpfs":
            files = _grown([detail.memory_files for detail in looks])
        late = charge.since - series.time[start] >= _LATE * (series.time[-1] - series.time[start])
        reading = charge.cause == "page cache"
        return replace(
            verdict,
            state="grows",
            cause=charge.cause,
            files=files,
            since=charge.since if late else None,
            shape="" if shape.rises else f"+{format_size(shape.rise)} in the working set",
            per_read=shape.slope if reading else verdict.per_read,
            per_second=None if reading else shape.slope,
        )
    verdict = replace(verdict, unwritten=container.unwritten(recording))
    if verdict.state != "bounded":
        return verdict
    if (rise := ending.risen_in_workers(recording, series, start)) > 0:
        reason = f"memory rose by {mib(rise)} until processes ended; run it longer, or on more data"
        return replace(verdict, state="unclear", reason=reason)
    if (hidden := _hidden(recording, series)) >= _LEAST_HIDDEN:
        reason = (
            f"too few looks at the pages that processes share: up to {mib(hidden)} of copies may be hidden; "
            "run it longer, or with fewer processes"
        )
        return replace(verdict, state="unclear", reason=reason)
    if (unknown := _in_memory_files(recording)) >= 2 * _LEAST_GROWTH_OVER_TIME:
        reason = (
            f"memory file systems such as /dev/shm rose by {mib(unknown)} while the command wrote as much to "
            "no disk; see `df -t tmpfs`, or run it where nothing else does"
        )
        return replace(verdict, state="unclear", reason=reason)
    return verdict


def _hidden(recording: Recording, series: Series) -> float:
    """Copies of shared pages that may have been made since the last look at them, if that is long ago."""
    if not recording.split or not series.unseen.any():
        return 0.0
    stop = ending.stop(recording, series) - 1
    looks = [look.time for look in recording.shares]
    blind = float(series.time[stop]) - (looks[-1] if looks else 0.0)
    return float(series.unseen[stop]) if blind >= _BLIND_PART * float(series.time[stop]) else 0.0


def _in_memory_files(recording: Recording) -> int:
    """What may have been written to memory file systems without a file being seen."""
    details, points = recording.details, recording.points
    if len(details) < 2:
        return 0
    rose = max(detail.memory_used for detail in details) - details[0].memory_used
    seen = max(sum(detail.memory_files.values()) for detail in details)
    nowhere = max(point.written - point.stored for point in points) - points[0].written + points[0].stored
    return int(min(rose - seen, nowhere))


def _grown(looks: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
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
