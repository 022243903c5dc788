"""Run a command, or attach to a process, and record the memory of it and its children until it ends."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lowtide._memory import proc
from lowtide._memory.cgroup import MemoryCgroup
from lowtide._memory.profile import command as commands
from lowtide._memory.profile.events import EventLog
from lowtide._memory.profile.governor import Aside, Governor, Trigger
from lowtide._memory.profile.journal import Journal
from lowtide._memory.profile.observer import Observer
from lowtide._memory.profile.recording import Look, Point, Recording
from lowtide._memory.snapshot import no_such_process, not_permitted
from lowtide._memory.tree import GroupTree, Tree
from lowtide.errors import ProcessError, UnsupportedError

INTERVAL = 0.025
# Parts of one core: for points, for shares of processes, for files. With the loop around them, which is not
# measured, under 0.01 in a long run.
_POINTS, _SHARES, _FILES = 0.0035, 0.0025, 0.0015
_CHARGES_EVERY = 0.05  # seconds between two looks at the cgroup


class Profiler:
    """Takes the looks at one tree, each when it is due and paid for."""

    def __init__(
        self,
        recording: Recording,
        interval: float,
        strangers: Iterable[int] | None = None,
        group: MemoryCgroup | None = None,
    ) -> None:
        self.recording = recording
        self.interval = interval
        self.observer = Observer(
            Tree(recording.pid, strangers=strangers, pinned=True)
            if group is None
            else GroupTree(group, [os.getpid()])
        )
        self.observer.group = group or self.observer.group
        # Separate accounts: expensive looks must not make cheap ones rare, nor imports those at shares.
        self.points = Governor(_POINTS, advance=0.05, early=0.01)
        self.shares = Aside(Governor(_SHARES, advance=0.03, early=0.02))
        self.files = Aside(Governor(_FILES, advance=0.04, early=0.015))
        self._shares_due, self._files_due = Trigger(shares=True), Trigger(shares=False)
        self.journal: Journal | None = None
        self._next_discovery = self._next_charges = self._cost = 0.0
        recording.limit = self.observer.group.limit() if self.observer.group else None
        self._log = EventLog(self.observer.group, recording.started)
        recording.events = self._log.events

    def keep(self, path: str | None) -> None:
        """Keep the recording on disk while it is made, at ``path`` or among the temporary files."""
        self.journal = Journal(self.recording, path, self._log.counters())

    def look(self) -> bool:
        """Take the looks that are due; ``False`` when there is nothing left to look at."""
        with self.points:
            now = time.monotonic()
            if now >= self._next_discovery:
                self.observer.discover()
                self._next_discovery = now + min(2 * self.interval, 0.1)
            before = time.thread_time()
            point = self.observer.point()
            self._cost = time.thread_time() - before
            self._log.look(now - self.observer.started, self.observer.heaps)
            if point is None:
                return False
            self._keep(point)
            self.recording.true_peak = self.observer.peak
            if self.recording.limit is not None and now >= self._next_charges:
                self._next_charges = now + _CHARGES_EVERY
                self._keep(self.observer.charges())
        self._expensive(point)
        return True

    def _expensive(self, point: Point) -> None:
        self._collect()
        if point.processes > 1:
            _start_if_due(self.shares, self._shares_due, point, lambda: self.observer.shares(point))
        _start_if_due(self.files, self._files_due, point, self.observer.detail)

    def _collect(self, wait: float = 0.0) -> None:
        """Keep what expensive looks have seen since the last time."""
        self._keep(self.shares.collect(wait))
        self._keep(self.files.collect(wait))
        if not (self.shares.busy or self.files.busy):
            self.observer.tree.release()

    def _keep(self, look: Look | None) -> None:
        if look is not None:
            self.recording.add(look)
            if self.journal is not None:
                self.journal.add(look)

    def pause(self) -> float:
        """Seconds until the next look: fewer in the first second, more when looks are expensive."""
        age = time.monotonic() - self.observer.started
        usual = min(self.interval, max(0.002, age / 50))
        # Cheap looks are put off for a while only, or the end would be missed.
        longest = max(5 * self.interval, self._cost / _POINTS)
        return max(usual, min(self.points.debt(), longest))

    def rest(self, sleep: Callable[[float], None] = time.sleep, longest: float = math.inf) -> None:
        """Wait for the next look. Falling asleep and waking up is paid for as well."""
        with self.points:
            sleep(max(0.0, min(self.pause(), longest)))

    def finish(self) -> None:
        """Note what could not be seen."""
        self._collect(wait=5.0)
        self.observer.tree.close()
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


def _start_if_due(aside: Aside, trigger: Trigger, point: Point, look: Callable[[], Any]) -> None:
    paid = aside.governor.credit() > 0
    if not aside.busy and (paid or trigger.pressing(point)) and trigger.due(point, aside.governor.last):
        aside.start(look)
        trigger.taken(point)


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
    strangers = set(proc.children(os.getpid()))  # before the start: an orphan may be here at once
    with commands.Relay() as relay:
        pid = relay.pid = commands.start(command, relay.mask)
        recording = Recording(list(command), pid, time.time(), interval, budget)
        profiler = Profiler(recording, interval, strangers)
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
    if orphans := [pid for pid in proc.children(os.getpid()) if pid not in strangers]:
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
