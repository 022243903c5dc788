"""A bounded number of results made ahead of their consumer, by one thread."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """``make(start)``, ``make(start + 1)``, … in order, up to ``depth`` of them ahead of the consumer.

    With ``depth=0`` each is made when asked for, with no thread. An exception in ``make`` reaches the
    consumer with its own traceback, at the item it belongs to, and asking again tries again. After a fork
    the child goes on from where the parent stood, with a thread of its own. ``make`` must not refer to
    whoever holds the prefetcher: then dropping it ends the thread.

    ``at_once`` makes an item if that takes no waiting, else gives None. It is tried first, for as long as
    the consumer comes back sooner than an item takes to make: handing work to a thread would then cost more
    than it hides.

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
        at_once: Callable[[int], T | None] | None = None,
    ) -> None:
        self._make = make
        self._at_once = at_once
        self._took = 0.0
        self._returned = time.perf_counter()
        self._stop = stop
        self._depth = depth
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: deque[tuple[int, Future[T]]] = deque()
        self._pid = os.getpid()
        self.position = start
        """The next item that ``next`` will give."""

    def next(self) -> T:
        """The next item; ``IndexError`` behind the last one."""
        if self.position >= self._stop:
            raise IndexError(f"item {self.position} of {self._stop}")
        if self._pid != os.getpid():
            self._thread, self._pid = None, os.getpid()
            self._ahead.clear()
        if self._ahead and self._ahead[0][0] != self.position:
            self._clear()  # an interrupt came between the two steps below
        if self._at_once is not None:
            quick = self._try_at_once(self._at_once)
            if quick is not None:
                return quick
        self._fill()
        if not self._ahead:
            made = self._make(self.position)
            self.position += 1
            return made
        future = self._ahead[0][1]
        try:
            made = future.result()
        except BaseException:
            if future.done():  # the item itself failed; an interrupt of the wait keeps it for later
                self._clear()
            raise
        self._ahead.popleft()
        self.position += 1
        self._fill()
        return made

    def _try_at_once(self, at_once: Callable[[int], T | None]) -> T | None:
        begun = time.perf_counter()
        made = at_once(self.position) if not self._took or begun - self._returned < self._took else None
        if made is None:
            self._at_once = None  # from here on the thread works ahead
            return None
        self.position += 1
        self._returned = time.perf_counter()
        self._took = self._returned - begun
        return made

    def _fill(self) -> None:
        if self._thread is None and self._depth:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="lowtide-prefetch")
        while len(self._ahead) < self._depth and self.position + len(self._ahead) < self._stop:
            number = self.position + len(self._ahead)
            assert self._thread is not None
            try:
                self._ahead.append((number, self._thread.submit(self._make, number)))
            except RuntimeError:  # no more threads: the interpreter is ending
                return

    def _clear(self) -> None:
        while self._ahead:
            self._ahead.pop()[1].cancel()

    def close(self) -> None:
        """Drop what was made ahead and end the thread; idempotent."""
        thread, self._thread = self._thread, None
        self._ahead.clear()
        if thread is not None and self._pid == os.getpid():
            thread.shutdown(wait=True, cancel_futures=True)
