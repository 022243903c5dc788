"""Run a command, or attach to a process, and record the memory of it and its children until it ends."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Sequence

from lowtide._memory import proc
from lowtide._memory.cgroup import MemoryCgroup
from lowtide._memory.profile import command as commands
from lowtide._memory.profile.events import EventLog
from lowtide._memory.profile.journal import Journal
from lowtide._memory.profile.observer import Observer
from lowtide._memory.profile.recording import Detail, Point, Recording
from lowtide._memory.snapshot import no_such_process, not_permitted
from lowtide._memory.tree import GroupTree, Tree
from lowtide.errors import ProcessError, UnsupportedError

INTERVAL = 0.025
_PART = 0.006  # of one core, for looking; with the loop around it, which is not measured, under 0.01
_ADVANCE = 0.15  # seconds of processor time that a short command may cost at once


class Governor:
    """Spends processor time: a small advance at the start, then a fixed part of the time that passes.

    A short command deserves close looks, and a long one must not pay for them. The cost of a look is
    measured, so a tree of many processes is looked at less often, not at a higher cost.

    >>> governor = Governor(part=0.01, advance=0.0)
    >>> governor.spent += 0.5  # half a second of looking
    >>> 49 < governor.debt() <= 50  # is paid back in fifty seconds
    True
    """

    def __init__(self, part: float, advance: float) -> None:
        self.part = part
        self.advance = advance
        self.started = time.monotonic()
        self.spent = 0.0
        self._before = 0.0

    def __enter__(self) -> Governor:
        self._before = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent += time.thread_time() - self._before

    def debt(self) -> float:
        """Seconds to wait until the next look is paid for; 0 or less when it may be taken now."""
        return (self.spent - self.advance) / self.part - (time.monotonic() - self.started)


class Profiler:
    """Takes the looks at one tree, each when it is due and paid for."""

    def __init__(
        self,
        recording: Recording,
        interval: float,
        adopted: bool = False,
        group: MemoryCgroup | None = None,
    ) -> None:
        self.recording = recording
        self.interval = interval
        tree = Tree(recording.pid, adopted=adopted) if group is None else GroupTree(group, [os.getpid()])
        self.observer = Observer(tree)
        self.observer.group = group or self.observer.group
        self.governor = Governor(_PART, _ADVANCE)
        self.journal: Journal | None = None
        self._next_discovery = self._next_detail = self._cost = 0.0
        recording.limit = self.observer.group.limit() if self.observer.group else None
        self._log = EventLog(self.observer.group, recording.started)
        recording.events = self._log.events

    def keep(self, path: str | None) -> None:
        """Keep the recording on disk while it is made, at ``path`` or among the temporary files."""
        self.journal = Journal(self.recording, path, self._log.counters())

    def look(self) -> bool:
        """Take the looks that are due; ``False`` when there is nothing left to look at."""
        with self.governor:
            now = time.monotonic()
            if now >= self._next_discovery:
                self.observer.discover()
                self._next_discovery = now + min(2 * self.interval, 0.1)
            before = time.thread_time()
            point = self.observer.point()
            self._cost = time.thread_time() - before
            self._log.look(now - self.observer.started, self.observer.heaps)
            if point is not None:
                self._keep(point)
                self.recording.true_peak = self.observer.peak
                several = len(self.observer.tree.pids) > 1
                if now >= self._next_detail or (self.observer.changed and several):
                    self._detail(now)
        return point is not None

    def _detail(self, now: float) -> None:
        before = time.thread_time()
        detail = self.observer.detail()
        if detail is not None:
            self._keep(detail)
        # A short command is looked at closely, on credit; then as often as the governor allows.
        cost = time.thread_time() - before
        paid_for = self.governor.debt() + cost / _PART
        self._next_detail = now + max(2 * self.interval, cost * 5, min(paid_for, 60.0))

    def _keep(self, look: Point | Detail) -> None:
        if isinstance(look, Point):
            self.recording.add(look)
        else:
            self.recording.details.add(look)
        if self.journal is not None:
            self.journal.add(look)

    def pause(self) -> float:
        """Seconds until the next look: fewer in the first second, more when looks are expensive."""
        age = time.monotonic() - self.observer.started
        usual = min(self.interval, max(0.002, age / 50))
        # Expensive looks are put off for as long as it takes; cheap ones are not, or the end would be missed.
        longest = max(5 * self.interval, self._cost / _PART)
        return max(usual, min(self.governor.debt(), longest))

    def rest(self, sleep: Callable[[float], None] = time.sleep, longest: float = math.inf) -> None:
        """Wait for the next look. Falling asleep and waking up is paid for as well."""
        with self.governor:
            sleep(max(0.0, min(self.pause(), longest)))

    def finish(self) -> None:
        """Note what could not be seen."""
        recording = self.recording
        recording.ended = time.time()
        self._log.finish(time.monotonic() - self.observer.started, recording.pid, recording.status)
        recording.blind += sorted(self.observer.tree.denied)
        recording.blind += _blind_spots(recording)
        if recording.points:
            recording.blind.append(
                f"how much of the heap was freed and is kept by {self.observer.allocator()}, which is not a "
                "leak: the program itself can tell, with lowtide.memory.heap()"
            )
        if self.journal is not None:
            self.journal.finish()
        recording.events.sort(key=lambda event: event.time)  # throttling is noted when it has ended


def record(command: Sequence[str], *, interval: float = INTERVAL, budget: int | None = None) -> Recording:
    """Run ``command`` to its end and record its memory."""
    return run(command, interval=interval, budget=budget).recording


def run(
    command: Sequence[str],
    *,
    interval: float = INTERVAL,
    budget: int | None = None,
    keep: bool = False,
    path: str | None = None,
) -> Profiler:
    """Run ``command`` to its end; the profiler with its recording.

    Interrupts and termination requests reach the command, and the recording is complete all the same. With
    ``keep`` it is on disk as well while it is made, at ``path`` or among the temporary files, until the
    profiler's journal is closed.
    """
    require_proc()
    commands.adopt_orphans()
    with commands.Relay() as relay:
        pid = relay.pid = commands.start(command, relay.mask)
        recording = Recording(list(command), pid, time.time(), interval, budget)
        profiler = Profiler(recording, interval, adopted=True)
        if keep:
            profiler.keep(path)
        while not commands.has_ended(pid):
            profiler.look()
            profiler.rest(relay.sleep)
        with contextlib.suppress(OSError):
            # A process that has ended but was not waited for still has its counters.
            last = recording.points[-1].requested if recording.points else 0
            recording.read_total = max(proc.io(pid)[0], last)
        _, status, usage = os.wait4(pid, 0)
    recording.status = os.waitstatus_to_exitcode(status)
    # The kernel's peak misses nothing. It starts with the memory of the process that started the command,
    # this one: below that it means nothing.
    peak = usage.ru_maxrss * 1024
    if peak > proc.status().peak:
        recording.true_peak = max(recording.true_peak or 0, peak)
    commands.reap_orphans()
    if orphans := proc.children(os.getpid()):
        recording.blind.append(f"processes that the command left running: {', '.join(map(str, orphans))}")
    profiler.finish()
    return profiler


def attach(pid: int, *, interval: float = INTERVAL, budget: int | None = None) -> Profiler:
    """A profiler of a running process."""
    require_proc()
    try:
        zombie, kernel = proc.state(pid) == "Z", proc.faults(pid).kernel
        if not zombie:
            proc.io(pid)
        command = proc.command(pid)
    except proc.GONE as error:
        raise no_such_process(pid) from error
    except PermissionError as error:
        raise not_permitted(pid) from error
    if zombie or kernel:
        problem = (
            "the process has ended and waits for its parent; pass a running one"
            if zombie
            else "a kernel thread, which has no memory; pass a process"
        )
        raise ProcessError(errno.ESRCH, problem, f"{proc.ROOT}/{pid}")
    return Profiler(Recording(command, pid, time.time(), interval, budget, attached=True), interval)


def attach_group(group: MemoryCgroup, *, interval: float = INTERVAL, budget: int | None = None) -> Profiler:
    """A profiler of all processes of a cgroup, but for this one."""
    require_proc()
    recording = Recording([group.path], 0, time.time(), interval, budget, attached=True)
    return Profiler(recording, interval, group=group)


def require_proc() -> None:
    """Raise where there is no ``/proc`` to look at."""
    if not proc.available():
        raise UnsupportedError(
            f"the profiler reads {proc.ROOT}, which this system does not have; use Linux "
            "(in a container or chroot, mount it: `mount -t proc proc /proc`)"
        )


def _blind_spots(recording: Recording) -> list[str]:
    lines = []
    if not recording.points:
        lines.append("everything: the command ended before the first look")
    elif recording.most_processes > 1:
        lines.append(
            f"peaks of several processes together that were shorter than {recording.interval * 1000:.0f} ms: "
            "the kernel keeps a true peak of single processes only"
        )
    if not recording.details:
        lines.append("which files were mapped, and page cache")
    lines.append(
        "warm reads by io_submit or io_uring, and through a mapping that was removed between two looks: "
        "no counter has them, so the bytes read may be more than shown"
    )
    if recording.points and recording.points[-1].requested:
        lines.append("bytes read include what came through pipes, sockets and the loading of programs")
    return lines
