"""Tasks on an executor: bounded in number, tried again, named when they fail."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from lowtide._prepare.executors import Executor
from lowtide._prepare.inputs.kind import Unit
from lowtide._prepare.inputs.tables import Parquet
from lowtide._prepare.inputs.text import Text
from lowtide._prepare.jobs import ATTEMPTS, Task, group, run
from lowtide.errors import ClusterError, DiskFullError, FormatError, TaskError

TASKS = [Task(i, (Unit(0, "a.txt", Text(), None, 10 * i, 10 * i + 10),), 10) for i in range(9)]


class Recorded(Executor):
    """Runs what it is given at once, keeps count, and raises the given errors."""

    def __init__(self, errors: dict[int, list[BaseException]]) -> None:
        self.errors = errors
        self.given: list[int] = []
        self.renewed = 0

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        (task,) = arguments
        self.given.append(task.index)
        future: Future[Any] = Future()
        if self.errors.get(task.index):
            future.set_exception(self.errors[task.index].pop(0))
        else:
            future.set_result(function(task))
        return future

    def slots(self) -> int:
        return 2

    def renew(self) -> None:
        self.renewed += 1

    def close(self) -> None:
        pass


def results(executor: Recorded) -> list[int]:
    return sorted(result for _, result in run(TASKS, lambda task: task.index, executor))


def test_each_task_runs_once() -> None:
    executor = Recorded({})
    assert results(executor) == list(range(9))
    assert executor.given == list(range(9))


def test_submitted_tasks_are_bounded() -> None:
    executor = Recorded({})
    next(run(TASKS, lambda task: task.index, executor))
    assert len(executor.given) == 4


def test_transient_error_is_retried() -> None:
    executor = Recorded({3: [OSError(5, "I/O")] * (ATTEMPTS - 1)})
    assert results(executor) == list(range(9))
    assert executor.given.count(3) == ATTEMPTS
    with pytest.raises(TaskError, match=r"a\.txt: from 30 to 40: failed 3 times.*I/O") as caught:
        results(Recorded({3: [OSError(5, "I/O")] * ATTEMPTS}))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    "error", [FormatError("bad line"), DiskFullError(28, "full", "x"), ClusterError(104, "gone", "tcp://x")]
)
def test_permanent_error_is_not_retried(error: Exception) -> None:
    executor = Recorded({3: [error]})
    with pytest.raises(type(error), match=str(error)):
        results(executor)
    assert executor.given.count(3) == 1


def test_broken_pool_is_replaced_once() -> None:
    executor = Recorded({i: [BrokenProcessPool("killed")] for i in range(4)})
    assert results(executor) == list(range(9))
    assert executor.renewed == 1
    with pytest.raises(TaskError, match="killed: memory ran out"):
        results(Recorded({2: [BrokenProcessPool("killed")] * (1 + ATTEMPTS)}))


def test_units_are_grouped_by_share_of_source() -> None:
    rows = [Unit(0, "a.parquet", Parquet(), None, i, i + 1) for i in range(4)]
    files = [Unit(1 + i, f"{i}.txt", Text(), None, 0, 5) for i in range(3)]
    tasks = group([*rows, *files], [4 * 6 * 2**20, 5, 5, 5])
    assert [len(task.units) for task in tasks] == [1, 1, 1, 4]
    assert [task.index for task in tasks] == [0, 1, 2, 3]
    assert sum(task.weight for task in tasks) == 4 * 6 * 2**20 + 15
    assert [unit for task in tasks for unit in task.units] == [*rows, *files]
