"""What a container is charged for, from made-up looks."""

from __future__ import annotations

import pytest

from lowtide._memory.profile.recording import Charges, Point, Recording
from lowtide._memory.profile.verdict import judge

MIB, GIB = 2**20, 2**30


def recorded(curves: dict[str, list[float]], limit: int | None = GIB) -> Recording:
    """A process that reads and stays small, in a container whose charges follow ``curves``, in MiB."""
    trace = Recording(["x"], 1, 0.0, 0.01, limit=limit)
    for index in range(200):
        trace.add(Point(index * 0.01, 0, 1, 10 * MIB, 0, 0, 0, index * 16 * MIB, 0, 0, 0))
        figures = {name: int(curve[index] * MIB) for name, curve in curves.items()}
        kept = 10 * MIB + figures.get("shared", 0) + figures.get("kernel", 0)
        usual = {
            "heap": 10 * MIB,
            "shared": 0,
            "kernel": 0,
            "unwritten": 0,
            "working_set": kept,
            "usage": kept,
        }
        trace.charges.add(Charges(index * 0.01, **{**usual, **figures}))
    return trace


RISING = [2.0 * index for index in range(200)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("shared", "grows: 199.9 MiB per second, shared memory / tmpfs"),
        ("kernel", "grows: 199.9 MiB per second, kernel memory"),
    ],
)
def test_memory_outside_processes_is_growth_under_limit(name: str, line: str) -> None:
    assert judge(recorded({name: RISING})).line == line
    assert judge(recorded({name: RISING}, limit=None)).state == "bounded"


def test_working_set_that_rises_in_the_second_epoch_grows() -> None:
    """Epoch 1 is inactive, epoch 2 makes it active, epoch 3 changes nothing."""
    active = [10 + min(max(0, index - 66), 67) * 8.0 for index in range(200)]
    verdict = judge(recorded({"working_set": active}))
    assert verdict.cause == "page cache"
    assert verdict.line.startswith("grows since 0.7 s: 51")
    assert verdict.line.endswith(" MiB per GiB read, page cache; +536.0 MiB in the working set")


def test_inactive_page_cache_does_not_grow() -> None:
    assert judge(recorded({"usage": [10 + index * 4.0 for index in range(200)]})).state == "bounded"


def test_active_page_cache_of_a_small_file_does_not_grow() -> None:
    small = [10 + min(index, 30) * 1.0 for index in range(200)]
    assert judge(recorded({"working_set": small})).state == "bounded"
    early = [10 + min(index, 20) * 10.0 for index in range(200)]
    assert judge(recorded({"working_set": early})).state == "bounded", "what the program works on"


def test_unwritten_pages_are_reported() -> None:
    assert judge(recorded({"unwritten": RISING})).line.endswith("; written, not yet on disk +398 MiB")
