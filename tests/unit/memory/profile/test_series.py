"""The curves of a recording, between looks that are rare."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide._memory.profile.recording import Detail, Point, Recording, Shares
from lowtide._memory.profile.verdict import judge

MIB = 2**20


def point(time: float, anon: float, **figures: Any) -> Point:
    return Point(time, 0, 1, int(anon * MIB), 0, 0, 0, 0, 0, 0, 0)._replace(**figures)


def detail(time: float, **figures: Any) -> Detail:
    nothing = Detail(time, 0, (0, 0, 0), (0, 0, 0), {}, 0, 0, 2**40, 0, {}, 0, None, None)
    return nothing._replace(**figures)


def shares(time: float, epoch: int, resident: float, counted: float) -> Shares:
    return Shares(time, epoch, 0, (0.0, resident * MIB, 0.0), (0.0, counted * MIB, 0.0))


def test_base_excludes_data_loaded_before_first_file_sample() -> None:
    """Libraries are mapped at 10 ms; the look at files comes when 60 of 400 MiB are loaded."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(400):
        read = min(max(0, index - 1), 100) * 4
        trace.add(point(index * 0.01, 4 + read, file=(6 if index else 1) * MIB, requested=read * MIB))
    trace.details[:] = [detail(0.0, program=MIB), detail(0.16, program=6 * MIB), detail(3.9, program=6 * MIB)]
    assert judge(trace).base == 10 * MIB
    assert judge(trace).line.startswith("bounded: loads 400 MiB, then flat")


def test_libraries_mapped_after_data_are_not_taken_for_loaded() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):  # 50 MiB of data are mapped from the start, libraries at 0.5 s
        trace.add(point(index * 0.01, 4, file=(55 if index < 50 else 65) * MIB))
    data = {"/data": 50 * MIB}
    trace.details[:] = [
        detail(0.0, program=5 * MIB, mapped=data),
        detail(0.9, program=15 * MIB, mapped=data),
    ]
    program = trace.series().program
    assert program[49] == 5 * MIB
    assert program[50] == 15 * MIB


@pytest.mark.parametrize("replaced", [False, True], ids=["one more", "in place of another"])
def test_forked_process_counts_only_touched_pages(replaced: bool) -> None:
    """Right after a fork the child has all that its parent has; the look comes when it runs a program."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(60):
        epoch = int(index >= 30) + int(index >= 29 and replaced)
        anon = 200 if index == 30 else 110 if index > 30 else 100
        minor = 25_600 + 2_560 * (index > 30)
        processes = 2 if epoch else 1
        trace.add(point(index * 0.01, anon, epoch=epoch, processes=processes, minor=minor))
    part = (110.0 * MIB, 0.0, 0.0)
    trace.shares.add(Shares(0.35, 1 + replaced, 28_160, part, part))
    series = trace.series()
    assert series.total.max() == pytest.approx(110 * MIB, abs=2 * MIB)


def test_immediate_allocation_of_new_process_is_counted() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(60):
        new = int(index >= 30)
        anon, minor = 100 + 300 * new, 25_600 + 76_800 * new
        trace.add(point(index * 0.01, anon, epoch=new, processes=1 + new, minor=minor))
    part = (400.0 * MIB, 0.0, 0.0)
    trace.shares.add(Shares(0.5, 1, 102_400, part, part))
    assert trace.series().total[30] == 400 * MIB


def test_huge_pages_count_more_bytes_per_fault() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(60):
        new = int(index >= 30)
        anon = 2 * index if index < 30 else 360  # 2 MiB per fault, then 300 MiB in 150 faults
        minor = index if index < 30 else 180
        trace.add(point(index * 0.01, anon, epoch=new, processes=1 + new, minor=minor))
    part = (360.0 * MIB, 0.0, 0.0)
    trace.shares.add(Shares(0.5, 1, 180, part, part))
    assert trace.series().total[30] == 360 * MIB


def test_pages_already_counted_add_nothing_between_samples() -> None:
    """Four workers map a file of 1 GiB in any order: first new pages, then ones that others have."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(300):
        resident = min(4000, 1000 + 100 * max(0, index - 100))  # reached soon after the look at 1 s
        trace.add(point(index * 0.01, 0, processes=4, file=resident * MIB))
    for time, resident, counted in ((0.0, 1000, 1000), (1.0, 1000, 1000), (2.99, 4000, 1024)):
        trace.shares.add(shares(time, 0, resident, counted))
    mapped = trace.series().mapped
    assert mapped.max() <= 1025 * MIB


@pytest.mark.parametrize(("part", "highest"), [(1.0, 906), (0.25, 231)])
def test_workers_that_end_between_samples_are_extrapolated(part: float, highest: float) -> None:
    """The last look before the end was at 500 of 900 MiB, the next one when all was unmapped."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        resident = 60 + (10 * index if index <= 90 else 0)  # libraries of 6 MiB in ten processes
        trace.add(point(index * 0.01, 0, processes=4, file=resident * MIB))
    for time, mapped in ((0.0, 0), (0.25, 250), (0.5, 500), (0.95, 0)):
        trace.shares.add(shares(time, 0, 60 + mapped, 6 + part * mapped))
    assert trace.series().mapped.max() == pytest.approx(highest * MIB, rel=0.01)


def test_copied_pages_are_interpolated_over_time() -> None:
    """Two processes come to have 50 MiB each that the other lacks; resident memory rises by 2 MiB at once."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        trace.add(point(index * 0.01, 100 if index == 0 else 102, processes=2))
    for time, resident, counted in ((0.0, 100, 50), (0.99, 102, 102)):
        parts = (resident * MIB, 0.0, 0.0), (counted * MIB, 0.0, 0.0)
        trace.shares.add(Shares(time, 0, 0, *parts))
    assert trace.series().heap[50] == pytest.approx(77 * MIB, rel=0.05)


def test_rise_far_above_all_samples_is_not_extrapolated() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        resident = 2 if index < 20 else 4 if index < 50 else 400 if index < 90 else 0
        trace.add(point(index * 0.01, 0, processes=4, file=resident * MIB))
    for time, resident, counted in ((0.0, 2, 2), (0.3, 4, 2), (0.95, 0, 0)):  # 2 MiB that nobody counts
        trace.shares.add(shares(time, 0, resident, counted))
    assert trace.series().mapped.max() >= 100 * MIB


def test_spike_between_share_samples_is_kept() -> None:
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        resident = 900 if index == 50 else 500 + index // 50 * 2
        trace.add(point(index * 0.01, 0, processes=2, file=resident * MIB))
    trace.shares.add(shares(0.0, 0, 500, 500))
    trace.shares.add(shares(0.99, 0, 502, 500))
    assert trace.series().mapped.max() >= 890 * MIB


def written(memory: float, step: float = 20.0) -> Recording:
    """A command that writes 400 MiB to no device while memory file systems rise by ``memory`` as much."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(200):
        trace.add(point(index * 0.02, 10, written=int(2 * index * MIB)))
    for look in range(0, 200, round(step)):
        trace.details.add(detail(look * 0.02, memory_used=int(2 * look * memory * MIB)))
    return trace


def test_tmpfs_that_rises_in_step_with_writes_is_the_cause() -> None:
    verdict = judge(written(1.0))
    assert verdict.cause == "shared memory / tmpfs"
    assert verdict.per_second == pytest.approx(100 * MIB, rel=0.1)


def test_tmpfs_files_removed_at_end_are_still_the_cause() -> None:
    trace = written(1.0)
    trace.add(trace.points[-1]._replace(time=4.0))
    trace.details.add(detail(4.0))
    assert judge(trace).cause == "shared memory / tmpfs"


@pytest.mark.parametrize(("memory", "step"), [(0.8, 20.0), (1.3, 20.0), (1.0, 60.0)])
def test_tmpfs_that_rises_out_of_step_with_writes_is_unclear(memory: float, step: float) -> None:
    """Not as much, or too few looks."""
    assert judge(written(memory, step)).state == "unclear"


def test_file_mapped_after_the_last_look_is_not_limited_by_the_files_before() -> None:
    """Workers that import for a while, then map 800 MiB and end before another look at files."""
    trace = Recording(["x"], 1, 0.0, 0.01)
    for index in range(100):
        mapped = 20 + 40 * max(0, index - 80)
        trace.add(point(index * 0.01, 100, processes=4, file=mapped * MIB))
    sizes = {"code": 20 * MIB, "code_size": 20 * MIB, "program": 20 * MIB, "data_size": MIB}
    trace.details[:] = [detail(time, **sizes) for time in (0.1, 0.5)]
    curve = trace.series().mapped
    assert curve[50] == 20 * MIB
    assert curve[-1] == 780 * MIB
