"""Prefetching: in order, never more than allowed, never in silence, and no thread left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from lowtide.prefetch import Prefetcher


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lowtide-prefetch")]


def assert_no_thread() -> None:
    """Threads end a moment after they are told to."""
    if threads():
        gc.collect()
    for thread in threads():
        thread.join(10)
    assert not threads()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    assert_no_thread()
    yield
    assert_no_thread()


@pytest.mark.parametrize("depth", [0, 1, 3, 20])
@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 10), (7, 10), (10, 10)])
def test_items_come_in_order(depth: int, start: int, stop: int) -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number * number

    items = Prefetcher(make, start, stop, depth)
    assert [items.next() for _ in range(start, stop)] == [i * i for i in range(start, stop)]
    assert made == list(range(start, stop))
    assert items.position == stop
    with pytest.raises(IndexError, match=f"item {stop} of {stop}"):
        items.next()
    items.close()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_never_further_ahead_than_allowed(depth: int) -> None:
    made: list[int] = []
    items = Prefetcher(lambda i: made.append(i), 0, 100, depth)
    assert not made
    for i in range(20):
        items.next()
        deadline = time.monotonic() + 10
        while len(made) < i + 1 + depth and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(made) == i + 1 + depth
    items.close()


def test_without_depth_there_is_no_thread() -> None:
    ids = []
    items = Prefetcher(lambda i: ids.append(threading.get_ident()), 0, 5, 0)
    items.next()
    assert ids == [threading.get_ident()]
    assert not threads()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_belongs_to_its_item_and_asking_again_tries_again(depth: int) -> None:
    attempts: list[int] = []

    def make(number: int) -> int:
        attempts.append(number)
        if number == 3 and attempts.count(3) < 3:
            raise ValueError("the third") from KeyError("because")
        return number

    items = Prefetcher(make, 0, 8, depth)
    assert [items.next() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="the third") as caught:
            items.next()
        assert isinstance(caught.value.__cause__, KeyError)
        assert "make" in [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert items.position == 3
    assert [items.next() for _ in range(5)] == [3, 4, 5, 6, 7]
    items.close()


def test_what_was_queued_behind_an_error_is_not_made_for_nothing() -> None:
    made: list[int] = []
    failed = threading.Event()

    def make(number: int) -> int:
        made.append(number)
        if number == 0 and made.count(0) == 1:
            raise ValueError("first")
        if number == 1:
            failed.wait(10)
        return number

    items = Prefetcher(make, 0, 50, 8)
    with pytest.raises(ValueError, match="first"):
        items.next()
    failed.set()
    assert [items.next() for _ in range(3)] == [0, 1, 2]
    items.close()
    assert made.count(7) <= 1


@pytest.mark.parametrize("depth", [1, 3])
def test_an_interrupt_of_the_wait_loses_nothing(depth: int) -> None:
    items = Prefetcher(lambda i: i, 0, 10, depth)
    items.next()
    with (
        mock.patch("concurrent.futures.Future.result", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        items.next()
    assert [items.next() for _ in range(9)] == list(range(1, 10))
    items.close()


class Interrupting:
    """A queue whose ``popleft`` is done, and then a signal arrives."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def popleft(self) -> None:
        self.inner.popleft()
        raise KeyboardInterrupt


@pytest.mark.parametrize("depth", [1, 3])
def test_an_interrupt_between_taking_and_counting_shifts_nothing(depth: int) -> None:
    items = Prefetcher(lambda i: i, 0, 10, depth)
    items.next()
    ahead: Any = items._ahead
    items._ahead = Interrupting(ahead)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        items.next()
    items._ahead = ahead
    position = items.position
    assert [items.next() for _ in range(10 - position)] == list(range(position, 10))
    items.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test itself moves on."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_what_takes_no_waiting_is_made_at_once_and_the_rest_by_the_thread(
    clock: list[float], depth: int
) -> None:
    tried: list[int] = []
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    def at_once(number: int) -> int | None:
        tried.append(number)
        clock[0] += 1
        return number if number < 4 else None

    items = Prefetcher(make, 0, 10, depth, at_once=at_once)
    assert [items.next() for _ in range(4)] == [0, 1, 2, 3]
    assert not made
    assert not threads()
    assert [items.next() for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    assert tried == [0, 1, 2, 3, 4]
    assert made == [4, 5, 6, 7, 8, 9]
    items.close()


def test_for_a_slow_consumer_the_thread_works_ahead(clock: list[float]) -> None:
    tried: list[int] = []

    def at_once(number: int) -> int:
        tried.append(number)
        clock[0] += 1
        return number

    items = Prefetcher(lambda i: i, 0, 10, 1, at_once=at_once)
    assert [items.next(), items.next()] == [0, 1]
    clock[0] += 2  # the consumer took longer than an item does
    assert [items.next() for _ in range(8)] == list(range(2, 10))
    assert tried == [0, 1]
    items.close()


def test_an_error_at_once_is_the_items_own(clock: list[float]) -> None:
    fails = [True]

    def at_once(number: int) -> int:
        clock[0] += 1
        if number == 2 and fails:
            fails.clear()
            raise ValueError("the second")
        return number

    items = Prefetcher(lambda i: -i, 0, 3, 1, at_once=at_once)
    assert [items.next(), items.next()] == [0, 1]
    with pytest.raises(ValueError, match="the second"):
        items.next()
    assert items.position == 2
    assert abs(items.next()) == 2
    items.close()


def test_closing_ends_the_thread_and_waits_for_the_item_under_way() -> None:
    running, ended = threading.Event(), []

    def make(number: int) -> int:
        if number == 1:
            running.set()
            time.sleep(0.1)
            ended.append(number)
        return number

    items = Prefetcher(make, 0, 10, 2)
    items.next()
    assert running.wait(10)
    items.close()
    assert ended == [1]
    assert not threads()
    items.close()


def test_dropping_ends_the_thread() -> None:
    items = Prefetcher(lambda i: i, 0, 10, 2)
    items.next()
    assert threads()
    [thread] = threads()
    del items
    thread.join(10)  # without the garbage collector
    assert not thread.is_alive()


def in_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_forked_child_goes_on_where_the_parent_stood(depth: int) -> None:
    items = Prefetcher(lambda i: (i, os.getpid()), 0, 10, depth)
    items.next()
    items.next()
    assert in_child(lambda: [items.next() for _ in range(8)] == [(i, os.getpid()) for i in range(2, 10)])
    assert [items.next()[0] for _ in range(8)] == list(range(2, 10))
    items.close()


def test_a_forked_child_may_close_what_it_never_used() -> None:
    items = Prefetcher(lambda i: i, 0, 10, 3)
    items.next()
    assert in_child(lambda: not items.close())  # type: ignore[func-returns-value]
    assert items.next() == 1
    items.close()
