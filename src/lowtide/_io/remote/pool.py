"""Threads for requests, and a bound on the bytes that they fetch at once."""

from __future__ import annotations

import atexit
import ctypes
import errno
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

from lowtide import errors
from lowtide._io.system import after_fork

THREADS = 32
"""The most requests under way, whatever their size."""

Task = Callable[["Batch"], None]
T = TypeVar("T")


class Budget:
    """Bytes that one process has requested and not yet copied.

    >>> budget = Budget()
    >>> budget.acquire(10, limit=16)
    >>> budget.used, budget.release(10), budget.used
    (10, None, 0)
    """

    def __init__(self) -> None:
        self.used = self.most = 0
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def acquire(self, nbytes: int, limit: int) -> None:
        """Wait until there is room for ``nbytes``, in the order of the calls.

        One request may always be under way. The limit may be exceeded by 1/64, for requests of little more
        than a MiB.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            while self._waiting[0] is not ticket or (self.used and self.used + nbytes > limit + limit // 64):
                self._changed.wait()
            self._waiting.popleft()
            self._changed.notify_all()
            self.used += nbytes
            self.most = max(self.most, self.used)

    def release(self, nbytes: int) -> None:
        with self._changed:
            self.used -= nbytes
            self._changed.notify_all()


class Trimmer:
    """Lets malloc return freed memory to the system once in a while.

    obstore allocates in many threads, each with its own heap, which keeps freed memory: that takes some 10
    MiB. Does nothing with other C libraries than glibc.
    """

    def __init__(self, interval: int = 8 * 2**20) -> None:
        self._interval = interval
        self._since = 0
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._trim: Callable[[int], int] | None = getattr(library, "malloc_trim", None)

    def count(self, nbytes: int) -> None:
        """Count fetched bytes."""
        self._since += nbytes  # a count that is lost between two threads does not matter
        if self._since >= self._interval and self._trim is not None:
            self._since = 0
            self._trim(0)


class Batch:
    """Tasks that are waited for together.

    A task that fails ends the batch: tasks that have not started are skipped. ``cancel`` does the same, and
    after it has returned, no task calls what it passes to ``guarded``.
    """

    def __init__(self, tasks: Sequence[Task], threads: int = THREADS) -> None:
        """Use at most ``threads`` threads: each has a heap of malloc, which keeps freed memory."""
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._left = len(tasks)
        self._error: BaseException | None = None
        self.cancelled = False
        if not tasks:
            self._done.set()
        for task in tasks:
            _submit(partial(self._run, task), threads)

    def _run(self, task: Task) -> None:
        try:
            if not (self.cancelled or _ENDING):
                task(self)
        except BaseException as error:
            self._error = self._error or error
            self.cancelled = True
        finally:
            next(_FINISHED)
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()

    def guarded(self, copy: Callable[[], None]) -> None:
        """Call ``copy`` unless the batch was cancelled."""
        with self._lock:
            if not self.cancelled:
                copy()

    def cancel(self) -> None:
        """Skip tasks that have not started, and copy nothing more."""
        with self._lock:
            self.cancelled = True

    def wait(self, seconds: float, address: str) -> None:
        """Wait for all tasks, and raise the error of the first that failed.

        Each request has its own deadline. If one ignores it, this raises after ``seconds`` in which no
        request of the process has ended.
        """
        try:
            before = repr(_FINISHED)
            while not self._done.wait(seconds):
                before, now = repr(_FINISHED), before
                if before == now:
                    raise errors.ReadError(
                        errno.ETIMEDOUT,
                        f"no answer for {seconds:.0f} s; check the connection, or raise timeout and "
                        "retry_timeout in storage_options",
                        address,
                    )
            if self._error is not None:
                raise self._error
        except BaseException:
            self.cancel()
            raise


def call(function: Callable[..., T], *arguments: Any, seconds: float, address: str) -> T:
    """Call a function in one of the threads, so that an interrupt or a deadline can end the wait."""
    results: list[T] = []
    Batch([lambda _: results.append(function(*arguments))]).wait(seconds, address)
    return results[0]


def _submit(task: Callable[[], None], threads: int) -> None:
    """Run a task in a thread; waiting tasks run in order."""
    _TASKS.put(task)
    try:
        _IDLE.pop()
        return
    except IndexError:
        pass
    if len(_RUNNING) < threads:
        thread = threading.Thread(target=_work, args=(_TASKS, _IDLE), name="lowtide-remote", daemon=True)
        _RUNNING.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            _RUNNING.remove(thread)
            if not _RUNNING:
                raise


def _work(tasks: SimpleQueue[Callable[[], None] | None], idle: deque[None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it refers to the buffer that it filled
        idle.append(None)


def _end_all() -> None:
    """At exit: a thread that returns from a request needs a working interpreter."""
    global _ENDING
    _ENDING = True
    running = list(_RUNNING)
    for _ in running:
        _TASKS.put(None)
    for thread in running:
        thread.join()


@after_fork
def forget() -> None:
    """In a forked child: the threads do not exist, and one may have held a lock."""
    global _TASKS, _IDLE, _RUNNING, BUDGET
    _TASKS, _IDLE, _RUNNING, BUDGET = SimpleQueue(), deque(), [], Budget()


_TASKS: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
# An item for each idle thread. There is no lock, since a signal handler could wait for it forever.
_IDLE: deque[None] = deque()
_RUNNING: list[threading.Thread] = []
_ENDING = False
_FINISHED = count()  # tasks; its repr shows the number, and counting takes no lock
BUDGET = Budget()
TRIMMER = Trimmer()
atexit.register(_end_all)
