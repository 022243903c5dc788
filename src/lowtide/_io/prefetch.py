"""A bounded number of results read ahead of their consumer, by one thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lowtide._io.pending import Pending
from lowtide.errors import BusyError

T = TypeVar("T")

_PATIENCE = 3  # times in a row that a consumer takes longer than an item, until a thread works meanwhile


class Prefetcher(Generic[T]):
    """The results of ``submit(start)``, ``submit(start + 1)``, … in order, up to ``depth`` of them ahead.

    With ``depth=0`` each is submitted when it is needed, with no thread. An exception of an item reaches the
    consumer with its own traceback, at the item it belongs to, and asking again tries again. After a fork
    the child continues where the parent was, with a thread for itself. ``submit`` must not refer to the
    holder of the prefetcher: then dropping it ends the thread.

    As long as what was submitted is ``done`` at once, and the consumer comes back sooner than an item takes,
    no thread is used: handing work over would then cost more than it hides. To be late now and then does not
    count: something else may have had the core. From then on the thread submits all that it may before it
    waits for the first, and one thread at a time calls ``submit`` and ``wait``.

    Several threads may share one: each item goes to one of them. A signal handler or finalizer that asks for
    an item while its own thread is waiting for one gets a ``BusyError``.

    >>> squares = Prefetcher(lambda i: Pending(pow, i, 2), 2, 5, depth=2)
    >>> [squares.next() for _ in range(3)], squares.position
    ([4, 9, 16], 5)
    >>> squares.close()
    """

    def __init__(self, submit: Callable[[int], Pending[T]], start: int, stop: int, depth: int) -> None:
        self._submit = submit
        self._stop = stop
        self._depth = depth
        self._direct = True
        self._seconds = 0.0
        self._late = 0
        self._returned = time.perf_counter()
        self._worker: _Worker[T] | None = None
        self._requested = start  # the worker was asked for everything before this
        self.position = start
        """The next item that ``next`` will return."""
        self._unlock()

    def _unlock(self) -> None:
        self._lock = threading.RLock()
        self._inside = False
        self._closing = False
        self._pid = os.getpid()

    def next(self) -> T:
        """The next item; ``StopIteration`` behind the last one."""
        return self.next_numbered()[1]

    def next_numbered(self) -> tuple[int, T]:
        """The next item and its number; no other thread comes in between."""
        if self._pid != os.getpid():
            self._unlock()  # a thread of the parent may have held the lock when it forked
        with self._lock:
            if self._inside:
                raise BusyError(
                    f"item {self.position} is being read in this very thread, which a signal handler or "
                    f"finalizer interrupted; read there from another iterator"
                )
            self._inside = True
            try:
                if self.position >= self._stop:
                    raise StopIteration
                item = self._next_directly() if self._direct else self._next_from_worker(None)
                self.position += 1
                return self.position - 1, item
            finally:
                self._inside = False
                if self._closing:
                    self.close()

    def _next_directly(self) -> T:
        started = time.perf_counter()
        is_late = self._seconds and started - self._returned > self._seconds
        self._late = self._late + 1 if is_late and self._depth else 0
        pending = self._submit(self.position) if self._late < _PATIENCE else None
        if pending is None or not (pending.done or not self._depth):
            self._direct = False  # from here on the thread works ahead
            return self._next_from_worker(pending)
        item = pending.wait()
        self._returned = time.perf_counter()
        self._seconds = self._returned - started
        return item

    def _next_from_worker(self, pending: Pending[T] | None) -> T:
        worker = self._ready()
        if worker is None:
            return (pending or self._submit(self.position)).wait()
        if pending is not None and self._requested == self.position:
            worker.requests.put(pending)
            self._requested += 1
        del pending  # the item is the consumer's alone
        try:
            # One more at once: requested only when this one is here, the thread would have nothing to submit
            # while it waits for the next.
            while self._requested < min(self.position + self._depth + 1, self._stop):
                worker.requests.put(self._requested)
                self._requested += 1
            item, error = worker.results.get()
            if error is None:
                return item  # type: ignore[no-any-return]
        except BaseException:
            worker.end()  # an interrupt, perhaps with an item in hand: what is lost is read again
            raise
        worker.end()  # what was requested behind it need not be read
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def _ready(self) -> _Worker[T] | None:
        """The worker, or a new one if this is another process or the last one was ended."""
        worker = self._worker
        if worker is not None and worker.pid == os.getpid() and not worker.ended:
            return worker
        self._end_worker()
        try:
            self._worker = _Worker(self._submit)
        except RuntimeError:  # no more threads: the interpreter is shutting down
            return None
        self._requested = self.position
        self._dropped = weakref.finalize(self, self._worker.end)
        return self._worker

    def close(self) -> None:
        """Drop what was read ahead and end the thread; idempotent."""
        if self._pid != os.getpid():
            self._unlock()
        with self._lock:
            self._closing = self._inside  # called by a signal handler: whom it interrupted will do it
            if not self._closing:
                self._end_worker()

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._dropped.detach()
        if worker.pid == os.getpid():
            worker.end()
            worker.thread.join()

    def __getstate__(self) -> dict[str, Any]:
        """All but the thread and the lock: what was read ahead can be read again."""
        omitted = ("_worker", "_dropped", "_lock", "_inside", "_closing", "_pid")
        return {name: value for name, value in self.__dict__.items() if name not in omitted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _worker=None)
        self._unlock()


class _Worker(Generic[T]):
    """A thread between two queues. Half the cost of a pool of one: the queues are written in C."""

    def __init__(self, submit: Callable[[int], Pending[T]]) -> None:
        self.requests: SimpleQueue[int | Pending[T] | None] = SimpleQueue()
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.pid = os.getpid()
        self.ended = False
        # A daemon, since the interpreter waits for others before it lets anybody tell them to end.
        self.thread = threading.Thread(
            target=_work, args=(submit, self.requests, self.results), name="lowtide-prefetch", daemon=True
        )
        # By the thread, not by this object, which may be gone before its thread is.
        _RUNNING[self.thread] = self.requests
        try:
            self.thread.start()
        except RuntimeError:
            del _RUNNING[self.thread]
            raise

    def end(self) -> None:
        """Tell the thread to end after the item that it is at; does not wait."""
        if self.ended:
            return
        self.ended = True
        while True:
            try:
                self.requests.get_nowait()
            except Empty:
                break
        self.requests.put(None)


def _work(
    submit: Callable[[int], Pending[T]],
    requests: SimpleQueue[int | Pending[T] | None],
    results: SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    pending: deque[Pending[T]] = deque()
    while _take(submit, requests, pending):
        if pending:
            results.put(_result(pending.popleft()))  # held by no variable here: it is the consumer's alone
    _RUNNING.pop(threading.current_thread(), None)


def _take(
    submit: Callable[[int], Pending[T]],
    requests: SimpleQueue[int | Pending[T] | None],
    pending: deque[Pending[T]],
) -> bool:
    """Submit what was requested, until the first is done or nothing more is requested; False at the end."""
    while not (pending and pending[0].done):
        try:
            request = requests.get(block=not pending)
        except Empty:
            break
        if request is None:
            return False
        if isinstance(request, int):
            try:
                request = submit(request)
            except BaseException as error:
                request = Pending(_fail, error)
        pending.append(request)
    return True


def _fail(error: BaseException) -> Any:
    raise error


def _result(pending: Pending[T]) -> tuple[Any, BaseException | None]:
    try:
        return pending.wait(), None
    except BaseException as error:
        return None, error


def _end_all() -> None:
    """At exit, before the interpreter takes itself apart under their feet."""
    running = list(_RUNNING.items())
    for _, requests in running:
        requests.put(None)
    for thread, _ in running:
        thread.join()  # at once in a forked child, where they do not run


_RUNNING: dict[threading.Thread, SimpleQueue[Any]] = {}
atexit.register(_end_all)
