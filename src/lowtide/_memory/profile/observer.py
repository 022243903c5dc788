"""What the profiler sees of a tree of processes: cheap points and expensive details.

Counters of children that ended are not lost: Linux adds them to the parent that waits for them. A parent
that never waits (it ignores SIGCHLD) drops them, so the last known figures of a vanished child are kept
until its parent is seen to have them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

from lowtide._memory import cgroup, proc
from lowtide._memory.profile.files import Files
from lowtide._memory.profile.recording import Charges, Detail, Point, Shares
from lowtide._memory.tree import Tree, data_files

_MOST_NAMES = 64  # of mapped files that a look keeps
_MOST_FILES = 4096  # whose sizes are known

# Of one process: bytes requested, from a device, major and minor faults, bytes written, for a device.
Counters = tuple[int, int, int, int, int, int]
_NONE: Counters = (0, 0, 0, 0, 0, 0)


class Observer:
    """Looks at ``tree`` and adds up what it sees."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.started = time.monotonic()
        self.peak = 0  # the kernel's mark of the largest process
        self.epoch = 0  # counts up when processes start or end
        self._alive: list[int] = []  # those that have memory: not those that only wait for their parent
        self.heaps: dict[int, int] = {}  # of the processes that were alive at the last point
        self.group = cgroup.find(tree.root)
        self._files = Files(tree)
        self._code: dict[str, int] = {}  # programs and libraries: path to size
        self._program: dict[str, int] = {}  # the same: path to the most bytes that were resident
        self._largest: dict[str, int] = {}  # of mapped data files: identity to size
        self._counters = _LastingCounters(tree)
        self._file: dict[int, int] = {}  # file pages resident at the last point
        self._touched = 0
        self._code_touched: dict[int, int] = {}
        self._code_touched_by_dead = 0
        self._lock = threading.Lock()  # between points and details, which are taken in another thread

    def discover(self) -> None:
        """Look for processes that have started or ended."""
        self.tree.discover()

    def point(self) -> Point | None:
        """The cheap look; ``None`` when no process of the tree has memory any more."""
        anon = file = shared = 0
        alive = []
        counters: dict[int, Counters] = {}
        gone = []
        self.heaps = {}
        # Parents first: a child that is waited for in between is missed this time, not counted twice.
        for pid in self.tree.pids:
            try:
                place = self.tree.at(pid)
                status = proc.status(place)
                faults = proc.faults(place)  # after the status: an exit in between is noticed
                requested, device, written, stored = self._io(place)
                counters[pid] = (requested, device, faults.major, faults.minor, written, stored)
            except proc.GONE:
                gone.append(pid)
                continue
            if status.rss and not faults.exiting:  # a zombie has none
                alive.append(pid)
                self.heaps[pid] = status.anon
                anon, file, shared = anon + status.anon, file + status.file, shared + status.shared
                self.peak = max(self.peak, status.peak)
                self._touched += max(0, status.file - self._file.get(pid, 0))
                self._file[pid] = status.file
        self.tree.forget(gone)
        with self._lock:
            for pid in gone:
                self._file.pop(pid, None)
                self._code_touched_by_dead += self._code_touched.pop(pid, 0)
        total = self._counters.add(counters)
        if not alive:
            return None
        if alive != self._alive:
            self._alive = alive
            self.epoch += 1
        seconds = time.monotonic() - self.started
        return Point(seconds, self.epoch, len(alive), anon, file, shared, self._touched, *total)

    def shares(self, point: Point) -> Shares | None:
        """What the processes share, counted once, right after ``point``; ``None`` if one ended meanwhile."""
        resident, proportional = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        started = time.monotonic() - self.started
        for pid in self._alive:
            place = self.tree.at(pid)
            try:
                # The expensive figure takes its time; the cheap one is that of the middle of it.
                before, share, after = proc.status(place), self._share(place), proc.status(place)
            except proc.GONE:
                return None
            if after.rss < before.rss / 2:  # its memory is being taken apart
                return None
            for kind in range(3):
                middle = (before.parts[kind] + after.parts[kind]) / 2
                resident[kind] += middle
                proportional[kind] += middle if share is None else share.parts[kind]
        ended = time.monotonic() - self.started
        parts = tuple(resident), tuple(proportional)
        return Shares((started + ended) / 2, point.epoch, point.minor, *parts)  # type: ignore[arg-type]

    def allocator(self) -> str:
        """What serves ``malloc``, as far as it can be seen from outside."""
        names = [os.path.basename(path) for path in self._code]
        known = ("jemalloc", "mimalloc", "tcmalloc")
        return next((name for name in known if any(f"lib{name}" in file for file in names)), "malloc")

    def detail(self) -> Detail | None:
        """The look at files: mapped, open, cached, in memory file systems."""
        rows = self.tree.mappings()
        if not rows:
            return None
        files = self._files
        in_memory: dict[str, int] = {}  # mapped
        dirty: dict[str, int] = {}
        for pid, mappings in rows.items():
            code = [row for row in mappings if row.code and row.path]
            self._code.update((row.path, files.size(row.path)) for row in code if row.path not in self._code)
            # Of programs and libraries, as many pages as were ever resident.
            with self._lock:
                if pid in self.tree.pids:
                    touched = sum(row.rss for row in code)
                    self._code_touched[pid] = max(touched, self._code_touched.get(pid, 0))
            for row in code:
                self._program[row.path] = max(row.rss, self._program.get(row.path, 0))
            for row in mappings:
                if not row.path or row.code:
                    continue
                if files.is_memory(pid, row):
                    path = row.path.removesuffix(" (deleted)")
                    in_memory[path] = max(row.rss, in_memory.get(path, 0))
                    continue
                dirty[row.path] = max(row.dirty, dirty.get(row.path, 0))
                for identity, size in row.sizes.items():
                    if len(self._largest) <= _MOST_FILES:
                        self._largest[identity] = max(size, self._largest.get(identity, 0))
        mapped = data_files(row for mappings in rows.values() for row in mappings)
        on_disk = [path for path in mapped if path.removesuffix(" (deleted)") not in in_memory]
        mapped = {path: mapped[path] for path in on_disk[:_MOST_NAMES]}
        allocated = files.look(self._code)
        files.note(mapped)
        page_cache = files.cached()
        memory_files = {
            path: max(allocated.get(path, 0), in_memory.get(path, 0))
            for path in list({**allocated, **in_memory})[-_MOST_FILES:]
        }
        with self._lock:
            code_touched = sum(self._code_touched.values()) + self._code_touched_by_dead
        return Detail(
            time=time.monotonic() - self.started,
            epoch=self.epoch,
            resident=(0.0, 0.0, 0.0),
            proportional=(0.0, 0.0, 0.0),
            mapped=mapped,
            code=code_touched,
            code_size=sum(self._code.values()),
            data_size=self._data_size(),
            tmpfs=sum(in_memory.values()),
            cached=page_cache,
            unmapped=sum(max(0, length - mapped.get(path, 0)) for path, length in page_cache.items()),
            usage=None,
            working_set=None,
            program=sum(self._program.values()),
            memory_files=memory_files,
            dirty={path: size for path, size in dirty.items() if size},
            memory_used=files.memory_used(),
            sizes={path: files.sizes.get(path, 0) for path in {**mapped, **page_cache}},
        )

    def charges(self) -> Charges | None:
        """What the cgroup is charged for; ``None`` where it is not known."""
        if self.group is None or (usage := self.group.usage()) is None:
            return None
        stat = self.group.stat()
        return Charges(
            time=time.monotonic() - self.started,
            usage=usage,
            working_set=max(0, usage - stat.get("inactive_file", 0)),
            heap=stat.get("anon", stat.get("rss", 0)),
            shared=stat.get("shmem", 0),
            kernel=self.group.kernel(stat),
            unwritten=stat.get("file_dirty", stat.get("dirty", 0))
            + stat.get("file_writeback", stat.get("writeback", 0)),
        )

    def _data_size(self) -> int | None:
        """All that can be resident of mapped data files; ``None`` if some are not known."""
        if len(self._largest) > _MOST_FILES or self.tree.denied:  # for instance hours with temporary files
            return None
        return sum(self._largest.values())

    def _share(self, place: int | str) -> proc.Status | None:
        try:
            return proc.rollup(place)
        except PermissionError:
            self.tree.denied.add(
                "what some processes share with others: they belong to another user, and count with all that "
                "they have resident"
            )
            return None

    def _io(self, place: int | str) -> tuple[int, int, int, int]:
        try:
            return proc.io(place)
        except PermissionError:
            self.tree.denied.add("the bytes read by some processes: they belong to another user")
            return 0, 0, 0, 0


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
    requested, device, major, minor, written, stored = map(sum, zip(*rows, strict=True))
    return requested, device, major, minor, written, stored
