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
        mapped = np.minimum(mapped, np.where(now.processes > 1, most, np.inf))
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
    program = column(lambda detail: detail.program or detail.code)
    return Series(now.time, read, anon, mapped, shared, cache, now.major, now.device, program, unseen)


def _unmapped_memory(
    details: Sequence[Detail], now: Any, column: Callable[[Callable[[Detail], float]], Curve]
) -> Curve:
    """Bytes of files in memory file systems that are not mapped.

    Files that are closed at once are missed by most looks. If one was seen, then what the file systems have
    risen by is the command's, as far as it wrote as much to no device.
    """
    seen = column(lambda detail: max(0, sum(detail.memory_files.values()) - detail.tmpfs))
    if not any(detail.memory_files for detail in details):
        return seen
    risen = column(lambda detail: detail.memory_used - details[0].memory_used - detail.tmpfs)
    nowhere = now.written - now.stored
    unmapped: Curve = np.maximum(seen, np.minimum(risen, nowhere - nowhere[0]))
    return unmapped


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
    start = 0
    for epoch, group in itertools.groupby(now.epoch):
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
        hidden = np.maximum(0.0, sizes[0, here] - counted[0])
        unseen[here] = np.where(several[here], np.minimum(since, hidden), 0.0)
        sizes[:, here] = np.where(several[here], counted, sizes[:, here])
    return sizes, unseen


def _between_looks(times: Curve, sizes: Curve, minor: Curve, looks: Sequence[Shares]) -> Curve:
    at = [look.time for look in looks]
    whole = np.array([np.interp(times, at, [look.resident[kind] for look in looks]) for kind in range(3)])
    part = np.array([np.interp(times, at, [look.proportional[kind] for look in looks]) for kind in range(3)])
    share = np.divide(part, whole, out=np.ones_like(part), where=whole != 0)
    moved = sizes - whole
    after = times > at[-1]
    if after.any():
        share[:, after] = _beyond(looks)[:, None]
        # Copies of shared pages: resident memory stays, faults tell of them.
        if len(looks) > 1 and (faults := looks[-1].minor - looks[-2].minor) > 0:
            grown = looks[-1].proportional[0] - looks[-2].proportional[0]
            grown -= looks[-1].resident[0] - looks[-2].resident[0]
            part[0, after] += np.clip(grown / faults, 0.0, _PAGE) * (minor[after] - looks[-1].minor)
    counted: Curve = np.minimum(np.maximum(0.0, part + share * moved), sizes)
    return counted


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
