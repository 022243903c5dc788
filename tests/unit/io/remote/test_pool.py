"""Tasks that are waited for together, and the bytes that they may hold."""

from __future__ import annotations

import threading
import time

import pytest

from lowtide._io.remote import pool
from lowtide._io.remote.pool import Batch, Budget, Trimmer, call
from lowtide.errors import ReadError


def test_every_task_runs() -> None:
    done: list[int] = []
    Batch([lambda _, i=i: done.append(i) for i in range(100)]).wait(10, "x")  # type: ignore[misc]
    assert sorted(done) == list(range(100))
    Batch([]).wait(10, "x")


def test_batch_starts_at_most_given_threads() -> None:
    pool.forget()
    try:
        names: set[str] = set()
        together = threading.Barrier(3)

        def work(_: Batch) -> None:
            together.wait(10)
            names.add(threading.current_thread().name + str(threading.get_ident()))

        Batch([work] * 9, threads=3).wait(10, "x")
        assert len(names) == len(pool._RUNNING) == 3
    finally:
        pool._end_all()
        pool._ENDING = False
        pool.forget()


def test_first_error_ends_the_batch() -> None:
    ran: list[int] = []

    def fail(_: Batch) -> None:
        raise ValueError("first")

    def work(_: Batch) -> None:
        time.sleep(0.001)
        ran.append(1)

    batch = Batch([fail, *[work] * 500])
    with pytest.raises(ValueError, match="first"):
        batch.wait(10, "x")
    assert len(ran) < 500
    assert batch.cancelled


def test_call_without_answer_times_out() -> None:
    release = threading.Event()
    with pytest.raises(ReadError, match="s3://b/k: no answer") as caught:
        call(release.wait, 10, seconds=0.05, address="s3://b/k")
    assert caught.value.filename == "s3://b/k"
    release.set()


def test_nothing_is_copied_after_cancel() -> None:
    copied: list[int] = []
    batch = Batch([])
    batch.guarded(lambda: copied.append(1))
    batch.cancel()
    batch.guarded(lambda: copied.append(2))
    assert copied == [1]


def test_malloc_is_trimmed_once_per_interval() -> None:
    trimmer, calls = Trimmer(interval=10), list[int]()
    trimmer._trim = lambda pad: len(calls.__iadd__([pad]))
    for _ in range(7):
        trimmer.count(4)
    assert calls == [0, 0]


def test_call_returns_and_raises() -> None:
    assert call(pow, 2, 5, seconds=10, address="x") == 32
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 // 0, seconds=10, address="x")


def test_budget_waits_for_room() -> None:
    budget, order = Budget(), []
    budget.acquire(10, 16)

    def other() -> None:
        budget.acquire(10, 16)
        order.append("acquired")

    thread = threading.Thread(target=other)
    thread.start()
    time.sleep(0.02)
    order.append("released")
    budget.release(10)
    thread.join()
    assert order == ["released", "acquired"]
    assert budget.most == 10
    budget.release(10)
    budget.acquire(100, 16)  # one may always be under way
    assert budget.used == 100
