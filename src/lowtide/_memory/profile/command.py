"""Start a command, pass signals on to it, and wait for it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import signal
import time
from collections.abc import Collection, Sequence

from lowtide._memory import proc
from lowtide.errors import AccessError, NotFoundError

_PR_SET_CHILD_SUBREAPER = 36


def start(command: Sequence[str], mask: Collection[int]) -> int:
    """Start ``command`` with the signals in ``mask`` blocked; its process number."""
    name = command[0]
    # Python ignores these two, and what is ignored is inherited.
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        pid = os.posix_spawnp(name, list(command), os.environ, setsigmask=mask, setsigdef=ignored)
    except FileNotFoundError as error:
        raise NotFoundError(errno.ENOENT, "no such command; check its spelling and PATH", name) from error
    except PermissionError as error:
        problem = "is not an executable file; for a script, pass its interpreter first"
        raise AccessError(error.errno or errno.EACCES, problem, name) from error
    except OSError as error:  # for instance: exec format error
        problem = f"cannot be executed ({(error.strerror or str(error)).lower()}); check the file"
        raise AccessError(error.errno or errno.EACCES, problem, name) from error
    # Of a container at its limit the kernel kills the process with the highest score. That must be one of the
    # command, which inherit this, and not the profiler, which can then say what happened. To raise it needs
    # no privilege.
    with contextlib.suppress(OSError), open(f"{proc.ROOT}/{pid}/oom_score_adj", "w") as file:
        file.write("1000")
    return pid


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it stays a zombie until it is waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent ends, so that they stay in the tree."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Wait for orphans that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Relay:
    """Sleeps between two looks, wakes up when the command ends, and passes signals on.

    The signals are blocked and fetched, so that none can disturb a look or the report. A terminal sends
    Ctrl-C to the command as well, and a program that cleans up should get it once: what the terminal sends is
    not passed on, and an interrupt from another process, which may have sent it to the whole group, only if
    the command is still there a second later or when it comes again.
    """

    def __init__(self) -> None:
        both = {signal.SIGINT, signal.SIGTERM}
        # What was ignored before (nohup, a background job) stays ignored, here and in the command.
        self.heard = {signal.SIGCHLD} | {n for n in both if signal.getsignal(n) is not signal.SIG_IGN}
        self.pid = 0
        self._interrupts = 0
        self._interrupt_at = math.inf

    def __enter__(self) -> Relay:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.heard)
        return self

    def __exit__(self, *_: object) -> None:
        while signal.sigtimedwait(self.heard, 0):  # an interrupt too many must not hit the report
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def sleep(self, seconds: float) -> None:
        """Until a signal comes, and no longer than ``seconds``."""
        now = time.monotonic()
        heard = signal.sigtimedwait(self.heard, max(0.0, min(seconds, self._interrupt_at - now)))
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            self._pass_on(heard.si_signo, from_terminal=heard.si_code > 0)
        if time.monotonic() >= self._interrupt_at:
            self._interrupt_at = math.inf
            self._send(signal.SIGINT)

    def _pass_on(self, number: int, from_terminal: bool) -> None:
        if number != signal.SIGINT:
            self._send(number)
            return
        self._interrupts += 1
        if self._interrupts > 2:
            self._send(signal.SIGKILL)
        elif from_terminal:
            pass  # si_code of the kernel: the command has it already
        elif self._interrupts == 2:
            self._send(number)
        else:
            self._interrupt_at = time.monotonic() + 1.0

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
