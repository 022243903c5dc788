"""Interrupt a block at once when its watch is over: from the sampler's pipe to the right thread.

In the main thread the kernel turns a write to the pipe into a signal, so no thread is needed (a process
with threads may not fork safely) and even a sleeping block wakes up. The signal is tied to the pipe, which
closes on exec: a program that replaces this one is never hit. Other threads, and systems without such
signals, get a small thread that reads the pipe and throws into them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lowtide.errors import MemoryBudgetExceeded, UnsupportedError

if TYPE_CHECKING:
    from lowtide._memory.helper import Helper
    from lowtide._memory.watch import Watch

_armed: dict[int, Watch] = {}
_signal: int | None = None
_alerts = -1  # the pipe that the signal is for
_holds = 0
_held_back = False


class Tripped(MemoryBudgetExceeded):
    """Raised in the block; the watch replaces it by the exception with the numbers."""

    def __init__(self, number: int = 0) -> None:
        super().__init__("memory passed the budget of a strict watch")
        self.number = number


def arm(number: int, watch: Watch, helper: Helper) -> None:
    """Start to raise for a watch when its number arrives."""
    _armed[number] = watch
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGRTMIN"):
        _listen_by_signal(helper)
    else:
        threading.Thread(target=_listen, args=(number, helper), name="lowtide-watch", daemon=True).start()


def disarm(number: int) -> None:
    """Stop raising for a watch."""
    _armed.pop(number, None)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold signals back while the main thread talks to the sampler: half a message would be lost."""
    global _holds, _held_back
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _holds += 1
    try:
        yield
    finally:
        _holds -= 1
    if _held_back and not _holds:
        _held_back = False
        _deliver()


def _listen_by_signal(helper: Helper) -> None:
    import fcntl

    global _signal, _alerts
    if _signal is None:
        _signal = _free_signal()
        signal.signal(_signal, _on_signal)
    fd = _alerts = helper.alerts
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, _signal)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)


def _on_signal(_number: int, _frame: object) -> None:
    global _held_back
    if _holds:
        _held_back = True
    else:
        _deliver()


def _free_signal() -> int:
    """A real-time signal without a handler."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    raise UnsupportedError("strict=True needs a real-time signal, and all have handlers; use strict=False")


def _deliver() -> None:
    """Raise for the watches whose numbers are in the pipe, in the main thread."""
    outermost = None
    for number in _numbers(_alerts):
        watch = _armed.pop(number, None)
        if watch is None:
            continue
        watch.tripped = True
        if watch.thread == threading.get_ident():
            outermost = number if outermost is None else min(outermost, number)
        else:
            _throw(watch.thread)
    if outermost is not None:
        raise Tripped(outermost)


def _numbers(fd: int) -> list[int]:
    try:
        return [int(word) for word in os.read(fd, 4096).split()]
    except OSError:  # nothing there, or another thread was faster
        return []


def _listen(number: int, helper: Helper) -> None:
    """Wait for alerts in a thread, for as long as the watch is armed."""
    poller = select.poll()
    poller.register(helper.alerts, select.POLLIN)
    while number in _armed:
        try:
            if poller.poll(50):
                for over in _numbers(helper.alerts):
                    watch = _armed.pop(over, None)
                    if watch is not None:
                        watch.tripped = True
                        _throw(watch.thread)
        except OSError:
            return


def _throw(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Tripped))
