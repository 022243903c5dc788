"""A process with all its descendants, looked at as one.

Counters of children that ended are not lost: Linux adds them to the parent that waits for them. A parent
that never waits (it ignores SIGCHLD) drops them, so the last known figures of a vanished child are kept
until its parent is seen to have them.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

from lowtide._io import pagecache
from lowtide._memory import cgroups, proc
from lowtide._memory.recording import Detail, Point

_SMALLEST_DATA_FILE = 2**20  # smaller files are not worth a look at their page cache
_MOST_DATA_FILES = 64

# Counters of one process: asked, device, major, minor.
Counters = tuple[int, int, int, int]
_NONE: Counters = (0, 0, 0, 0)


class Tree:
    """The processes at and below ``root``.

    With ``adopted``, also new children of this process: orphans of the tree, where it has asked for them.
    """

    def __init__(self, root: int, adopted: bool = False) -> None:
        self.root = root
        self.epoch = 0  # counts up when processes come or go
        self._strangers = set(proc.children(os.getpid())) - {root} if adopted else None
        self.started = time.monotonic()
        self.pids = [root]
        self.changed = True  # the processes are others than at the last detail
        self.peak = 0  # the kernel's mark of the largest process
        self.denied: set[str] = set()
        self.data_files: dict[str, int] = {}
        self._parents: dict[int, int] = {}
        self._last: dict[int, Counters] = {}
        self._waiting: dict[int, tuple[Counters, int, Counters]] = {}
        self._lost: Counters = _NONE
        self._code: dict[str, int] = {}  # programs and libraries: path to size
        self._file: dict[int, int] = {}  # file pages resident at the last point
        self._touched = 0
        self._code_touched: dict[int, int] = {}
        self._code_touched_by_dead = 0
        self._cgroup = cgroups.find(root)

    def discover(self) -> None:
        """Look for processes that have begun or ended."""
        found = [self.root]
        if self._strangers is not None:
            found += [
                pid for pid in proc.children(os.getpid()) if pid not in self._strangers and pid != self.root
            ]
        for pid in found:  # grows while it is walked: parents come before their children
            for child in proc.children(pid):
                if child not in found:
                    self._parents[child] = pid
                    found.append(child)
        if found != self.pids:
            self.changed = True
            self.epoch += 1
            self.pids = found

    def point(self) -> Point | None:
        """The cheap look; ``None`` when no process of the tree has memory any more."""
        anon = file = shared = alive = 0
        seen: dict[int, Counters] = {}
        gone = []
        # Parents first: a child that is waited for in between is missed this time, not counted twice.
        for pid in self.pids:
            try:
                status = proc.status(pid)
                faults = proc.faults(pid)  # after the status: an exit in between is noticed
                seen[pid] = (*self._io(pid), faults.major, faults.minor)
            except proc.GONE:
                gone.append(pid)
                continue
            if status.rss and not faults.exiting:  # a zombie has none
                alive += 1
                anon, file, shared = anon + status.anon, file + status.file, shared + status.shared
                self.peak = max(self.peak, status.peak)
                self._touched += max(0, status.file - self._file.get(pid, 0))
                self._file[pid] = status.file
        if gone:
            self.pids = [pid for pid in self.pids if pid not in gone]
            self.changed = True
            self.epoch += 1
            for pid in gone:
                self._file.pop(pid, None)
                self._code_touched_by_dead += self._code_touched.pop(pid, 0)
        counters = self._with_lost(seen)
        if not alive:
            return None
        return Point(
            time.monotonic() - self.started, self.epoch, alive, anon, file, shared, self._touched, *counters
        )

    def detail(self) -> Detail | None:
        """The dear look: shares, mappings, page cache, cgroup."""
        self.changed = False
        resident = [0.0, 0.0, 0.0]
        proportional = [0.0, 0.0, 0.0]
        mapped: dict[str, int] = {}
        tmpfs = looked = 0
        for pid in self.pids:
            try:
                if len(self.pids) > 1:
                    # The dear figure takes its time; the cheap one is that of the middle of it.
                    before, rollup, after = proc.status(pid), proc.rollup(pid), proc.status(pid)
                    for kind in range(3):
                        resident[kind] += (before[kind + 1] + after[kind + 1]) / 2
                        proportional[kind] += rollup[kind + 1]
                code = 0
                for row in proc.mappings(pid):
                    if row.code and row.path:
                        self._note_code(row.path)
                        code += row.rss
                    elif row.path:
                        # Processes that map one file share its pages: the largest share is the whole.
                        mapped[row.path] = max(mapped.get(row.path, 0), row.rss)
                        tmpfs += row.rss if _in_memory_file_system(row.path) else 0
                self._code_touched[pid] = max(code, self._code_touched.get(pid, 0))
                self._note_open_files(pid)
                looked += 1
            except proc.GONE:
                continue
            except PermissionError:
                self.denied.add("the mappings of some processes: they belong to another user")
        if not looked:
            return None
        self._note(path for path in mapped if path.startswith("/"))
        cached = self._page_cache()
        return Detail(
            time.monotonic() - self.started, self.epoch, (resident[0], resident[1], resident[2]),
            (proportional[0], proportional[1], proportional[2]), mapped,
            sum(self._code_touched.values()) + self._code_touched_by_dead,
            sum(self._code.values()), sum(map(_size, mapped)), tmpfs, cached,
            sum(max(0, size - mapped.get(path, 0)) for path, size in cached.items()),
            self._cgroup.usage() if self._cgroup else None,
            self._cgroup.working_set() if self._cgroup else None,
        )  # fmt: skip

    def limit(self) -> int | None:
        """The memory limit that holds the tree."""
        return self._cgroup.limit() if self._cgroup else None

    def _io(self, pid: int) -> tuple[int, int]:
        try:
            return proc.io(pid)
        except PermissionError:
            self.denied.add("the bytes read by some processes: they belong to another user")
            return 0, 0

    def _with_lost(self, seen: dict[int, Counters]) -> Counters:
        """Sums over the living, and over the dead whose figures no parent took over."""
        for pid, (figures, parent, before) in list(self._waiting.items()):
            taken_over = parent in seen and all(
                now - then >= figure for now, then, figure in zip(seen[parent], before, figures, strict=True)
            )
            if not taken_over:
                self._lost = _add(self._lost, figures)
            del self._waiting[pid]
        for pid in self._last.keys() - seen.keys():
            parent = self._living_ancestor(pid, seen)
            figures = self._last.pop(pid)
            if pid != self.root:
                self._waiting[pid] = (figures, parent, self._last.get(parent, _NONE))
        # A parent that shows the figures already must not have them twice.
        extra = _NONE
        for pid, (figures, parent, before) in list(self._waiting.items()):
            now = seen.get(parent)
            if now and all(a - b >= c for a, b, c in zip(now, before, figures, strict=True)):
                del self._waiting[pid]
            else:
                extra = _add(extra, figures)
        self._last.update(seen)
        total = _add(self._lost, extra)
        for figures in seen.values():
            total = _add(total, figures)
        return total

    def _living_ancestor(self, pid: int, seen: dict[int, Counters]) -> int:
        while pid in self._parents:
            pid = self._parents[pid]
            if pid in seen:
                return pid
        return self.root

    def _note_code(self, path: str) -> None:
        if path not in self._code:
            self._code[path] = _size(path)

    def _note_open_files(self, pid: int) -> None:
        folder = f"{proc.ROOT}/{pid}/fd"
        paths = []
        for name in os.listdir(folder):
            try:
                paths.append(os.readlink(f"{folder}/{name}"))
            except OSError:  # closed in the meantime
                continue
        self._note(path for path in paths if path.startswith("/") and path not in self._code)

    def _note(self, paths: Iterable[str]) -> None:
        """Remember data files, for their page cache."""
        for path in paths:
            if path not in self.data_files and len(self.data_files) < _MOST_DATA_FILES:
                self.data_files[path] = _size(path)

    def _page_cache(self) -> dict[str, int]:
        cached = {}
        for path, size in self.data_files.items():
            if size < _SMALLEST_DATA_FILE or _in_memory_file_system(path):
                continue
            try:
                told = pagecache.resident(path)
            except OSError:  # deleted, or not ours to open
                continue
            if told is not None:
                cached[path] = told[0]
        return cached


def _add(left: Counters, right: Counters) -> Counters:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3]


def _size(path: str) -> int:
    try:
        about = os.stat(path)
    except OSError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


def _in_memory_file_system(path: str) -> bool:
    """Whether a mapped path lies in a tmpfs, whose pages the kernel counts as shared memory."""
    # Unnamed shared memory has a path too (/dev/zero, /memfd:…, /SYSV…), yet no file behind it to read.
    if not os.path.isfile(path):
        return False
    device = os.stat(path).st_dev
    if device not in _tmpfs:
        _tmpfs[device] = _file_system(device) == "tmpfs"
    return _tmpfs[device]


_tmpfs: dict[int, bool] = {}


def _file_system(device: int) -> str:
    name = f" {os.major(device)}:{os.minor(device)} "
    for line in proc.read(f"{proc.ROOT}/self/mountinfo").decode(errors="replace").splitlines():
        if name in line:
            return line.partition(" - ")[2].split()[0]
    return ""
