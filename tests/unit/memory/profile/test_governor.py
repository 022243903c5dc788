"""What looks may cost, and when they are worth it."""

from __future__ import annotations

import threading
import time

import pytest

from lowtide._memory.profile import governor, profiler
from lowtide._memory.profile.governor import Aside, Governor, Trigger
from lowtide._memory.profile.recording import Point

MIB = 2**20
START = Point(1.0, 0, 2, 100 * MIB, 50 * MIB, 0, 0, 0, 0, 0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(governor.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    return now


def test_unspent_credit_is_kept(clock: list[float]) -> None:
    account = Governor(part=0.01, advance=0.1, early=0.05)
    clock[0] += 60
    assert account.credit() == pytest.approx(0.1 + 10 * 0.05 + 60 * 0.01)
    account.spent += 1.4
    assert account.credit() < 0
    assert account.debt() == pytest.approx(20)
    clock[0] += 21
    assert account.debt() < 0


def test_cost_of_one_hour_stays_within_its_share(clock: list[float]) -> None:
    account = Governor(part=0.002, advance=0.03, early=0.02)
    while clock[0] < 3700:
        if account.credit() > 0:
            account.spent += 0.05  # an expensive look
        clock[0] += 0.025
    assert account.spent <= 3600 * 0.002 + 0.03 + 0.2 + 0.05


@pytest.mark.parametrize(
    ("change", "due"),
    [
        ({}, False),
        ({"anon": 103 * MIB}, False),
        ({"anon": 105 * MIB}, True),
        ({"file": 40 * MIB}, True),
        ({"minor": 1500}, True),
        ({"minor": 500}, False),
        ({"epoch": 1}, True),
        ({"written": 64 * MIB}, False),
    ],
)
def test_shares_are_due_when_memory_changed(change: dict[str, int], due: bool) -> None:
    trigger = Trigger(shares=True)
    assert trigger.due(START, 0.0), "the first look"
    trigger.taken(START)
    assert trigger.due(START._replace(time=1.1, **change), 0.001) is due
    assert not trigger.due(START._replace(time=1.1, **change), 0.05), "it would cost more than it tells"


@pytest.mark.parametrize("is_of_shares", [False, True], ids=["files", "shares"])
def test_look_without_credit_needs_memory_half_as_large_again(is_of_shares: bool) -> None:
    trigger = Trigger(shares=is_of_shares)
    trigger.taken(START)
    assert not trigger.pressing(START._replace(file=113 * MIB)), "63 MiB more"
    assert trigger.pressing(START._replace(file=200 * MIB))
    trigger.taken(START._replace(file=1000 * MIB))
    trigger.taken(START)  # memory that was seen once is not new again
    assert not trigger.pressing(START._replace(file=1400 * MIB))
    assert trigger.pressing(START._replace(file=1700 * MIB))


def test_looks_without_credit_are_few_however_much_memory_there_is() -> None:
    trigger, looks = Trigger(shares=False), 0
    for gib in range(4096):
        point = START._replace(file=gib * 2**30)
        if trigger.pressing(point):
            trigger.taken(point)
            looks += 1
    assert 10 < looks < 25


@pytest.mark.parametrize(
    ("change", "due"),
    [
        ({}, False),
        ({"anon": 900 * MIB}, False),
        ({"file": 60 * MIB}, True),
        ({"shared": 9 * MIB}, True),
        ({"written": 9 * MIB}, True),
        ({"written": 9 * MIB, "stored": 9 * MIB}, False),
        ({"time": 1.4}, True),
    ],
)
def test_files_are_due_when_mapped_or_memory_file_bytes_rise(change: dict[str, float], due: bool) -> None:
    trigger = Trigger(shares=False)
    trigger.taken(START)
    assert trigger.due(START._replace(**{"time": 1.1, **change}), 0.001) is due  # type: ignore[arg-type]


def test_background_sample_does_not_block() -> None:
    aside, wait = Aside(Governor(0.01, 1.0)), threading.Event()
    aside.start(lambda: wait.wait(5) and "seen")
    assert aside.busy
    assert aside.collect() is None
    wait.set()
    assert (aside.collect(wait=5), aside.busy, aside.collect()) == ("seen", False, None)


def test_cost_of_background_sample_is_its_cpu_time() -> None:
    aside = Aside(Governor(0.01, 1.0))
    aside.start(lambda: time.sleep(0.05))
    aside.collect(wait=5)
    assert aside.governor.spent < 0.04, "waiting costs nothing"


def test_look_is_taken_without_credit_when_memory_has_grown_by_half(clock: list[float]) -> None:
    aside, trigger, looks = Aside(Governor(part=0.001, advance=-1.0)), Trigger(shares=False), []
    trigger.taken(START)
    for mapped in (60, 200):
        point = START._replace(time=2.0, file=mapped * MIB)
        profiler._start_if_due(aside, trigger, point, lambda: looks.append(1))
        aside.collect(wait=5.0)
        assert len(looks) == (mapped == 200), "the first is due, and not paid for"
