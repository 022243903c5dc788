"""The curves of a recording: what processes share, counted once, and files, joined with the points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide._memory.profile.recording import Detail, Point, Recording, Shares

Curve = NDArray[np.float64]
_PAGE = 4096
_LEAST_MOVE = 2**20  # of resident memory between two looks, to know from it what share new pages have


@dataclass(frozen=True)
class Series:
    """Curves of one recording, all of one length, in bytes."""

    time: Curve
    read: Curve
    heap: Curve
    mapped: Curve
    shared: Curve  # shared memory and files in memory file systems, mapped or not
    cache: Curve
    major: Curve
    device: Curve
    program: Curve  # programs and libraries loaded so far
    unseen: Curve  # what shared pages may have become since the last look at them

    @property
    def total(self) -> Curve:
        """Memory of the processes: heap, mapped files and shared memory. Page cache is the kernel's."""
        return self.heap + self.mapped + self.shared


def series_of(recording: Recording) -> Series:
    """Heap, mapped files, shared memory and page cache over time and bytes read."""
    details = recording.details
    points = np.array(recording.points, np.float64).reshape(-1, len(Point._fields)).T
    if not points.size:
        return Series(*([np.empty(0)] * 10))
    now: Any = Point(*points)

    def column(figure: Callable[[Detail], float]) -> Curve:
        return _between(now.time, details, [figure(detail) for detail in details])

    (anon, mapped, shared), unseen = _counted_once(points, _all_shares(recording, now))
    code = column(lambda detail: detail.code)
    code_size = column(lambda detail: detail.code_size)
    # Sizes are the largest that were seen: a file that is not mapped any more, or not yet seen, must not
    # press the curve down. Where a size is unknown there is no limit.
    sizes = [detail.data_size for detail in details]
    if details and None not in sizes and (now.processes > 1).any():
        code_most = min(
            float(code_size.max()), 2.0 * max(detail.program or detail.code for detail in details)
        )
        most = max(size or 0 for size in sizes) + code_most
        is_known = now.processes > 1
        later = now.time > details[-1].time
        if (now.file > now.processes * most)[later].any():  # other files have been mapped since the last look
            is_known &= ~later
        mapped = np.minimum(mapped, np.where(is_known, most, np.inf))
    shared = shared + _unmapped_memory(details, now, column)
    # Reads through a mapping appear in no counter; the pages that they leave resident do.
    touched = np.maximum(0.0, now.touched - code)
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
    program = _loaded(now.time, mapped, details)
    return Series(now.time, read, anon, mapped, shared, cache, now.major, now.device, program, unseen)


def _loaded(times: Curve, mapped: Curve, details: Sequence[Detail]) -> Curve:
    """Bytes of programs and libraries at each point.

    The looks at files are rare, and a program is loaded in a few milliseconds. What was mapped between two of
    them was the program first, up to what the later one has.
    """
    sizes = [float(detail.program or detail.code) for detail in details]
    if not sizes:
        return np.zeros(len(times))
    sizes = [0.0, *itertools.accumulate(sizes, max)]
    data = np.array([0.0, *(float(sum(detail.mapped.values())) for detail in details)])
    last = np.searchsorted([detail.time for detail in details], times, side="right")
    before, after = np.array(sizes)[last], np.array([*sizes[1:], sizes[-1]])[last]
    loaded: Curve = np.maximum.accumulate(np.clip(mapped - data[last], before, after))
    return loaded


def _unmapped_memory(
    details: Sequence[Detail], now: Any, column: Callable[[Callable[[Detail], float]], Curve]
) -> Curve:
    """Bytes of files in memory file systems that are not mapped.

    Files that are closed at once are missed by most looks. If one was seen, then what the file systems have
    risen by is the command's, as far as it wrote as much to no device. So it is if they rise in step.
    """
    seen = column(lambda detail: max(0, sum(detail.memory_files.values()) - detail.tmpfs))
    risen = column(lambda detail: detail.memory_used - details[0].memory_used - detail.tmpfs)
    nowhere = now.written - now.stored - now.written[0] + now.stored[0]
    known = any(detail.memory_files for detail in details)
    if not details or not (known or _in_step(now.time, risen, nowhere, details)):
        return seen
    unmapped: Curve = np.maximum(seen, np.minimum(risen, nowhere))
    return unmapped


def _in_step(times: Curve, risen: Curve, nowhere: Curve, details: Sequence[Detail]) -> bool:
    """Whether memory file systems rose in step with what was written to no device: at each look, as much."""
    looks = np.searchsorted(times, [detail.time for detail in details]).clip(max=len(times) - 1)
    looks = looks[: int(np.argmax(risen[looks])) + 1]  # in the end files may be removed
    largest = float(nowhere[looks].max(initial=0.0))
    apart = np.abs(risen[looks] - nowhere[looks])
    moves = np.count_nonzero(np.diff(nowhere[looks]) >= 0.01 * largest)
    return bool(moves >= 8 and (apart <= 0.1 * largest).all())


def _all_shares(recording: Recording, now: Any) -> list[Shares]:
    """The looks at shares, and those of recordings whose details have them."""
    old = [
        Shares(
            detail.time,
            detail.epoch,
            int(np.interp(detail.time, now.time, now.minor)),
            detail.resident,
            detail.proportional,
        )
        for detail in recording.details
        if any(detail.resident)
    ]
    return sorted([*recording.shares, *old], key=lambda look: look.time)


def _counted_once(points: Curve, looks: Sequence[Shares]) -> tuple[Curve, Curve]:
    """Anonymous, mapped and shared memory at each point, with pages that processes share counted once.

    The looks know it exactly. In between it follows a straight line, and deviations of the resident memory
    from its own straight line count by the share that it has there; after the last look nothing is taken to
    be flat (``_beyond``). Only looks at the same processes are joined: a worker that
    comes or goes changes everything at once. The second result is how much may have been missed.
    """
    now: Any = Point(*points)
    sizes = np.array([now.anon, now.file, now.shared])
    several = now.processes > 1
    unseen = np.zeros(len(now.time))
    per_fault = _per_fault(now)
    start = 0
    for epoch, group in itertools.groupby(now.epoch):
        first = start
        here = slice(start, start := start + len(list(group)))
        if not several[here].any():
            continue
        own = [look for look in looks if look.epoch == epoch]
        times = now.time[here]
        if own:
            counted = _between_looks(times, sizes[:, here], now.minor[here], own)
            since = np.maximum(0.0, now.minor[here] - own[-1].minor) * _PAGE * (times > own[-1].time)
            since *= _copied(own)
        else:
            # Processes that came and went too fast for a look: the share of the nearest one.
            nearest = min(looks, key=lambda look: abs(look.time - times[0]), default=None)
            share = _ratios(nearest)[:, None] if nearest else np.ones((3, 1))
            counted = sizes[:, here] * share
            since = np.full(len(times), np.inf)
        if first and now.processes[first] >= now.processes[first - 1]:
            # A process that was just forked has all that its parent has, and nothing more.
            faults = np.maximum(0.0, now.minor[here] - now.minor[first - 1])
            most = sizes[0, first - 1] + per_fault * faults + _LEAST_MOVE
            early = times < (own[0].time if own else np.inf)
            counted[0] = np.where(early, np.minimum(counted[0], most), counted[0])
        hidden = np.maximum(0.0, sizes[0, here] - counted[0])
        unseen[here] = np.where(several[here], np.minimum(since, hidden), 0.0)
        sizes[:, here] = np.where(several[here], counted, sizes[:, here])
    return sizes, unseen


def _per_fault(now: Any) -> float:
    """The most that one fault brought while no process came or went: a page, or a huge one."""
    same = (np.diff(now.epoch) == 0) & (np.diff(now.minor) > 0) & (np.diff(now.anon) >= _LEAST_MOVE)
    grown = np.diff(now.anon)[same] / np.diff(now.minor)[same]
    return max(float(_PAGE), float(grown.max(initial=0.0)))


def _between_looks(times: Curve, sizes: Curve, minor: Curve, looks: Sequence[Shares]) -> Curve:
    at = [look.time for look in looks]
    whole = np.array([np.interp(times, at, [look.resident[kind] for look in looks]) for kind in range(3)])
    part = np.array([np.interp(times, at, [look.proportional[kind] for look in looks]) for kind in range(3)])
    share = np.divide(part, whole, out=np.ones_like(part), where=whole != 0)
    moved = sizes - whole
    counted: Curve = part + share * moved
    place = np.clip(np.searchsorted(at, times, side="right"), 1, max(1, len(at) - 1))
    for kind in range(3 if len(at) > 1 else 0):
        ends = np.array([(look.resident[kind], look.proportional[kind]) for look in looks], np.float64)
        known, along = _along(sizes[kind], place, *ends.T)
        counted[kind] = np.where(known, along, counted[kind])
    after = times > at[-1]
    if after.any():
        rest = _beyond(looks)[:, None]
        # Copies of shared pages: resident memory stays, faults tell of them.
        if len(looks) > 1 and (faults := looks[-1].minor - looks[-2].minor) > 0:
            grown = looks[-1].proportional[0] - looks[-2].proportional[0]
            grown -= looks[-1].resident[0] - looks[-2].resident[0]
            part[0, after] += np.clip(grown / faults, 0.0, _PAGE) * (minor[after] - looks[-1].minor)
        counted[:, after] = part[:, after] + rest * moved[:, after]
    limited: Curve = np.minimum(np.maximum(0.0, counted), sizes)
    return limited


def _along(sizes: Curve, place: NDArray[np.intp], resident: Curve, part: Curve) -> tuple[Curve, Curve]:
    """Where what is counted follows the resident memory from look ``place - 1`` to the next, and to what.

    As far as resident memory goes from that of one look to that of the next, so does what is counted. If it
    rises and falls in between, it rises as it did before: workers that map a file and end.
    """
    before, after = place - 1, place
    span, rise = resident[after] - resident[before], part[after] - part[before]
    slope = np.divide(rise, span, out=np.full_like(rise, -1.0), where=np.abs(span) >= _LEAST_MOVE)
    known = (slope >= 0) & (slope <= 1) & (sizes >= np.minimum(resident[before], resident[after]))
    known &= sizes - np.maximum(resident[before], resident[after]) <= np.maximum(0.0, span)
    # The rise up to each look, from the lowest one before it.
    lowest = np.array([int(np.argmin(resident[: index + 1])) for index in range(len(resident))])
    length, height = resident - resident[lowest], part - part[lowest]
    usual = np.clip(height / np.maximum(length, 1.0), 0.0, 1.0)[before]
    above = (span < 0) & (sizes > resident[before]) & (length[before] >= _LEAST_MOVE)
    above &= sizes - resident[before] <= 2 * length[before]
    along: Curve = part[before] + np.where(above, usual, slope) * (sizes - resident[before])
    return known | above, along


def _copied(looks: Sequence[Shares]) -> float:
    """The largest part of the pages touched between two looks that were copies; all of them if not known."""
    parts = []
    for before, now in itertools.pairwise(looks):
        touched = (now.minor - before.minor) * _PAGE
        grown = now.proportional[0] - before.proportional[0] - max(0.0, now.resident[0] - before.resident[0])
        if touched >= _LEAST_MOVE:
            parts.append(min(1.0, max(0.0, grown / touched)))
    return max(parts[-4:]) if len(parts) > 1 else 1.0


def _beyond(looks: Sequence[Shares]) -> Curve:
    """The part of new pages, after the last look, that nobody else has: as between the two looks before."""
    shares = []
    for kind in range(3):
        moved = looks[-1].resident[kind] - looks[-2].resident[kind] if len(looks) > 1 else 0.0
        if abs(moved) >= _LEAST_MOVE:
            grown = looks[-1].proportional[kind] - looks[-2].proportional[kind]
            shares.append(min(1.0, max(0.0, grown / moved)))
        else:
            shares.append(1.0)
    return np.array(shares)


def _ratios(look: Shares) -> Curve:
    pairs = zip(look.proportional, look.resident, strict=True)
    return np.array([part / whole if whole else 1.0 for part, whole in pairs])


def _between(times: Curve, details: Sequence[Detail], values: Sequence[float] | Curve) -> Curve:
    """Figures of the details at other times, on straight lines between them; 0 if there are none."""
    return np.interp(times, [detail.time for detail in details], values) if details else np.zeros(len(times))
