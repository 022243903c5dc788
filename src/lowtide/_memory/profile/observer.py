"""What the profiler sees of a tree of processes: cheap points and expensive details.

Counters of children that ended are not lost: Linux adds them to the parent that waits for them. A parent
that never waits (it ignores SIGCHLD) drops them, so the last known figures of a vanished child are kept
until its parent is seen to have them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from lowtide._memory import cgroup, proc
from lowtide._memory.profile.recording import Detail, Parts, Point
from lowtide._memory.tree import Tree, cached, data_files, in_tmpfs, size

_MIN_DATA_FILE = 2**20  # smaller files are not worth a look at their page cache
_MAX_DATA_FILES = 64

# Counters of one process: bytes requested, bytes from a device, major faults, minor faults.
Counters = tuple[int, int, int, int]
_NONE: Counters = (0, 0, 0, 0)


class Observer:
    """Looks at ``tree`` and adds up what it sees."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.started = time.monotonic()
        self.changed = True  # the processes are others than at the last detail
        self.peak = 0  # the kernel's mark of the largest process
        self.heaps: dict[int, int] = {}  # of the processes that were alive at the last point
        self.group = cgroup.find(tree.root)
        self._data_files: dict[str, int] = {}  # mapped or read: path to size
        self._code: dict[str, int] = {}  # programs and libraries: path to size
        self._counters = _LastingCounters(tree)
        self._file: dict[int, int] = {}  # file pages resident at the last point
        self._touched = 0
        self._code_touched: dict[int, int] = {}
        self._code_touched_by_dead = 0

    def discover(self) -> None:
        """Look for processes that have started or ended."""
        self.changed |= self.tree.discover()

    def point(self) -> Point | None:
        """The cheap look; ``None`` when no process of the tree has memory any more."""
        anon = file = shared = alive = 0
        counters: dict[int, Counters] = {}
        gone = []
        self.heaps = {}
        # Parents first: a child that is waited for in between is missed this time, not counted twice.
        for pid in self.tree.pids:
            try:
                status = proc.status(pid)
                faults = proc.faults(pid)  # after the status: an exit in between is noticed
                counters[pid] = (*self._io(pid), faults.major, faults.minor)
            except proc.GONE:
                gone.append(pid)
                continue
            if status.rss and not faults.exiting:  # a zombie has none
                alive += 1
                self.heaps[pid] = status.anon
                anon, file, shared = anon + status.anon, file + status.file, shared + status.shared
                self.peak = max(self.peak, status.peak)
                self._touched += max(0, status.file - self._file.get(pid, 0))
                self._file[pid] = status.file
        self.changed |= self.tree.forget(gone)
        for pid in gone:
            self._file.pop(pid, None)
            self._code_touched_by_dead += self._code_touched.pop(pid, 0)
        total = self._counters.add(counters)
        if not alive:
            return None
        seconds = time.monotonic() - self.started
        return Point(seconds, self.tree.epoch, alive, anon, file, shared, self._touched, *total)

    def allocator(self) -> str:
        """What serves ``malloc``, as far as it can be seen from outside."""
        names = [os.path.basename(path) for path in self._code]
        known = ("jemalloc", "mimalloc", "tcmalloc")
        return next((name for name in known if any(f"lib{name}" in file for file in names)), "malloc")

    def detail(self) -> Detail | None:
        """The expensive look: shares, mappings, page cache, cgroup."""
        self.changed = False
        resident, proportional = self._shares()
        rows = self.tree.mappings()
        if not rows:
            return None
        tmpfs = 0
        for pid, mappings in rows.items():
            code = [row for row in mappings if row.code and row.path]
            self._code.update((row.path, size(row.path)) for row in code if row.path not in self._code)
            # Of programs and libraries, as many pages as were ever resident.
            self._code_touched[pid] = max(sum(row.rss for row in code), self._code_touched.get(pid, 0))
            data = (row for row in mappings if row.path and not row.code)
            tmpfs += sum(row.rss for row in data if in_tmpfs(row.path))
        mapped = data_files(row for mappings in rows.values() for row in mappings)
        self._note(path for path in self.tree.open_files() if path not in self._code)
        self._note(path for path in mapped if path.startswith("/"))
        large = (path for path, length in self._data_files.items() if length >= _MIN_DATA_FILE)
        page_cache = cached(path for path in large if not in_tmpfs(path))
        return Detail(
            time=time.monotonic() - self.started,
            epoch=self.tree.epoch,
            resident=resident,
            proportional=proportional,
            mapped=mapped,
            code=sum(self._code_touched.values()) + self._code_touched_by_dead,
            code_size=sum(self._code.values()),
            data_size=sum(map(size, mapped)),
            tmpfs=tmpfs,
            cached=page_cache,
            unmapped=sum(max(0, length - mapped.get(path, 0)) for path, length in page_cache.items()),
            usage=self.group.usage() if self.group else None,
            working_set=self.group.working_set() if self.group else None,
        )

    def _shares(self) -> tuple[Parts, Parts]:
        """Resident memory by kind summed over processes: each page for all that have it, and divided."""
        resident, proportional = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for pid in self.tree.pids if len(self.tree.pids) > 1 else ():
            try:
                # The expensive figure takes its time; the cheap one is that of the middle of it.
                before, rollup, after = proc.status(pid), proc.rollup(pid), proc.status(pid)
            except (*proc.GONE, PermissionError):
                continue
            for kind, (first, share, last) in enumerate(
                zip(before.parts, rollup.parts, after.parts, strict=True)
            ):
                resident[kind] += (first + last) / 2
                proportional[kind] += share
        return (resident[0], resident[1], resident[2]), (proportional[0], proportional[1], proportional[2])

    def _io(self, pid: int) -> tuple[int, int]:
        try:
            return proc.io(pid)
        except PermissionError:
            self.tree.denied.add("the bytes read by some processes: they belong to another user")
            return 0, 0

    def _note(self, paths: Iterable[str]) -> None:
        """Remember data files, for their page cache."""
        for path in paths:
            if path not in self._data_files and len(self._data_files) < _MAX_DATA_FILES:
                self._data_files[path] = size(path)


class _LastingCounters:
    """Sums over the living, and over the dead whose counters no parent took over."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._last: dict[int, Counters] = {}
        # Of a process that vanished: its counters, the ancestor that may take them over, that one's counters.
        self._waiting: dict[int, tuple[Counters, int, Counters]] = {}
        self._lost: Counters = _NONE

    def add(self, now: dict[int, Counters]) -> Counters:
        """The sums, after the counters of the living have been read again."""
        for counters, parent, before in self._waiting.values():
            if not _includes(now.get(parent), before, counters):
                self._lost = _sum([self._lost, counters])
        self._waiting.clear()
        for pid in self._last.keys() - now.keys():
            parent = self._living_ancestor(pid, now)
            counters = self._last.pop(pid)
            before = self._last.get(parent, _NONE)
            # A parent that shows the counters already must not have them twice.
            if pid != self._tree.root and not _includes(now.get(parent), before, counters):
                self._waiting[pid] = (counters, parent, before)
        self._last.update(now)
        return _sum([self._lost, *(counters for counters, _, _ in self._waiting.values()), *now.values()])

    def _living_ancestor(self, pid: int, now: dict[int, Counters]) -> int:
        while pid in self._tree.parents:
            pid = self._tree.parents[pid]
            if pid in now:
                return pid
        return self._tree.root


def _includes(now: Counters | None, before: Counters, counters: Counters) -> bool:
    """Whether a process has risen by at least ``counters`` since ``before``."""
    return now is not None and all(a - b >= c for a, b, c in zip(now, before, counters, strict=True))


def _sum(rows: Iterable[Counters]) -> Counters:
    requested, device, major, minor = map(sum, zip(*rows, strict=True))
    return requested, device, major, minor
