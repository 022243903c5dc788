"""Interrupt a block at once when its watch is over: from the sampler's pipe to the right thread.

In the main thread the kernel turns a write to the pipe into a signal, so no thread is needed (a process
with threads may not fork safely) and even a sleeping block wakes up. The signal is tied to the pipe, which
closes on exec: a program that replaces this one is never hit. Other threads, and systems without such
signals, get a small thread that reads the pipe and throws into them. A task of asyncio that does not run at
that moment is cancelled, as ``asyncio.timeout`` does it: an exception in the middle of the event loop would
end the loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lowtide.errors import MemoryBudgetExceeded, UnsupportedError

if TYPE_CHECKING:
    from lowtide._memory.helper import Helper
    from lowtide._memory.watch import Watch

_armed: dict[int, Alarm] = {}
_signal: int | None = None
_alerts = -1  # the pipe that the signal is for
_holds = 0
_held_back = False


class Tripped(MemoryBudgetExceeded):
    """Raised in the block; the watch replaces it by the exception with the numbers."""

    def __init__(self, number: int = 0) -> None:
        super().__init__("memory passed the budget of a strict watch")
        self.number = number


class Alarm:
    """A strict watch, and where to raise for it."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.fired = False
        self.paused = False
        self.cancelled = False
        self.enter()

    def enter(self) -> None:
        """Make the thread and the task that run now those in which to raise."""
        self.thread = threading.get_ident()
        self.task = _current_task()
        self.cancelling: int = self.task.cancelling() if self.task is not None else 0


def _current_task() -> Any:
    """The task of asyncio that runs now, if there is one."""
    if "asyncio" not in sys.modules:
        return None
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


def arm(number: int, watch: Watch, helper: Helper) -> None:
    """Start raising for a watch when its number arrives."""
    _armed[number] = Alarm(watch)
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGRTMIN"):
        _listen_by_signal(helper)
    else:
        threading.Thread(target=_listen, args=(number, helper), name="lowtide-watch", daemon=True).start()


def disarm(number: int, error: BaseException | None) -> bool:
    """Stop raising for a watch; whether ``error``, which leaves its block, was raised for it."""
    alarm = _armed.pop(number, None)
    if alarm is not None and alarm.cancelled:
        import asyncio

        remaining = alarm.task.uncancel()
        # Somebody else may have cancelled the task too, and wants to see that.
        if isinstance(error, asyncio.CancelledError) and remaining <= alarm.cancelling:
            return True
    return isinstance(error, Tripped) and error.number in (0, number)


def pause(number: int) -> None:
    """Hold an alarm back while code outside of the block runs."""
    if (alarm := _armed.get(number)) is not None:
        alarm.paused = True


def resume(number: int) -> None:
    """Raise from now on; at once if the alarm was held back."""
    if (alarm := _armed.get(number)) is not None:
        alarm.enter()
        alarm.paused = False
        if alarm.fired:
            raise Tripped(number)


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
    here = [number for number in _numbers(_alerts) if _fire(number, _current_task())]
    if here:
        raise Tripped(min(here))  # the outermost


def _fire(number: int, running: Any) -> bool:
    """Raise for a watch where its block runs; true if that is here, where the caller has to raise.

    ``running`` is the task of this thread, the only one that cannot change meanwhile.
    """
    alarm = _armed.get(number)
    if alarm is None or alarm.fired:
        return False
    alarm.fired = alarm.watch.tripped = True
    if alarm.paused:
        return False
    if alarm.task is not None and alarm.task is not running:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            alarm.task.get_loop().call_soon_threadsafe(_cancel, number)
        return False
    if alarm.thread == threading.get_ident():
        return True
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(alarm.thread), ctypes.py_object(Tripped))
    return False


def _cancel(number: int) -> None:
    """Cancel the task of a watch; called by its loop, so the task waits, inside the block or a paused one."""
    alarm = _armed.get(number)
    if alarm is not None and not alarm.paused:
        alarm.cancelled = alarm.task.cancel("memory passed the budget of a strict watch")


def _numbers(fd: int) -> list[int]:
    try:
        return [int(word) for word in os.read(fd, 4096).split()]
    except OSError:  # nothing there, or another thread was faster
        return []


def _listen(number: int, helper: Helper) -> None:
    """Wait for alerts in a thread, for as long as the watch is armed."""
    poller = select.poll()
    poller.register(helper.alerts, select.POLLIN)
    while (alarm := _armed.get(number)) is not None and not alarm.fired:
        try:
            if poller.poll(50):
                for over in _numbers(helper.alerts):
                    _fire(over, None)
        except OSError:
            return
