"""What happened to the processes and their container: kills by the kernel, and throttling.

The kernel counts its kills per cgroup and does not say whom it killed, except in a log that containers cannot
read. So the counters are compared with the processes that ended at the same time.
"""

from __future__ import annotations

import os
import shlex
import time as clock
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lowtide._memory import proc
from lowtide._memory.cgroup import Charged, MemoryCgroup
from lowtide._printable import printable

MIB = 2**20
_EVERY = 0.25  # seconds between two looks at the counters, if no process ended
_SEARCH = 1.0  # seconds in which the process that was killed must have ended
_OLD = 0.5  # seconds after which figures may be far from those of the kill
_STALL, _STALL_SHARE = 1.0, 0.02  # waiting for memory that is worth a line: seconds, and part of the time
_PAUSE = 2.0  # seconds without throttling between two events


class Event(NamedTuple):
    """Something that happened at ``time``, in seconds from the start, or from then ``until``."""

    kind: str  # "oom_kill", "throttled" or "stalled"
    time: float
    until: float
    text: str
    pid: int | None = None


@dataclass
class _Ended:
    time: float
    pid: int
    signal: int | None  # unknown if the parent has waited for it already
    heap: int
    command: str


class EventLog:
    """Compares the counters of a group and its parents with the processes that end."""

    def __init__(self, group: MemoryCgroup | None, started: float) -> None:
        self.events: list[Event] = []
        self._levels = list(group.upwards()) if group else []
        self._started = started  # seconds since the epoch
        self._counters = self.counters()
        self._by_group = self._levels[0].kills() if self._levels else {}
        self._killed_in: MemoryCgroup | None = None  # the group of the last one, if it is below this
        self._stalled = self._levels[0].pressure() if self._levels else None
        self._met: set[str] = set()  # levels whose limit could not be met since the last event
        self._usage = Charged()
        self._step = (group.limit() or 2**40) / 20 if group else 0.0
        self._charged = 0  # usage when that was read
        self._looked = 0.0  # when all were alive
        self._next = 0.0
        self._kills = 0  # that are not explained yet
        self._noticed = 0.0
        self._heaps: dict[int, int] = {}
        self._commands: dict[int, str] = {}
        self._ended: list[_Ended] = []
        self._throttled: dict[str, tuple[float, float, int]] = {}  # by level: from, until, how often

    def counters(self) -> dict[str, dict[str, int]]:
        """The counters of each level, by its folder; kills include those of groups below."""
        counters = {level.path: level.events() for level in self._levels}
        if self._levels:
            counters[self._levels[0].path]["oom_kill"] = self._levels[0].killed()
        return counters

    def look(self, time: float, heaps: dict[int, int]) -> None:
        """Note which processes have ended (``heaps`` is of the living), and what the counters say."""
        gone = self._heaps.keys() - heaps.keys()
        for pid in gone:
            ended = _Ended(time, pid, _signal(pid), self._heaps[pid], self._commands.pop(pid, ""))
            self._ended.append(ended)
        self._name(pid for pid in heaps if pid not in self._commands)
        if gone or self._kills or time >= self._next:
            self._next = time + _EVERY
            self._compare(time)
            self._name(heaps)
        if self._kills:
            self._explain(time, patient=True)
        elif self._levels:
            self._charge()
            self._looked = time
        self._ended = [ended for ended in self._ended if time - ended.time <= _SEARCH]
        self._heaps = dict(heaps)

    def finish(self, time: float, root: int, status: int | None) -> None:
        """The last look: ``status`` is that of the command, or minus the signal that ended it."""
        for pid, heap in self._heaps.items():  # since the last look
            signal = _signal(pid)
            if pid == root and status is not None:
                signal = max(0, -status)
            elif signal is None and _lives(pid):
                continue
            self._ended.append(_Ended(time, pid, signal, heap, self._commands.get(pid, "")))
        self._compare(time)
        self._explain(time, patient=False)
        for path in list(self._throttled):
            self._close(path)
        self._stall(time)

    def _charge(self) -> None:
        """Remember what the group consists of while it fills: after a kill that is gone."""
        usage = self._levels[0].usage() or 0
        if abs(usage - self._charged) >= self._step:
            self._charged, self._usage = usage, self._levels[0].charged()

    def _compare(self, time: float) -> None:
        before, self._counters = self._counters, self.counters()
        throttled_below = 0
        for place, level in enumerate(self._levels):
            old, new = before[level.path], self._counters[level.path]
            rise = {name: count - old.get(name, 0) for name, count in new.items()}
            if place == 0 and (kills := self._killed_since(rise["oom_kill"])):
                self._noticed = self._noticed if self._kills else time
                self._kills += kills
            if rise.get("oom", 0) > 0:
                self._met.add(level.path)
            # A parent's counters have those of its groups.
            self._throttle(level.path, time, rise.get("high", 0) - throttled_below)
            throttled_below = rise.get("high", 0)

    def _killed_since(self, rise: int) -> int:
        """Kills since the last look; those of a parent's other groups are not ours."""
        group = self._levels[0]
        if rise == 0 and group.version == 2:
            return 0
        # In version 1 the sum may stay the same: a group below was removed, with its count.
        before, self._by_group = self._by_group, group.kills()
        rises = {path: count - before.get(path, 0) for path, count in self._by_group.items()}
        rises = {path: count for path, count in rises.items() if count > 0}
        below = [path for path in rises if path != group.path]
        self._killed_in = type(group)(below[-1], group.mount) if below else None
        return max(rise, sum(rises.values()))

    def _explain(self, time: float, patient: bool) -> None:
        """Turn kills into events; those without a process in sight wait a little."""
        while self._kills:
            killed = [ended for ended in self._ended if ended.signal == 9 or self._may_be(ended)]
            # Of those that ended at the time, one that is known to be killed, and the largest of them.
            victim = max(killed, key=lambda ended: (ended.signal or 0, ended.heap), default=None)
            if victim is None and patient and time - self._noticed < _SEARCH:
                return
            self._kills -= 1
            at = victim.time if victim else self._noticed
            self.events.append(
                Event("oom_kill", at, at, self._text(at, victim), victim.pid if victim else None)
            )
            if victim:
                self._ended.remove(victim)
        self._met.clear()

    def _may_be(self, ended: _Ended) -> bool:
        """Whether a process of unknown status, which its parent has taken, may have been killed."""
        return ended.signal is None and abs(ended.time - self._noticed) <= _SEARCH / 2

    def _text(self, time: float, victim: _Ended | None) -> str:
        who = "a process"
        if victim is not None:
            who = f"process {victim.pid}" + (f" ({victim.command})" if victim.command else "")
        when = clock.strftime("%H:%M:%S", clock.localtime(self._started + time))
        heap = max(self._usage.heap, sum(self._heaps.values()), victim.heap if victim else 0)
        return f"the kernel OOM-killed {who} of this container at {when}: {self._why(heap)}{self._age(time)}"

    def _age(self, time: float) -> str:
        """How old the figures are, if looks were rare: memory may have risen since."""
        age = time - self._looked
        return f", at the last look {age:.1f} s before" if age >= _OLD else ""

    def _why(self, heap: int) -> str:
        level, limit = self._level()
        sizes = [("heap", heap), ("shared memory and tmpfs", self._usage.shared)]
        sizes.append(("kernel memory", self._usage.kernel))
        parts = [f"{name} {size / MIB:.0f}" for name, size in sizes if size >= (limit or 2**30) / 20]
        used = ", ".join(parts or [f"heap {heap / MIB:.0f}"])
        if level is None or limit is None:
            return f"{used} MiB; no limit of the container was reached, so the machine was out of memory"
        where = "" if level == self._levels[0] else f", the limit of {level.path}"
        return f"{used} of {limit / MIB:.0f} MiB{where}"

    def _level(self) -> tuple[MemoryCgroup | None, int | None]:
        """The innermost group whose limit could not be met, and the limit."""
        inner = self._killed_in
        for level in inner.upwards() if inner else self._levels:
            limit = level.own_limit()
            if limit is None:
                continue
            # Version 1 does not count it: there, a group that was at its limit.
            near = level.version == 1 and (level.peak() or 0) >= limit - MIB
            below = level not in self._levels and level.events().get("oom", 0) > 0
            if level.path in self._met or near or below:
                return level, limit
        return None, None

    def _name(self, pids: Iterable[int]) -> None:
        """Remember command lines: a process may replace its own, and has none once it was killed."""
        for pid in pids:
            try:
                words = proc.command(pid)
            except OSError:
                continue
            if words:
                self._commands[pid] = printable(_short(words))

    def _throttle(self, path: str, time: float, rise: int) -> None:
        start, until, count = self._throttled.get(path, (max(0.0, time - _EVERY), time, 0))
        if rise > 0:
            self._throttled[path] = (start, time, count + rise)
        elif count and time - until > _PAUSE:
            self._close(path)

    def _close(self, path: str) -> None:
        start, until, count = self._throttled.pop(path)
        when = clock.strftime("%H:%M:%S", clock.localtime(self._started + start))
        text = (
            f"the kernel throttled this container from {when} for {until - start:.1f} s: "
            f"over memory.high of {path} ({count:,} times)"
        )
        self.events.append(Event("throttled", start, until, text))

    def _stall(self, time: float) -> None:
        """Report it if the container spent much time on waiting for memory: reclaim, swap, faults."""
        now = self._levels[0].pressure() if self._levels else None
        waited = (now - self._stalled) / 1e6 if now is not None and self._stalled is not None else 0.0
        if waited >= max(_STALL, _STALL_SHARE * time):
            text = f"processes of this container waited {waited:.1f} s of {time:.1f} s for memory (PSI)"
            self.events.append(Event("stalled", 0.0, time, text))


def _short(words: list[str], most: int = 80) -> str:
    """A command line in few characters: long paths without their folders, and the end cut off.

    >>> _short(["/usr/bin/python", "a b.py", "-v"]), _short(["python", "/data" * 20 + "/train.py"])
    ("python 'a b.py' -v", 'python train.py')
    """
    line = shlex.join([os.path.basename(words[0]) or words[0], *words[1:]])
    if len(line) > most:
        line = shlex.join(os.path.basename(word) or word for word in words)
    return line if len(line) <= most else line[: most - 1] + "…"


def _lives(pid: int) -> bool:
    try:
        return proc.state(pid) not in "ZX"
    except OSError:
        return False


def _signal(pid: int) -> int | None:
    try:
        return proc.exit_signal(pid)
    except OSError:
        return None
