"""A few threads for the parts of one read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import get_ident
from typing import TypeVar

from lowtide._io.system import after_fork, cores

T = TypeVar("T")


def workers_for(reads: int, nbytes: int) -> int:
    """The number of threads worth using: handing over work costs about as much as 50 small reads."""
    if reads < 256 and (reads < 2 or nbytes < 2 * 2**20):
        return 1
    return 1 if get_ident() in _INSIDE else min(CORES, reads)


def in_threads(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Call each task, the first one in this thread, and return their results.

    If one fails, the others are waited for: nothing runs after this has returned. Tasks of tasks, and those
    of a signal handler or finalizer that interrupts this thread, run in the calling thread, since the locks
    of the pool are not reentrant.
    """
    thread = get_ident()
    if len(tasks) < 2 or thread in _INSIDE:
        return [task() for task in tasks]
    _INSIDE.add(thread)
    futures: list[Future[T]] = []
    try:
        for task in tasks[1:]:
            future = _start(task)
            if future is None:
                break
            futures.append(future)
        first = tasks[0]()
        rest = [task() for task in tasks[1 + len(futures) :]]
    finally:
        wait(futures)
        _INSIDE.discard(thread)
    return [first, *(future.result() for future in futures), *rest]


def _start(task: Callable[[], T]) -> Future[T] | None:
    global _POOL
    try:
        if _POOL is None:  # if two threads see that, one of their pools is dropped
            _POOL = ThreadPoolExecutor(CORES, thread_name_prefix="lowtide-read")
        return _POOL.submit(_inside, task)
    except RuntimeError:  # no more threads: the interpreter is shutting down
        return None


def _inside(task: Callable[[], T]) -> T:
    thread = get_ident()
    _INSIDE.add(thread)
    try:
        return task()
    finally:
        _INSIDE.discard(thread)


@after_fork
def _after_fork() -> None:
    """Threads do not cross a fork: the child starts new ones."""
    global _POOL, _INSIDE
    _POOL, _INSIDE = None, set()


CORES = min(4, cores())
_POOL: ThreadPoolExecutor | None = None
_INSIDE: set[int] = set()  # threads that run a task or hold a lock of the pool
