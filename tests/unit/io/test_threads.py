"""Threads for the parts of one read: results in order, errors after the last part, no nesting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from lowtide._io import threads
from lowtide._io.threads import in_threads, workers_for


def test_results_are_in_task_order() -> None:
    assert in_threads([partial(pow, number, 2) for number in range(9)]) == [n * n for n in range(9)]
    assert in_threads([]) == []


def test_first_task_runs_in_calling_thread() -> None:
    idents = in_threads([threading.get_ident] * 2)
    assert idents[0] == threading.get_ident() != idents[1]


def test_error_is_raised_after_all_tasks_end() -> None:
    started, proceed, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        proceed.wait(60)
        ended.set()

    def fails() -> None:
        started.wait(60)
        threading.Timer(0.05, proceed.set).start()
        raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        in_threads([fails, slow])
    assert ended.is_set()


def test_nested_tasks_run_in_their_thread() -> None:
    def nested() -> list[int]:
        assert workers_for(10_000, 2**30) == 1
        return in_threads([threading.get_ident] * 3)

    for idents in in_threads([nested, nested]):
        assert len(set(idents)) == 1
    assert not threads._INSIDE


def test_caller_runs_all_tasks_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: Callable[[], object]) -> None:
        return None

    monkeypatch.setattr(threads, "_start", refuse)
    assert set(in_threads([threading.get_ident] * 3)) == {threading.get_ident()}


@pytest.mark.parametrize(
    ("reads", "nbytes", "expected"),
    [(1, 2**30, 1), (255, 2**20, 1), (2, 2**21, 2), (3, 2**30, 3), (256, 0, 4), (10**6, 2**30, 4)],
)
def test_number_of_workers_depends_on_reads_and_bytes(
    monkeypatch: pytest.MonkeyPatch, reads: int, nbytes: int, expected: int
) -> None:
    monkeypatch.setattr(threads, "CORES", 4)
    assert workers_for(reads, nbytes) == expected
