"""A bounded number of results made ahead of their consumer, by one thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lowtide.errors import BusyError

T = TypeVar("T")
Finish = Callable[[], T]
"""Ends what was begun, and gives the item."""


_PATIENCE = 3  # times in a row that a consumer takes longer than an item, until a thread works meanwhile


class Prefetcher(Generic[T]):
    """``make(start)``, ``make(start + 1)``, … in order, up to ``depth`` of them ahead of the consumer.

    With ``depth=0`` each is made when asked for, with no thread. An exception in ``make`` reaches the
    consumer with its own traceback, at the item it belongs to, and asking again tries again. After a fork
    the child goes on from where the parent stood, with a thread of its own. ``make`` must not refer to
    whoever holds the prefetcher: then dropping it ends the thread.

    Several threads may share one: each item goes to one of them. A signal handler or finalizer that asks for
    an item while its own thread is waiting for one gets a ``BusyError``.

    ``begin`` is for items that a device must be waited for: it sets the device to work and returns what
    waits and gives the item. The thread begins all that it may make before it waits for the first.

    ``at_once`` makes an item if that takes no waiting, else gives None. It is tried first, for as long as
    the consumer comes back sooner than an item takes to make: handing work to a thread would then cost more
    than it hides. To be late now and then does not count: something else may have had the core.

    >>> squares = Prefetcher(lambda i: i * i, 2, 5, depth=2)
    >>> [squares.next() for _ in range(3)], squares.position
    ([4, 9, 16], 5)
    >>> squares.close()
    """

    def __init__(
        self,
        make: Callable[[int], T],
        start: int,
        stop: int,
        depth: int,
        *,
        begin: Callable[[int], Finish[T]] | None = None,
        at_once: Callable[[int], T | None] | None = None,
    ) -> None:
        self._make = make
        self._begin = begin or partial(partial, make)
        self._begins = begin is not None
        self._at_once = at_once
        self._took = 0.0
        self._late = 0
        self._returned = time.perf_counter()
        self._stop = stop
        self._depth = depth
        self._worker: _Worker[T] | None = None
        self._asked = start  # the worker was asked for everything before this
        self.position = start
        """The next item that ``next`` will give."""
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
        """The next item and its number, which another thread cannot come in between."""
        if self._pid != os.getpid():
            self._unlock()  # a thread of the parent may have held the lock when it forked
        with self._lock:
            if self._inside:
                raise BusyError(
                    f"item {self.position} is being made in this very thread, which a signal handler or "
                    f"finalizer interrupted; read there from an iterator of its own"
                )
            self._inside = True
            try:
                item = self._next()
                return self.position - 1, item
            finally:
                self._inside = False
                if self._closing:
                    self.close()

    def _next(self) -> T:
        if self.position >= self._stop:
            raise StopIteration
        if self._at_once is not None:
            quick = self._try_at_once(self._at_once)
            if quick is not None:
                return quick
        worker = self._ready() if self._depth else None
        if worker is None:
            made = self._make(self.position)
            self.position += 1
            return made
        try:
            # Where there is something to begin, one more at once: asked for only when this one is here, the
            # thread would have nothing to begin while it waits for the next.
            self._ask(worker, self.position + self._depth + self._begins)
            item, error = worker.made.get()
            if error is None:
                self._ask(worker, self.position + self._depth + 1)
                self.position += 1
                return item  # type: ignore[no-any-return]
        except BaseException:
            worker.end()  # an interrupt, perhaps with an item in hand: what is lost is made again
            raise
        worker.end()  # what was asked for behind it need not be made
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def _ready(self) -> _Worker[T] | None:
        """The worker, or a new one if this is another process or the last one was told to end."""
        worker = self._worker
        if worker is not None and worker.pid == os.getpid() and not worker.ended:
            return worker
        self._end_worker()
        try:
            self._worker = _Worker(self._begin)
        except RuntimeError:  # no more threads: the interpreter is ending
            return None
        self._asked = self.position
        self._dropped = weakref.finalize(self, self._worker.end)
        return self._worker

    def _ask(self, worker: _Worker[T], until: int) -> None:
        while self._asked < min(until, self._stop):
            worker.asked.put(self._asked)
            self._asked += 1

    def _try_at_once(self, at_once: Callable[[int], T | None]) -> T | None:
        begun = time.perf_counter()
        self._late = self._late + 1 if self._took and begun - self._returned > self._took else 0
        made = at_once(self.position) if self._late < _PATIENCE else None
        if made is None:
            self._at_once = None  # from here on the thread works ahead
            return None
        self.position += 1
        self._returned = time.perf_counter()
        self._took = self._returned - begun
        return made

    def close(self) -> None:
        """Drop what was made ahead and end the thread; idempotent."""
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
        """All but the thread and the lock: what was made ahead can be made again."""
        left_out = ("_worker", "_dropped", "_lock", "_inside", "_closing", "_pid")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _worker=None)
        self._unlock()


class _Worker(Generic[T]):
    """A thread between two queues. Half the cost of a pool of one: the queues are written in C."""

    def __init__(self, begin: Callable[[int], Finish[T]]) -> None:
        self.asked: SimpleQueue[int | None] = SimpleQueue()
        self.made: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.pid = os.getpid()
        self.ended = False
        # A daemon, since the interpreter waits for others before it lets anybody tell them to end.
        self.thread = threading.Thread(
            target=_work, args=(begin, self.asked, self.made), name="lowtide-prefetch", daemon=True
        )
        # By the thread, not by this object, which may be gone before its thread is.
        _RUNNING[self.thread] = self.asked
        try:
            self.thread.start()
        except RuntimeError:
            del _RUNNING[self.thread]
            raise

    def end(self) -> None:
        """Tell the thread to end when it has made the item that it is at; does not wait."""
        if self.ended:
            return
        self.ended = True
        while True:
            try:
                self.asked.get_nowait()
            except Empty:
                break
        self.asked.put(None)


def _work(
    begin: Callable[[int], Finish[T]],
    asked: SimpleQueue[int | None],
    made: SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    begun: deque[Finish[T]] = deque()
    while True:
        try:
            number = asked.get(block=not begun)
        except Empty:
            made.put(_result(begun.popleft()))  # held by no variable here: it is the consumer's alone
            continue
        if number is None:
            break
        begun.append(_begun(begin, number))
    _RUNNING.pop(threading.current_thread(), None)


def _begun(begin: Callable[[int], Finish[T]], number: int) -> Finish[T]:
    try:
        return begin(number)
    except BaseException as error:
        return partial(_fail, error)


def _fail(error: BaseException) -> Any:
    raise error


def _result(finish: Finish[T]) -> tuple[Any, BaseException | None]:
    try:
        return finish(), None
    except BaseException as error:
        return None, error


def _end_all() -> None:
    """At exit, before the interpreter takes itself apart under their feet."""
    running = list(_RUNNING.items())
    for _, asked in running:
        asked.put(None)
    for thread, _ in running:
        thread.join()  # at once in a forked child, where they do not run


_RUNNING: dict[threading.Thread, SimpleQueue[int | None]] = {}
atexit.register(_end_all)
