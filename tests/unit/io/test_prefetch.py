"""Prefetching: in order, never more than allowed, never in silence, and no thread left behind."""

from __future__ import annotations

import pickle
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher, _Requests
from tests.support.threads import assert_no_thread, threads


def later(make: Callable[[int], Any]) -> Callable[[int], Pending[Any]]:
    """Submits nothing before it is waited for."""
    return lambda number: Pending(make, number)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    assert_no_thread()
    yield
    assert_no_thread()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test itself moves on."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("depth", [0, 1, 3, 20])
@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 10), (7, 10), (10, 10)])
def test_items_come_in_order(depth: int, start: int, stop: int) -> None:
    numbers: list[int] = []

    def make(number: int) -> int:
        numbers.append(number)
        return number * number

    items = Prefetcher(later(make), start, stop, depth)
    assert [items.next() for _ in range(start, stop)] == [i * i for i in range(start, stop)]
    assert numbers == list(range(start, stop))
    assert items.position == stop
    with pytest.raises(StopIteration):
        items.next()
    items.close()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_prefetch_never_exceeds_depth(depth: int) -> None:
    numbers: list[int] = []
    items = Prefetcher(later(lambda i: numbers.append(i)), 0, 100, depth)
    assert not numbers
    for i in range(20):
        items.next()
        deadline = time.monotonic() + 10
        while len(numbers) < i + 1 + depth and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(numbers) == i + 1 + depth
    items.close()


def test_depth_zero_starts_no_thread() -> None:
    ids = []
    items = Prefetcher(later(lambda i: ids.append(threading.get_ident())), 0, 5, 0)
    items.next()
    assert ids == [threading.get_ident()]
    assert not threads()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_error_is_raised_for_its_item_and_retried(depth: int) -> None:
    attempts: list[int] = []

    def make(number: int) -> int:
        attempts.append(number)
        if number == 3 and attempts.count(3) < 3:
            raise ValueError("the third") from KeyError("because")
        return number

    items = Prefetcher(later(make), 0, 8, depth)
    assert [items.next() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="the third") as caught:
            items.next()
        assert isinstance(caught.value.__cause__, KeyError)
        assert "make" in [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert items.position == 3
    assert [items.next() for _ in range(5)] == [3, 4, 5, 6, 7]
    items.close()


def test_items_queued_behind_error_are_not_computed() -> None:
    numbers: list[int] = []
    failed = threading.Event()

    def make(number: int) -> int:
        numbers.append(number)
        if number == 0 and numbers.count(0) == 1:
            raise ValueError("first")
        if number == 1:
            failed.wait(10)
        return number

    items = Prefetcher(later(make), 0, 50, 8)
    with pytest.raises(ValueError, match="first"):
        items.next()
    failed.set()
    assert [items.next() for _ in range(3)] == [0, 1, 2]
    items.close()
    assert numbers.count(7) <= 1


class Interrupted:
    """A queue of results at which a signal arrives, before an item was taken or just after."""

    def __init__(self, inner: Any, *, taken: bool) -> None:
        self.inner = inner
        self.taken = taken
        self.empty, self.put = inner.empty, inner.put

    def get(self) -> None:
        if self.taken:
            self.inner.get()
        raise KeyboardInterrupt


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_interrupted_wait_loses_no_item(depth: int, taken: bool) -> None:
    items = Prefetcher(later(lambda i: i), 0, 10, depth)
    items.next()
    assert items._worker is not None
    items._worker.results = Interrupted(items._worker.results, taken=taken)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        items.next()
    assert [items.next() for _ in range(9)] == list(range(1, 10))
    items.close()


def test_interrupted_thread_ends_before_next_one_works() -> None:
    at_work: list[int] = []

    def make(number: int) -> int:
        at_work.append(number)
        assert len(at_work) == 1
        time.sleep(0.02)
        at_work.clear()
        return number

    items = Prefetcher(later(make), 0, 10, 3)
    items.next()
    assert items._worker is not None
    items._worker.results = Interrupted(items._worker.results, taken=False)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        items.next()
    assert [items.next() for _ in range(9)] == list(range(1, 10))
    items.close()


def test_sigint_interrupts_wait() -> None:
    proceed = threading.Event()

    def make(number: int) -> int:
        if number == 1 and not proceed.is_set():
            proceed.wait(10)
        return number

    items = Prefetcher(later(make), 0, 3, 1)
    assert items.next() == 0
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        items.next()
    proceed.set()
    assert [items.next(), items.next()] == [1, 2]
    items.close()


def test_allowed_items_are_submitted_before_first_wait() -> None:
    events: list[str] = []
    requested = threading.Event()

    def finish(number: int) -> int:
        events.append(f"wait {number}")
        return number

    def submit(number: int) -> Pending[int]:
        if number:
            requested.wait(10)  # until the consumer has asked for all that it may
        events.append(f"submit {number}")
        return Pending(finish, number)

    items = Prefetcher(submit, 0, 3, 3)
    threading.Timer(0.05, requested.set).start()
    assert [items.next() for _ in range(3)] == [0, 1, 2]
    assert events == ["submit 0", "submit 1", "submit 2", "wait 0", "wait 1", "wait 2"]
    items.close()


def test_done_items_are_handed_over_before_next_submit(clock: list[float]) -> None:
    submitted: list[int] = []
    proceed = threading.Event()
    waits: list[bool] = []

    def submit(number: int) -> Pending[int]:
        submitted.append(number)
        if number == 1:
            return Pending(int, number)  # not done: from here on by the thread
        if number == 5:
            waits.append(proceed.wait(60))
        return Pending.of(number)

    items = Prefetcher(submit, 0, 10, 3)
    assert [items.next() for _ in range(5)] == [0, 1, 2, 3, 4]
    proceed.set()
    assert [items.next() for _ in range(5)] == [5, 6, 7, 8, 9]
    assert waits == [True]  # items 2 to 4, which were done, did not wait for item 5
    assert submitted == list(range(10))
    items.close()


@pytest.mark.parametrize("in_submit", [True, False])
def test_error_in_submit_or_wait_is_raised_for_its_item(in_submit: bool) -> None:
    fails = [True]

    def fail(number: int) -> int:
        if number == 2 and fails:
            fails.clear()
            raise ValueError("the second")
        return number

    def submit(number: int) -> Pending[int]:
        if in_submit:
            fail(number)
        return Pending(fail, number)

    items = Prefetcher(submit, 0, 5, 4)
    assert [items.next(), items.next()] == [0, 1]
    with pytest.raises(ValueError, match="the second") as caught:
        items.next()
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert ("submit" in names) is in_submit
    assert "fail" in names
    assert [items.next() for _ in range(3)] == [2, 3, 4]
    items.close()


def test_thread_keeps_no_reference_to_delivered_item() -> None:
    class Item:
        pass

    items = Prefetcher(later(lambda i: Item()), 0, 2, 1)
    item = items.next()
    items.next()
    seen = weakref.ref(item)
    del item
    assert seen() is None
    items.close()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_only_items_not_done_use_thread(clock: list[float], depth: int) -> None:
    callers: list[threading.Thread] = []

    def submit(number: int) -> Pending[int]:
        callers.append(threading.current_thread())
        clock[0] += 1
        return Pending(int, number, done=number < 4)

    items = Prefetcher(submit, 0, 10, depth)
    assert [items.next() for _ in range(4)] == [0, 1, 2, 3]
    assert not threads()
    assert [items.next() for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    own = [caller is threading.current_thread() for caller in callers]
    assert own == [not depth or number <= 4 for number in range(10)]
    items.close()


def test_thread_works_ahead_for_slow_consumer(clock: list[float]) -> None:
    direct: list[int] = []

    def submit(number: int) -> Pending[int]:
        if threading.current_thread() is threading.main_thread():
            direct.append(number)
        clock[0] += 1
        return Pending.of(number)

    items = Prefetcher(submit, 0, 20, 1)
    for late in (False, True, True, False, True, True):  # to be late now and then does not matter
        clock[0] += 2 if late else 0
        items.next()
    assert direct == list(range(6))
    clock[0] += 2  # the third time in a row that it took longer than an item does
    assert [items.next() for _ in range(14)] == list(range(6, 20))
    assert direct == list(range(6))
    items.close()


def test_error_without_thread_is_raised_for_its_item(clock: list[float]) -> None:
    fails = [True]

    def submit(number: int) -> Pending[int]:
        clock[0] += 1
        if number == 2 and fails:
            fails.clear()
            raise ValueError("the second")
        return Pending.of(number)

    items = Prefetcher(submit, 0, 3, 1)
    assert [items.next(), items.next()] == [0, 1]
    with pytest.raises(ValueError, match="the second"):
        items.next()
    assert items.position == 2
    assert items.next() == 2
    items.close()


def test_close_ends_thread_and_waits_for_running_item() -> None:
    running, ended = threading.Event(), []

    def make(number: int) -> int:
        if number == 1:
            running.set()
            time.sleep(0.1)
            ended.append(number)
        return number

    items = Prefetcher(later(make), 0, 10, 2)
    items.next()
    assert running.wait(10)
    items.close()
    assert ended == [1]
    assert not threads()
    items.close()


def test_dropping_ends_the_thread() -> None:
    items = Prefetcher(later(lambda i: i), 0, 10, 2)
    items.next()
    assert threads()
    [thread] = threads()
    del items
    thread.join(10)  # without the garbage collector
    assert not thread.is_alive()


def test_thread_is_not_used_if_consumer_only_waits() -> None:
    """And comes back to it when it has something to do; no item is lost or doubled on the way."""
    threads: list[str] = []

    def submit(number: int) -> Pending[int]:
        threads.append(threading.current_thread().name)
        time.sleep(0.0005)
        return Pending.of(number)

    items = Prefetcher(submit, 0, 10**6, depth=2)
    here = threading.current_thread().name
    position = 0

    def take_until(name: str, pause: float) -> None:
        nonlocal position
        for _ in range(5000):
            assert items.next() == position
            position += 1
            if threads[-1] == name:
                return
            time.sleep(pause)
        raise AssertionError(f"still in {threads[-1]}")

    for _ in range(2):
        take_until("lowtide-prefetch", 0.005)
        for _ in range(5):
            assert items.next() == position
            position += 1
        take_until(here, 0)
    items.close()


def test_unwoken_thread_polls_then_sleeps() -> None:
    requests: _Requests[int] = _Requests()
    requests.pause = 0.001
    taken: list[object] = []

    def take() -> None:
        while (item := requests.get(block=True)) is not None:
            taken.append(item)

    thread = threading.Thread(target=take)
    thread.start()
    requests.put(1, wake=False)
    deadline = time.monotonic() + 10
    while not (taken == [1] and requests._asleep) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert requests._asleep  # nothing came: it does not look for ever
    requests.put(2, wake=False)  # whoever finds it asleep wakes it
    requests.put(None, wake=False)
    thread.join(10)
    assert not thread.is_alive()
    assert taken == [1, 2]


@pytest.mark.parametrize("together", [1, 3, 8])
def test_independent_items_are_finished_together(together: int) -> None:
    waited: list[int] = []

    def finish(number: int) -> int:
        waited.append(number)
        return number * number

    def submit(number: int) -> Pending[int]:
        return Pending(finish, number, done=True, beside=True)

    squares = Prefetcher(submit, 2, 12, depth=2, together=together)
    assert squares.next() == 4
    assert sorted(waited) == list(range(2, 2 + together))
    copy = pickle.loads(pickle.dumps(squares.__getstate__() | {"_submit": None}))
    assert "_finished" not in copy
    assert [squares.next_numbered() for _ in range(9)] == [(i, i * i) for i in range(3, 12)]
    assert sorted(waited) == list(range(2, 12))  # each once
    with pytest.raises(StopIteration):
        squares.next()
    squares.close()


def test_dependent_items_are_not_finished_together() -> None:
    waited: list[int] = []
    numbers = Prefetcher(lambda i: Pending(waited.append, i, done=True), 0, 8, depth=2, together=8)
    numbers.next()
    assert waited == [0]
    numbers.close()


def test_error_of_items_finished_together_is_raised_and_retried() -> None:
    fail = [True]

    def finish(number: int) -> int:
        if number == 2 and fail:
            raise OSError("gone")
        return number

    numbers = Prefetcher(lambda i: Pending(finish, i, done=True, beside=True), 0, 6, depth=2, together=4)
    with pytest.raises(OSError, match="gone"):
        numbers.next()
    fail.clear()
    assert [numbers.next() for _ in range(6)] == list(range(6))
    numbers.close()
