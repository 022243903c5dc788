"""Pending results: when they run, in which order, and what they say about the page cache."""

from __future__ import annotations

import pytest

from lowtide._io.pending import Outcome, Pending, combined, every


def test_pending_does_not_run_before_wait() -> None:
    calls: list[int] = []
    pending = Pending(calls.append, 1).then(lambda _: calls.append(2))
    assert calls == []
    pending.wait()
    assert calls == [1, 2]


def test_then_does_not_change_original() -> None:
    one = Pending(abs, -3)
    assert one.then(str).then(len).wait() == 1
    assert one.wait() == 3


def test_then_keeps_done_state() -> None:
    assert Pending.of(1).then(str).done
    assert not Pending(abs, 1).then(str).done


def test_every_is_done_if_all_are_done() -> None:
    assert every([Pending.of(1), Pending.of(2)]).done
    assert not every([Pending.of(1), Pending(abs, -2)]).done
    assert every([Pending.of(1), Pending(abs, -2)]).wait() == [1, 2]


def test_wait_raises_exception_of_task() -> None:
    with pytest.raises(ZeroDivisionError):
        every([Pending.of(1), Pending(divmod, 1, 0)]).wait()


@pytest.mark.parametrize(("late", "total", "cached"), [(0, 0, True), (1, 16, True), (1, 15, False)])
def test_one_late_extent_in_sixteen_counts_as_cached(late: int, total: int, cached: bool) -> None:
    assert Outcome(late, total).cached is cached


def test_outcomes_add_up() -> None:
    assert combined([]) == Outcome(0, 0)
    assert combined([Outcome(1, 2), Outcome(3, 4)]) == Outcome(4, 6)
