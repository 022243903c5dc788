"""A process, alone or with its descendants: the one place that looks at processes.

``lowtide.watch`` looks through its gauges, the profiler through ``lowtide._memory.profile.observer``. The
sampler process imports this module, so it imports next to nothing.
"""

from __future__ import annotations

import os
import stat

from lowtide._memory import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide._memory.cgroup import MemoryCgroup


class Tree:
    """The processes at and below ``root``, or ``root`` alone.

    ``excluded`` processes and those below them are left out. With ``adopted`` also new children of this
    process: orphans of the tree, if it is their subreaper.
    """

    def __init__(
        self, root: int, descendants: bool = True, adopted: bool = False, excluded: Iterable[int] = ()
    ) -> None:
        self.root = root
        self.pids = [root]
        self.epoch = 0  # counts up when processes come or go
        self.parents: dict[int, int] = {}
        self.denied: set[str] = set()  # what could not be seen, and why
        self.descendants = descendants
        self.excluded = set(excluded)
        self._status: int | None = None
        self._strangers = set(proc.children(os.getpid())) - {root} if adopted else None

    def discover(self) -> bool:
        """Look for processes that have started or ended; whether there are any."""
        if not self.descendants:
            return False
        pids = [self.root]
        if self._strangers is not None:
            own = proc.children(os.getpid())
            pids += [pid for pid in own if pid not in self._strangers and pid != self.root]
        for pid in pids:  # grows while it is walked: parents come before their children
            for child in proc.children(pid):
                if child not in pids and child not in self.excluded:
                    self.parents[child] = pid
                    pids.append(child)
        return self._replace(pids)

    def forget(self, gone: Iterable[int]) -> bool:
        """Drop processes that have ended; whether there were any."""
        gone = set(gone)
        return self._replace([pid for pid in self.pids if pid not in gone])

    def _replace(self, pids: list[int]) -> bool:
        if pids == self.pids:
            return False
        self.pids = pids
        self.epoch += 1
        return True

    def status(self) -> proc.Status:
        """Resident memory by kind; a ``ProcessLookupError`` if no process has memory any more.

        That of several processes is the sum of proportional shares: a forked child shares most pages with
        its parent. A process whose share may not be read counts with all that it has resident.
        """
        if not self.descendants:
            return self._root_status()
        self.discover()
        rss = anon = file = shared = peak = 0
        for pid in self.pids:
            try:
                now = proc.rollup(pid)
            except PermissionError:
                now = proc.status(pid)
            except proc.GONE:
                continue
            rss, anon, file, shared = rss + now.rss, anon + now.anon, file + now.file, shared + now.shared
            peak = max(peak, now.peak)
        if not rss:
            raise ProcessLookupError
        return proc.Status(rss, anon, file, shared, peak)

    def _root_status(self) -> proc.Status:
        if self._status is None:
            self._status = os.open(f"{proc.ROOT}/{self.root}/status", os.O_RDONLY | os.O_CLOEXEC)
        status = proc.parse_status(os.pread(self._status, 8192, 0))
        if not status.rss:
            raise ProcessLookupError
        return status

    def close(self) -> None:
        """Close the file that stays open for a process alone, which halves the cost of a look."""
        if self._status is not None:
            os.close(self._status)
            self._status = None

    def mappings(self) -> dict[int, list[proc.Mapping]]:
        """The mappings of each process that can be looked at."""
        rows = {}
        for pid in self.pids:
            try:
                rows[pid] = proc.mappings(pid)
            except proc.GONE:
                continue
            except PermissionError:
                self.denied.add("the mappings of some processes: they belong to another user")
        return rows

    def open_files(self) -> list[str]:
        """Files that the processes have open."""
        paths: set[str] = set()
        for pid in self.pids:
            try:
                paths.update(proc.open_files(pid))
            except OSError:
                continue
        return sorted(paths)


class GroupTree(Tree):
    """The processes of a memory cgroup and of the groups below it, but for ``excluded``."""

    def __init__(self, group: MemoryCgroup, excluded: Iterable[int] = ()) -> None:
        self._group = group
        pids = [pid for pid in group.processes() if pid not in set(excluded)]
        super().__init__(pids[0] if pids else 0, excluded=excluded)

    def discover(self) -> bool:
        pids = [pid for pid in self._group.processes() if pid not in self.excluded]
        self.root = pids[0] if pids and self.root not in pids else self.root
        return self._replace(pids)


def data_files(rows: Iterable[proc.Mapping]) -> dict[str, int]:
    """Data files among mappings, and the bytes of them that are resident, the largest first."""
    sizes: dict[str, int] = {}
    for row in rows:
        if row.path and not row.code:
            # Processes that map one file share its pages: the largest share is the whole.
            sizes[row.path] = max(sizes.get(row.path, 0), row.rss)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def cached(paths: Iterable[str]) -> dict[str, int]:
    """Bytes of each file in the page cache, of those files whose page cache is known."""
    from lowtide._io import pagecache  # ctypes, which few watches need

    sizes = {}
    for path in paths:
        try:
            resident = pagecache.resident(path)
        except OSError:  # deleted, or not permitted
            continue
        if resident is not None:
            sizes[path] = resident[0]
    return sizes


def size(path: str) -> int:
    """The size of a regular file; 0 for anything else."""
    try:
        about = os.stat(path)
    except OSError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


def in_tmpfs(path: str) -> bool:
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
