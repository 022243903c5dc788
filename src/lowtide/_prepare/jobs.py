"""Jobs: units are grouped into tasks, and a bounded number of tasks runs at a time; failed ones are repeated.

A folder may contain a million small files, each a unit; a task has enough neighbouring units to be worth
sending. Tasks depend on the plan alone, and their output is merged in their order, so that the result depends
neither on the number of workers nor on the grouping.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from lowtide import errors
from lowtide._prepare.executors import Executor
from lowtide._prepare.inputs.kind import ReadOptions, Unit
from lowtide._prepare.tokenizers.kind import Texts
from lowtide.errors import LowtideError, TaskError

T = TypeVar("T")

SAMPLE = 32 * 2**20
"""Characters of the inputs, at most, on which a tokenizer is trained."""
ATTEMPTS = 3
"""How often a task is tried at most."""

_PLACES = 64  # in the inputs, from which the sample is taken
_TASK_SIZE = 8 * 2**20  # bytes of inputs up to which units are grouped
_TICK = 0.5  # seconds between two calls of ``tick`` when nothing else happens
# Another attempt would fail as well: the input, the settings or the disk must change first.
_FINAL = (
    errors.FormatError,
    errors.ArgumentError,
    errors.MissingExtraError,
    errors.UnsupportedError,
    errors.DiskFullError,
    errors.ClusterError,
)


@dataclass(frozen=True, slots=True)
class Task:
    """Neighbouring units, encoded one after another into the same files."""

    index: int
    units: tuple[Unit, ...]
    weight: int  # bytes of the inputs, for progress


@dataclass(frozen=True, slots=True)
class Record:
    """The result of a task. Its files are complete once its record exists."""

    task: int
    tokens: Mapping[str, int]
    documents: Mapping[str, int]
    skipped: int = 0
    complaints: Sequence[str] = field(default_factory=list)  # about the first documents that were skipped
    files: Mapping[str, Sequence[int]] = field(default_factory=dict)  # size and CRC-32, by split and ending


def group(units: Sequence[Unit], sizes: Sequence[int], val: int | None = None) -> list[Task]:
    """Units grouped into tasks; ``sizes`` are the bytes of each file, ``val`` the first of validation data.

    >>> from lowtide._prepare.inputs.text import Text
    >>> units = [Unit(i, f"{i}.txt", Text(), None, 0, 10) for i in range(3)]
    >>> [len(task.units) for task in group(units, [10, 10, 10])]
    [3]
    >>> [len(task.units) for task in group(units, [10, 2**25, 10])]
    [1, 1, 1]
    """
    spans: dict[int, int] = {}
    for unit in units:
        spans[unit.number] = spans.get(unit.number, 0) + unit.stop - unit.start
    tasks: list[Task] = []
    members: list[Unit] = []
    weight = 0
    for unit in units:
        # A unit counts in bytes, rows or row groups: its weight is its part of the size of the file.
        share = sizes[unit.number] * (unit.stop - unit.start) // max(1, spans[unit.number])
        border = members and val is not None and members[-1].number < val <= unit.number
        if border or (members and weight + share > _TASK_SIZE):
            tasks.append(Task(len(tasks), tuple(members), weight))
            members, weight = [], 0
        members.append(unit)
        weight += share
    if members:
        tasks.append(Task(len(tasks), tuple(members), weight))
    return tasks


def run(
    tasks: Sequence[Task],
    function: Callable[[Task], T],
    executor: Executor,
    tick: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Task, T]]:
    """The results of ``function`` for each task, in the order in which they complete."""
    waiting = deque(tasks)
    running: dict[Future[T], Task] = {}
    failures: dict[int, int] = {}
    suspects: set[int] = set()  # running when a worker died: run alone, since any of them may have killed it
    try:
        while waiting or running:
            # Two per slot: one that runs, and one that is ready when it completes.
            limit = 2 * executor.slots()
            while waiting and len(running) < limit:
                if running and any(task.index in suspects for task in (waiting[0], *running.values())):
                    break
                try:
                    running[executor.submit(function, waiting[0])] = waiting[0]
                except BrokenProcessPool:
                    if not running:
                        executor.renew()
                    break  # otherwise the running futures are about to report it
                waiting.popleft()
            done, _ = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
            tick()
            lost = False
            for future in done:
                task = running.pop(future)
                error = _error(future)
                if error is None:
                    suspects.discard(task.index)
                    yield task, future.result()
                    continue
                broken = isinstance(error, BrokenProcessPool)
                if not broken or task.index in suspects:
                    failures[task.index] = failures.get(task.index, 0) + 1
                if isinstance(error, _FINAL) or failures.get(task.index, 0) >= ATTEMPTS:
                    raise _failed(task, error, failures[task.index])
                waiting.appendleft(task)
                lost |= broken
                if broken:
                    suspects.add(task.index)
            if lost:
                suspects.update(task.index for task in running.values())
                waiting.extendleft(running.values())
                running.clear()
                executor.renew()
    finally:
        for future in running:
            future.cancel()


def _error(future: Future[T]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError:  # Dask does so with all running tasks when its scheduler is gone
        return errors.ClusterError(
            errno.ECONNRESET,
            "stopped; what is done is kept: start it and run the same command again",
            "the Dask scheduler",
        )


def _failed(task: Task, error: BaseException, times: int) -> Exception:
    if isinstance(error, LowtideError) and (isinstance(error, _FINAL) or times == 1):
        return error
    first, last = task.units[0], task.units[-1]
    where = f"{first.path}: from {first.start} to {first.stop}"
    if len(task.units) > 1:
        where = f"{first.path} to {last.path}"
    problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, BrokenProcessPool):
        problem = (
            "the process that worked on it was killed: memory ran out, or the source is damaged and its "
            "library crashed; try fewer workers, or copy the source again"
        )
    failure = TaskError(f"{where}: failed {times} times, at last with: {problem}")
    failure.__cause__ = error
    return failure


@dataclass(frozen=True)
class InputTexts(Texts):
    """The texts of the inputs, to train a tokenizer on; ``map`` reports bytes to ``tick``."""

    tasks: Sequence[Task]
    options: ReadOptions
    executor: Callable[[], Executor]
    skip: bool
    tick: Callable[[int], object] = lambda weight: None
    sampled: int | None = None  # tasks from which ``sample`` takes text: those before the validation data

    def sample(self) -> Iterator[str]:
        """Text from places spread evenly over the inputs. It depends on the plan alone."""
        tasks = self.tasks[: self.sampled]
        count = min(_PLACES, len(tasks))
        for place in range(count):
            remaining = SAMPLE // count
            for text in _texts(tasks[place * len(tasks) // count], self.options, self.skip):
                self.tick(len(text[:remaining]))
                yield text[:remaining]
                remaining -= len(text)
                if remaining <= 0:
                    break
        self.tick(0)

    def map(self, function: Callable[[Iterable[str]], T]) -> Iterator[T]:
        call = partial(_apply, function=function, options=self.options, skip=self.skip)
        for task, result in run(self.tasks, call, self.executor()):
            yield result
            self.tick(task.weight)


def _apply(task: Task, function: Callable[[Iterable[str]], T], options: ReadOptions, skip: bool) -> T:
    return function(_texts(task, options, skip))


def _texts(task: Task, options: ReadOptions, skip: bool) -> Iterator[str]:
    for unit in task.units:
        for piece in unit.read(options, _ignore if skip else None):
            yield piece.text


def _ignore(error: Exception) -> None:
    """Documents that cannot be read are counted when they are encoded."""
