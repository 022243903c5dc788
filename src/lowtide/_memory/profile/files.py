"""The files of a tree of processes: how large they are, what is cached, what lives in memory alone.

Files are reached through ``/proc/PID/root`` and ``/proc/PID/fd``, so that those of another mount namespace (a
container, seen from its node) and those that were deleted are the same as any other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from lowtide._memory import proc
from lowtide._memory.tree import Tree, cached

_MIN_SIZE = 2**20  # smaller files are not worth a look at their page cache
_MOST = 64  # files whose page cache is looked at
_MOST_OPEN = 512  # descriptors of a process that are looked at
_UNNAMED = ("/memfd:", "/SYSV", "/dev/zero")  # shared memory without a file in a file system
_DELETED = " (deleted)"
Identity = tuple[int, int]


class Files:
    """What is known of the data files that the processes of ``tree`` have or had open or mapped."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.sizes: dict[str, int] = {}  # of data files on disks
        self._in_memory: dict[Identity, str] = {}  # paths of files in memory file systems
        self._memory_devices: dict[int, set[int]] = {}  # by process

    def size(self, path: str) -> int:
        """The size of a file that the processes see at ``path``; 0 if it is none, or not reachable."""
        for place in self._reach(path):
            try:
                about = os.stat(place)
            except OSError:
                continue
            return about.st_size if stat.S_ISREG(about.st_mode) else 0
        return 0

    def note(self, paths: Iterable[str]) -> None:
        """Remember data files that are mapped, for their page cache."""
        for path in paths:
            if path.startswith("/") and path not in self.sizes and len(self.sizes) < _MOST:
                self.sizes[path] = self.size(path)

    def look(self, code: Iterable[str]) -> dict[str, int]:
        """Note open files; the bytes that those in memory file systems take, by path."""
        allocated: dict[Identity, int] = {}
        programs = set(code)
        for pid in self._tree.pids:
            for path, about in self._open(pid):
                identity = (about.st_dev, about.st_ino)
                if path.startswith(_UNNAMED) or about.st_dev in self._devices(pid):
                    self._in_memory[identity] = path
                    allocated[identity] = about.st_blocks * 512
                elif path not in programs and (path in self.sizes or len(self.sizes) < _MOST):
                    self.sizes[path] = max(about.st_size, self.sizes.get(path, 0))
        self._forget(allocated)
        sizes: dict[str, int] = {}
        for identity, size in allocated.items():
            path = self._in_memory[identity].removesuffix(_DELETED)
            sizes[path] = sizes.get(path, 0) + size
        return sizes

    def is_memory(self, pid: int, row: proc.Mapping) -> bool:
        """Whether a mapping is of shared memory: the kernel counts its pages as such."""
        if row.path.startswith(_UNNAMED):
            return True
        major, _, minor = row.device.partition(":")
        return bool(minor) and os.makedev(int(major, 16), int(minor, 16)) in self._devices(pid)

    def cached(self) -> dict[str, int]:
        """Bytes of each large file on disk in the page cache, where known."""
        return cached(
            {path: next(self._reach(path)) for path, size in self.sizes.items() if size >= _MIN_SIZE}
        )

    def memory_used(self) -> int:
        """Bytes in all memory file systems that the root process sees, of this tree or of others."""
        total = 0
        seen = set()
        for device, point in self._mounts(self._tree.root):
            place = f"{proc.ROOT}/{self._tree.at(self._tree.root)}/root{point}"
            try:
                visible, about = os.stat(place).st_dev, os.statvfs(place)
            except OSError:
                continue
            # Mounted again at the same place, as /dev/shm often is in containers: only the last one is seen.
            if device == visible and device not in seen:
                seen.add(device)
                total += (about.f_blocks - about.f_bfree) * about.f_frsize
        return total

    def _forget(self, allocated: dict[Identity, int]) -> None:
        """Drop files in memory that are gone; those that are closed and still there keep their bytes."""
        for identity, path in list(self._in_memory.items()):
            if identity in allocated:
                continue
            for place in self._reach(path):
                try:
                    about = os.stat(place)
                except OSError:
                    continue
                if (about.st_dev, about.st_ino) == identity:
                    allocated[identity] = about.st_blocks * 512
                    break
            else:
                del self._in_memory[identity]

    def _open(self, pid: int) -> Iterator[tuple[str, os.stat_result]]:
        """Path and status of the regular files that a process has open."""
        folder = f"{proc.ROOT}/{self._tree.at(pid)}/fd"
        try:
            names = os.listdir(folder)[:_MOST_OPEN]
        except OSError:
            return
        for name in names:
            place = f"{folder}/{name}"
            try:
                path = os.readlink(place)
                if not path.startswith("/") or path.startswith(("/proc/", "/sys/")):
                    continue
                about = os.stat(place)
            except OSError:  # closed in the meantime
                continue
            if stat.S_ISREG(about.st_mode):
                yield path, about

    def _reach(self, path: str) -> Iterator[str]:
        for pid in self._tree.pids[:4]:
            yield f"{proc.ROOT}/{self._tree.at(pid)}/root{path}"
        yield path

    def _devices(self, pid: int) -> set[int]:
        if pid not in self._memory_devices:
            devices = {device for device, _ in self._mounts(pid)}
            if len(self._memory_devices) > 4096:
                self._memory_devices.clear()
            self._memory_devices[pid] = devices
        return self._memory_devices[pid]

    def _mounts(self, pid: int) -> Iterator[tuple[int, str]]:
        """Device and mount point of each memory file system that a process sees."""
        try:
            text = proc.read(f"{proc.ROOT}/{self._tree.at(pid)}/mountinfo").decode(errors="surrogateescape")
        except OSError:
            return
        for line in text.splitlines():
            before, _, after = line.partition(" - ")
            if after.startswith(("tmpfs ", "ramfs ", "devtmpfs ")):
                fields = before.split()
                major, _, minor = fields[2].partition(":")
                yield os.makedev(int(major), int(minor)), fields[4]
