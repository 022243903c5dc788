"""Run a command and look at its memory, and that of its children, until it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence

from lowtide._memory import proc
from lowtide._memory.governor import Governor
from lowtide._memory.meter import no_such_process, not_ours
from lowtide._memory.recording import Recording
from lowtide._memory.tree import Tree
from lowtide.errors import AccessError, NotFoundError, ProcessError, UnsupportedError

INTERVAL = 0.025
_PART = 0.006  # of one core, for looking; with the loop around it, which is not measured, under 0.01
_ADVANCE = 0.15  # seconds of processor time that a short command may cost at once
_PR_SET_CHILD_SUBREAPER = 36


class Profiler:
    """Takes the looks at one tree, each when it is due and paid for."""

    def __init__(self, recording: Recording, interval: float, adopted: bool = False) -> None:
        self.recording = recording
        self.interval = interval
        self.tree = Tree(recording.pid, adopted)
        self.governor = Governor(_PART, _ADVANCE)
        self._next_discovery = self._next_detail = self._cost = 0.0
        recording.limit = self.tree.limit()

    def look(self) -> bool:
        """Take the looks that are due; ``False`` when there is nothing left to look at."""
        with self.governor:
            now = time.monotonic()
            if now >= self._next_discovery:
                self.tree.discover()
                self._next_discovery = now + min(2 * self.interval, 0.1)
            before = time.thread_time()
            point = self.tree.point()
            self._cost = time.thread_time() - before
            if point is not None:
                self.recording.add(point)
                self.recording.true_peak = self.tree.peak
                if now >= self._next_detail or (self.tree.changed and len(self.tree.pids) > 1):
                    self._detail(now)
        return point is not None

    def _detail(self, now: float) -> None:
        before = time.thread_time()
        detail = self.tree.detail()
        if detail is not None:
            self.recording.detail(detail)
        # A short command is looked at closely, on credit; then as often as the governor allows.
        cost = time.thread_time() - before
        paid_for = self.governor.debt() + cost / _PART
        self._next_detail = now + max(2 * self.interval, cost * 5, min(paid_for, 60.0))

    def pause(self) -> float:
        """Seconds until the next look: shorter in the first second, longer when looking is dear."""
        age = time.monotonic() - self.tree.started
        wanted = min(self.interval, max(0.002, age / 50))
        # Dear looks are put off for as long as it takes; cheap ones go on, or the end would be missed.
        longest = max(5 * self.interval, self._cost / _PART)
        return max(wanted, min(self.governor.debt(), longest))

    def rest(self, sleep: Callable[[float], None] = time.sleep, longest: float = math.inf) -> None:
        """Wait for the next look. Falling asleep and waking up is paid for as well."""
        with self.governor:
            sleep(max(0.0, min(self.pause(), longest)))

    def finish(self) -> None:
        """Say what could not be seen."""
        recording = self.recording
        recording.ended = time.time()
        recording.blind += sorted(self.tree.denied)
        recording.blind += _blind_spots(recording)


def record(
    command: Sequence[str], *, interval: float = INTERVAL, budget: int | None = None
) -> tuple[Recording, Profiler]:
    """Run ``command`` to its end and record its memory.

    Interrupts and termination requests reach the command, and the recording is complete all the same.

    Raises
    ------
    NotFoundError, AccessError
        The command cannot be started.
    UnsupportedError
        This system has no ``/proc``.
    """
    require_proc()
    _adopt_orphans()
    with _Relay() as relay:
        pid = relay.pid = _start(command, relay.mask)
        recording = Recording(list(command), pid, time.time(), interval, budget)
        profiler = Profiler(recording, interval, adopted=True)
        while not _ended(pid):
            profiler.look()
            profiler.rest(relay.sleep)
        with contextlib.suppress(OSError):
            # A process that has ended but was not waited for still has its counters.
            recording.read_total = max(proc.io(pid).asked, _last_asked(recording))
        _, status, usage = os.wait4(pid, 0)
    recording.status = os.waitstatus_to_exitcode(status)
    _use_kernel_peak(recording, usage.ru_maxrss * 1024)
    _reap_orphans(recording)
    profiler.finish()
    return recording, profiler


def attach(pid: int, *, interval: float = INTERVAL, budget: int | None = None) -> Profiler:
    """A profiler of a process that runs already.

    Raises
    ------
    ProcessError
        There is no such process.
    AccessError
        It belongs to another user.
    """
    require_proc()
    try:
        if proc.state(pid) == "Z":
            problem = f"process {pid} has already ended; its parent has not waited for it yet"
            raise ProcessError(errno.ESRCH, problem, f"{proc.ROOT}/{pid}")
        kernel = proc.faults(pid).kernel
        proc.io(pid)
        command = [os.fsdecode(part) for part in proc.read(f"{proc.ROOT}/{pid}/cmdline").split(b"\0")[:-1]]
    except proc.GONE as error:
        if isinstance(error, ProcessError):
            raise
        raise no_such_process(pid) from error
    except PermissionError as error:
        raise not_ours(pid) from error
    if kernel:
        problem = f"process {pid} is a kernel thread, which has no memory; pass another process"
        raise ProcessError(errno.ESRCH, problem, f"{proc.ROOT}/{pid}")
    return Profiler(Recording(command, pid, time.time(), interval, budget, attached=True), interval)


def require_proc() -> None:
    """Say so where there is no ``/proc`` to look at."""
    if not proc.available():
        raise UnsupportedError(
            f"the profiler reads {proc.ROOT}, which this system does not have; it works on Linux "
            "(in a container or chroot, mount it: `mount -t proc proc /proc`)"
        )


def _start(command: Sequence[str], mask: Collection[int]) -> int:
    name = command[0]
    # Python ignores these two, and what is ignored is inherited.
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        return os.posix_spawnp(name, list(command), os.environ, setsigmask=mask, setsigdef=ignored)
    except FileNotFoundError as error:
        raise NotFoundError(errno.ENOENT, "no such command; check its spelling and PATH", name) from error
    except PermissionError as error:
        problem = "is not an executable file; for a script, pass its interpreter first"
        raise AccessError(errno.EACCES, problem, name) from error
    except OSError as error:  # for instance: exec format error
        problem = f"cannot be executed ({(error.strerror or str(error)).lower()}); check the file"
        raise AccessError(error.errno or errno.EACCES, problem, name) from error


def _ended(pid: int) -> bool:
    """Whether the process has ended; it stays a zombie until it is waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Relay:
    """Sleeps between two looks, wakes up when the command ends, and passes on what others send.

    The signals are blocked and fetched, so that none can disturb a look or the report. A terminal sends
    Ctrl-C to the command as well, and a program that cleans up should get it once: what the terminal sends is
    not passed on, and an interrupt from somebody else, who may have sent it to the whole group, only if the
    command is still there a second later or when it comes again.
    """

    def __init__(self) -> None:
        asked = {signal.SIGINT, signal.SIGTERM}
        # What was ignored before (nohup, a background job) stays ignored, here and in the command.
        self.heard = {signal.SIGCHLD} | {n for n in asked if signal.getsignal(n) is not signal.SIG_IGN}
        self.pid = 0
        self._interrupts = 0
        self._interrupt_at = math.inf

    def __enter__(self) -> _Relay:
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
            pass  # si_code of the kernel's own: the command has it already
        elif self._interrupts == 2:
            self._send(number)
        else:
            self._interrupt_at = time.monotonic() + 1.0

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _adopt_orphans() -> None:
    """Let grandchildren whose parent ends come to this process, so that they stay in the tree."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap_orphans(recording: Recording) -> None:
    """Wait for orphans that have ended; those that still run are named and left alone."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    left = proc.children(os.getpid())
    if left:
        recording.blind.append(f"processes that the command left running: {', '.join(map(str, left))}")


def _last_asked(recording: Recording) -> int:
    return recording.points[-1].asked if recording.points else 0


def _use_kernel_peak(recording: Recording, peak: int) -> None:
    """Take over the peak that the kernel told at the end, which no look can miss.

    It begins with the memory of the process that started the command, this one: below that it says
    nothing.
    """
    own = proc.status().peak
    if peak > own:
        recording.true_peak = max(recording.true_peak or 0, peak)


def _blind_spots(recording: Recording) -> list[str]:
    said = []
    if not recording.points:
        said.append("everything: the command ended before the first look")
    elif recording.most_processes > 1:
        said.append(
            f"peaks of several processes together that were shorter than {recording.interval * 1000:.0f} ms: "
            "the kernel keeps a true peak of single processes only"
        )
    if not recording.details:
        said.append("which files were mapped, and page cache")
    said.append(
        "warm reads by io_submit or io_uring, and through a mapping that was let go again between two looks: "
        "no counter has them, so the bytes read may be more than shown"
    )
    if sys.platform == "linux" and recording.points and recording.points[-1].asked:
        said.append("bytes read include what came through pipes, sockets and the loading of programs")
    return said
