"""Processes that do the tasks of ``prepare``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from lowtide._prepare.executors import Processes


@pytest.fixture
def pool() -> Iterator[Processes]:
    processes = Processes(2)
    yield processes
    processes.close()


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def test_interrupt_does_not_reach_starting_worker(pool: Processes) -> None:
    futures = []
    for count in (1, 2):
        futures.append(pool.submit(os.getpid))
        started = workers()
        assert len(started) == count
        for worker in started:
            worker.send_signal(signal.SIGINT)  # as a terminal does, before Python has started there
    assert {future.result(60) for future in futures} <= {worker.pid for worker in started}


def test_interrupt_during_worker_start_reaches_parent(
    pool: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = pool._pool.submit

    def interrupted(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return submit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pool._pool, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.submit(os.getpid)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_workers_ignore_interrupts_without_blocking_them(pool: Processes) -> None:
    blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result(60)
    assert signal.SIGINT not in blocked
    assert pool.submit(signal.getsignal, signal.SIGINT).result(60) == signal.SIG_IGN
