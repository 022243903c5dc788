"""Workers that end: what they release is missed only if all of them had started before."""

from __future__ import annotations

import pytest

from lowtide._memory.profile import ending
from lowtide._memory.profile.recording import Point, Recording, Shares
from lowtide._memory.profile.verdict import judge

MIB = 2**20


def pools(first: int, second: int) -> Recording:
    """Two workers from 0.5 to 5 s, two more up to 10 s; a pool grows by so many MiB per look, then ends."""
    trace = Recording(["x"], 1, 0.0, 0.05)
    for index in range(230):
        pool = 0 if index < 100 else 1
        works = 10 <= index < 100 or 101 <= index < 200
        size = (index - (10, 101)[pool]) * (first, second)[pool] * MIB if works else 0
        point = Point(index * 0.05, pool, 3 if works else 1, size + 5 * MIB, 0, 0, 0, 0, 0, 0, index * 10**5)
        trace.add(point)
        whole = (float(point.anon), 0.0, 0.0)
        trace.shares.add(Shares(point.time, pool, point.minor, whole, whole))
    return trace


def test_memory_of_consecutive_pools_is_not_summed() -> None:
    trace = pools(4, 4)
    series = trace.series()
    assert ending.risen_in_workers(trace, series, 0) > 0  # or the question would not arise
    kept, stop = ending.as_if_workers_stayed(trace, series)
    assert kept is series
    assert stop == len(series.time)
    assert judge(trace).state == "unclear"


def test_memory_of_workers_of_one_pool_is_summed() -> None:
    trace = Recording(["x"], 1, 0.0, 0.05)
    for index in range(200):  # four workers that end at 5, 6, 7 and 9.5 s
        sizes = [min(index, end) * MIB if index < end else 0 for end in (100, 120, 140, 190)]
        processes = 1 + sum(size > 0 for size in sizes)
        trace.add(Point(index * 0.05, processes, processes, sum(sizes), 0, 0, 0, 0, 0, 0, index * 10**5))
        whole = (float(sum(sizes)), 0.0, 0.0)
        trace.shares.add(Shares(index * 0.05, processes, index * 10**5, whole, whole))
    series = trace.series()
    kept, stop = ending.as_if_workers_stayed(trace, series)
    assert stop == 190
    assert kept.total[stop - 1] == pytest.approx((99 + 119 + 139 + 189) * MIB, rel=0.02)
    assert judge(trace).grows
