"""Read a bounded number of results ahead of their consumer, in one thread."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lowtide._io import threads
from lowtide._io.pending import Pending
from lowtide._io.system import after_fork
from lowtide.errors import BusyError

T = TypeVar("T")

_PATIENCE = 3  # times in a row that a consumer takes longer than an item until a thread is used
_BRIEF, _PAUSE = 0.001, 0.05  # seconds that a consumer works between items; between two looks of the thread
_LOOKS = 8  # looks of the thread without finding a request until it waits to be woken
_WAITS = 32  # times in a row that a consumer mostly waits for the thread until the thread is no longer used


class Prefetcher(Generic[T]):
    """The results of ``submit(start)``, ``submit(start + 1)``, … in order, up to ``depth`` of them ahead.

    With ``depth=0`` each is submitted when it is needed, without a thread. The consumer gets the exception of
    an item, with its traceback, at that item, and the next call tries again. After a fork the child continues
    where the parent was, with its own thread. ``submit`` must not refer to the holder of the prefetcher, so
    that dropping the holder ends the thread.

    As long as items are ``done`` when they are submitted, and the consumer returns sooner than an item takes,
    no thread is used: handing over work would cost more than it hides. Being late now and then does not
    count, since another process may have had the core. A thread submits all that it may before it waits for
    the first, and one thread at a time calls ``submit`` and ``wait``. A consumer that only waits for the
    thread tries again without it.

    Items that need only work of the processor, and are independent of each other, are finished ``together``
    by several threads, as long as no thread works ahead.

    Several threads may share one prefetcher: each item goes to one of them. A signal handler or finalizer
    that asks for an item while its own thread is waiting for one gets a ``BusyError``.

    >>> squares = Prefetcher(lambda i: Pending(pow, i, 2), 2, 5, depth=2)
    >>> [squares.next() for _ in range(3)], squares.position
    ([4, 9, 16], 5)
    >>> squares.close()
    """

    def __init__(
        self, submit: Callable[[int], Pending[T]], start: int, stop: int, depth: int, together: int = 1
    ) -> None:
        self._submit = submit
        self._together = together
        self._finished: deque[T] = deque()
        self._stop = stop
        self._depth = depth
        self._direct = True
        self._seconds = 0.0
        self._late = 0
        self._waits, self._most_waits = 0, _WAITS
        self._pause = 0.0
        self._returned = time.perf_counter()
        self._worker: _Worker[T] | None = None
        self._requested = start  # everything before this was requested from the worker
        self.position = start
        """The next item that ``next`` will return."""
        self._unlock()

    def _unlock(self) -> None:
        self._lock = threading.RLock()
        self._inside = False
        self._closing = False
        self._forks = _FORKS

    def next(self) -> T:
        """The next item; ``StopIteration`` after the last one."""
        return self.next_numbered()[1]

    def next_numbered(self) -> tuple[int, T]:
        """The next item and its number, which no other thread can change in between."""
        if self._forks != _FORKS:
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
                item = self._next_directly() if self._direct else self._next_waiting()
                self.position += 1
                return self.position - 1, item
            finally:
                self._inside = False
                if self._closing:
                    self.close()

    def _next_directly(self) -> T:
        if not self._depth:
            return self._submit(self.position).wait()
        started = time.perf_counter()
        if self._finished:
            self._returned = started
            return self._finished.popleft()
        is_late = self._seconds and started - self._returned > self._seconds
        self._late = self._late + 1 if is_late else 0
        pending = self._submit(self.position) if self._late < _PATIENCE else None
        if pending is None or not pending.done:
            if pending is not None:
                self._most_waits *= 2  # the thread was of use: try without it later next time
            self._direct = False  # from now on the thread works ahead
            self._requested = self.position
            return self._next_from_worker(pending, self._stop)
        count = min(self._together, self._stop - self.position) if pending.beside else 1
        item = self._finish(pending, count) if count > 1 else pending.wait()
        self._returned = time.perf_counter()
        self._seconds = (self._returned - started) / count
        return item

    def _finish(self, pending: Pending[T], count: int) -> T:
        """Finish ``count`` items in parallel, and keep all but the first for later."""
        pendings = [pending, *(self._submit(self.position + i) for i in range(1, count))]
        items: list[Any] = [None] * count
        remaining = iter(range(count))

        def work() -> None:
            for i in remaining:
                items[i] = pendings[i].wait()

        threads.in_threads([work] * min(count, threads.CORES))
        self._finished.extend(items[1:])
        return items[0]  # type: ignore[no-any-return]

    def _next_waiting(self) -> T:
        """The next item from the worker; also measure whether the consumer only waits for it."""
        asked = time.perf_counter()
        is_draining = self._waits >= self._most_waits
        if is_draining and self._requested <= self.position:
            self._direct, self._waits, self._late, self._seconds = True, 0, 0, 0.0
            return self._next_directly()
        came = asked - self._returned
        self._pause = min(came / 2, _PAUSE) if self._depth > 1 and came > _BRIEF else 0.0
        item = self._next_from_worker(None, self._requested if is_draining else self._stop)
        self._returned = time.perf_counter()
        if not is_draining:
            self._waits = self._waits + 1 if 4 * came < self._returned - asked else 0
        return item

    def _next_from_worker(self, pending: Pending[T] | None, stop: int) -> T:
        """The next item; nothing from ``stop`` on is requested."""
        worker = self._ready()
        if worker is None:
            return (pending or self._submit(self.position)).wait()
        if pending is not None and self._requested == self.position:
            worker.requests.put(pending, wake=True)
            self._requested += 1
        del pending  # the item is the consumer's alone
        try:
            # As long as another item is ready, the thread need not start before its own next look.
            wake = self._pause == 0 or worker.results.empty()
            worker.requests.pause = self._pause
            # One more than ``depth``: otherwise the thread would have nothing to submit while it waits for
            # the item after this one.
            while self._requested < min(self.position + self._depth + 1, stop):
                worker.requests.put(self._requested, wake=wake)
                self._requested += 1
            item, error = worker.results.get()
            if error is None:
                return item  # type: ignore[no-any-return]
        except BaseException:
            worker.end()  # an interrupt, perhaps after taking an item, which is then read again
            raise
        worker.end()  # the items after the one that failed need not be read
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def _ready(self) -> _Worker[T] | None:
        """The worker, or a new one if this is another process or the last one was ended."""
        worker = self._worker
        if worker is not None and worker.forks == _FORKS and not worker.ended:
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
        if self._forks != _FORKS:
            self._unlock()
        with self._lock:
            self._closing = self._inside  # in a signal handler: the interrupted call will close it
            if not self._closing:
                self._end_worker()
                self._finished.clear()

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._dropped.detach()
        if worker.forks == _FORKS:
            worker.end()
            worker.thread.join()

    def __getstate__(self) -> dict[str, Any]:
        """All but the thread, the lock and the items that were read ahead, which can be read again."""
        omitted = ("_worker", "_dropped", "_lock", "_inside", "_closing", "_forks", "_finished")
        return {name: value for name, value in self.__dict__.items() if name not in omitted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _worker=None, _finished=deque())
        self._unlock()


class _Requests(Generic[T]):
    """The requests of one consumer to the thread.

    If the thread were woken when the consumer takes an item, both would want the interpreter lock, which
    PyTorch releases whenever a tensor is dropped: the consumer would wait for the work of the thread. So
    while items are ready, the thread looks for requests by itself, half of the consumer's time later.
    """

    def __init__(self) -> None:
        self._items: deque[int | Pending[T] | None] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self.pause = 0.0
        """Seconds between two looks; 0 if the thread is to be woken for each item."""

    def put(self, item: int | Pending[T] | None, *, wake: bool) -> None:
        self._items.append(item)
        if (wake or self._asleep) and self._wakes.empty():
            self._wakes.put(None)

    def get(self, *, block: bool) -> int | Pending[T] | None:
        looks = 0
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                if not block:
                    raise Empty from None
            self._asleep = not self.pause or looks >= _LOOKS
            if self._asleep and self._items:  # a request since then, which may not have woken this thread
                continue
            looks += 1
            with suppress(Empty):
                self._wakes.get(timeout=None if self._asleep else self.pause)
            self._asleep = False

    def end(self) -> None:
        """Replace all requests by the one to end."""
        self._items.clear()
        self.put(None, wake=True)


class _Worker(Generic[T]):
    """A thread between requests and results, at half the cost of a pool of one."""

    def __init__(self, submit: Callable[[int], Pending[T]]) -> None:
        self.requests: _Requests[T] = _Requests()
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.forks = _FORKS
        self.ended = False
        self._submit = submit
        # A daemon, since the interpreter waits for other threads before the exit handlers can end them.
        self.thread = threading.Thread(target=self._work, name="lowtide-prefetch", daemon=True)
        _RUNNING.add(self)
        try:
            self.thread.start()
        except RuntimeError:
            _RUNNING.remove(self)
            raise

    def end(self) -> None:
        """Let the thread end after its current item, without waiting for it."""
        if self.ended:
            return
        self.ended = True
        self.requests.end()

    def _work(self) -> None:
        pending: deque[Pending[T]] = deque()
        while self._take(pending):
            if pending:  # the result is held by no variable here: it is the consumer's alone
                self.results.put(_result(pending.popleft()))
        _RUNNING.discard(self)

    def _take(self, pending: deque[Pending[T]]) -> bool:
        """Submit what was requested until the first is done or no request is left; False at the end."""
        while not (pending and pending[0].done):
            try:
                request = self.requests.get(block=not pending)
            except Empty:
                break
            if request is None:
                return False
            if isinstance(request, int):
                try:
                    request = self._submit(request)
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
    """At exit, end the threads while the interpreter still works."""
    running = list(_RUNNING)
    for worker in running:
        worker.requests.put(None, wake=True)
    for worker in running:
        worker.thread.join()  # at once in a forked child, where they do not run


@after_fork
def _after_fork() -> None:
    global _FORKS
    _FORKS += 1


_FORKS = 0  # differs between a process and its parent; getpid would take longer than a lock
_RUNNING: set[_Worker[Any]] = set()
atexit.register(_end_all)
