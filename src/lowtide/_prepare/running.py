"""The run: tasks to an executor, a bounded number at a time, and what fails once more."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from lowtide import errors
from lowtide._prepare.executors import Executor
from lowtide._prepare.tasks import Task
from lowtide.errors import LowtideError, TaskError

T = TypeVar("T")

ATTEMPTS = 3
"""How often a task is tried."""

_TICK = 0.5  # seconds between two calls of ``tick`` when nothing else happens
# To try these again would give the same: the input, the settings or the disk must change first.
_FINAL = (
    errors.FormatError,
    errors.ArgumentError,
    errors.MissingExtraError,
    errors.UnsupportedError,
    errors.DiskFullError,
    errors.ClusterError,
)


def run(
    tasks: Sequence[Task],
    function: Callable[[Task], T],
    executor: Executor,
    tick: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Task, T]]:
    """What ``function`` gives for each task, in the order in which they come to an end."""
    waiting = deque(tasks)
    running: dict[Future[T], Task] = {}
    failures: dict[int, int] = {}
    suspects: set[int] = set()  # under way when a worker died: run alone, since nobody knows which killed it
    try:
        while waiting or running:
            # Two for each place: one that is worked on, and one that is ready when it is done.
            limit = 2 * executor.places()
            while waiting and len(running) < limit:
                if running and any(task.index in suspects for task in (waiting[0], *running.values())):
                    break
                try:
                    running[executor.submit(function, waiting[0])] = waiting[0]
                except BrokenProcessPool:
                    if not running:
                        executor.renew()
                    break  # else what is running is about to say that it is lost
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
    except CancelledError:  # Dask does so with everything under way when its scheduler is gone
        return errors.ClusterError(
            errno.ECONNRESET,
            "the scheduler is gone; what is done stays: start it and run the same command again",
            "Dask",
        )


def _failed(task: Task, error: BaseException, times: int) -> Exception:
    if isinstance(error, LowtideError) and (isinstance(error, _FINAL) or times == 1):
        return error
    first, last = task.units[0], task.units[-1]
    where = f"{first.path}: from {first.start} to {first.stop}"
    if len(task.units) > 1:
        where = f"{first.path} to {last.path}"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, BrokenProcessPool):
        said = (
            "the process that worked on it was killed: memory was short, or the source is damaged and its "
            "library does not survive that; try fewer workers, or copy the source again"
        )
    made = TaskError(f"{where}: failed {times} times, at last with: {said}")
    made.__cause__ = error
    return made
