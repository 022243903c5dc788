"""A process, alone or with its descendants: the one place that looks at processes.

``lowtide.watch`` looks through its gauges, the profiler through ``lowtide._memory.profile.observer``. The
sampler process imports this module, so it imports next to nothing.
"""

from __future__ import annotations

import os

from lowtide._memory import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide._memory.cgroup import MemoryCgroup


class Tree:
    """The processes at and below ``root``, or ``root`` alone.

    ``excluded`` processes and those below them are left out. With ``strangers``, the children that this
    process had before the root, others count as well: orphans of the tree, if it is their subreaper. With
    ``pinned`` a number that the system gives to another process later is not taken for the first one: the
    folder of each process in ``/proc`` stays open.
    """

    def __init__(
        self,
        root: int,
        descendants: bool = True,
        strangers: Iterable[int] | None = None,
        excluded: Iterable[int] = (),
        pinned: bool = False,
    ) -> None:
        self.root = root
        self.pids = [root]
        self.epoch = 0  # counts up when processes come or go
        self.parents: dict[int, int] = {}
        self.denied: set[str] = set()  # what could not be seen, and why
        self.descendants = descendants
        self.excluded = set(excluded)
        self._status: int | None = None
        self._folders: dict[int, int] | None = {} if pinned else None
        self._retired: list[int] = []  # folders of processes that have ended
        if pinned:
            self._pin(root)
        self._strangers = None if strangers is None else set(strangers)

    def discover(self) -> bool:
        """Look for processes that have started or ended; whether there are any."""
        if not self.descendants:
            return False
        pids = [self.root]
        if self._strangers is not None:
            own = proc.children(os.getpid())
            pids += [pid for pid in own if pid not in self._strangers and pid != self.root]
        for pid in pids:  # grows while it is walked: parents come before their children
            for child in proc.children(self.at(pid)):
                if child not in pids and child not in self.excluded:
                    self.parents[child] = pid
                    pids.append(child)
        if len(self.parents) > 4 * len(pids) + 1024:  # a run of hours with short children
            self.parents = {child: self.parents[child] for child in pids if child in self.parents}
        return self._replace(pids)

    def forget(self, gone: Iterable[int]) -> bool:
        """Drop processes that have ended; whether there were any."""
        gone = set(gone)
        return self._replace([pid for pid in self.pids if pid not in gone])

    def _replace(self, pids: list[int]) -> bool:
        if pids == self.pids:
            return False
        if self._folders is not None:
            gone = (self._folders.keys() - set(pids)) - {self.root}  # the root's tells that it has ended
            self._retired += [self._folders.pop(pid) for pid in gone]
            for pid in pids:
                self._pin(pid)
        self.pids = pids
        self.epoch += 1
        return True

    def _pin(self, pid: int) -> None:
        if self._folders is not None and pid not in self._folders:
            try:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                self._folders[pid] = os.open(f"{proc.ROOT}/{pid}", flags)
            except OSError:  # it has ended, or too many files are open
                pass

    def release(self) -> None:
        """Close the folders of processes that have ended, when no look is under way in another thread."""
        while self._retired:
            os.close(self._retired.pop())

    def at(self, pid: int) -> int | str:
        """Where a process is below ``/proc``: this process and no later one of the same number."""
        folder = self._folders.get(pid) if self._folders is not None else None
        return pid if folder is None else f"self/fd/{folder}"

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
                now = proc.rollup(self.at(pid))
            except PermissionError:
                now = proc.status(self.at(pid))
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
        """Close what stays open: the file of a process alone, which halves the cost of a look; folders."""
        self.release()
        while self._folders:
            os.close(self._folders.popitem()[1])
        if self._status is not None:
            os.close(self._status)
            self._status = None

    def mappings(self) -> dict[int, list[proc.Mapping]]:
        """The mappings of each process that can be looked at."""
        rows = {}
        for pid in self.pids:
            try:
                rows[pid] = proc.mappings(self.at(pid))
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
                paths.update(proc.open_files(self.at(pid)))
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
    largest: dict[str, int] = {}
    shares: dict[str, int] = {}
    for row in rows:
        if row.path and not row.code:
            # Processes that map one file share its pages, or each has its own part of them.
            largest[row.path] = max(largest.get(row.path, 0), row.rss)
            shares[row.path] = shares.get(row.path, 0) + row.share
    sizes = {path: max(size, shares[path]) for path, size in largest.items()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def cached(paths: Iterable[str] | dict[str, str]) -> dict[str, int]:
    """Bytes of each file in the page cache, of those files whose page cache is known.

    A dict gives for each path the one by which it can be reached from here.
    """
    from lowtide._io import pagecache  # ctypes, which few watches need

    sizes = {}
    places = paths if isinstance(paths, dict) else {path: path for path in paths}
    for path, place in places.items():
        try:
            resident = pagecache.resident(place)
        except OSError:  # deleted, or not permitted
            continue
        if resident is not None:
            sizes[path] = resident[0]
    return sizes
