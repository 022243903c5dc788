"""Tasks in processes that die."""

from __future__ import annotations

import os

import pytest

from lowtide._prepare.executors import Processes
from lowtide._prepare.inputs.kind import Unit
from lowtide._prepare.inputs.text import Text
from lowtide._prepare.jobs import Task, run
from lowtide.errors import TaskError

TASKS = [Task(i, (Unit(0, "a.txt", Text(), None, 10 * i, 10 * i + 10),), 10) for i in range(9)]


def dies_of_the_fifth(task: Task) -> int:
    if task.index == 5:
        os.abort()
    return task.index


def test_only_task_that_kills_its_process_is_reported() -> None:
    pool = Processes(2)
    done: list[int] = []
    try:
        with pytest.raises(TaskError, match=r"a\.txt: from 50 to 60: failed 3 times.*killed"):
            for _, result in run(TASKS, dies_of_the_fifth, pool):
                done.append(result)
    finally:
        pool.close()
    assert done
    assert 5 not in done
