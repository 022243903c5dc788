"""The memory cgroup of a process: what a container really has, and what it is charged for.

Version 1, version 2 and hybrid mounts (the memory controller on version 1 beside an empty unified tree)
are located through ``/proc/PID/cgroup`` and ``/proc/self/mountinfo``. In a container the mount often shows
only the container's part of the tree, so paths are taken relative to the mount's root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lowtide._memory import proc

# Version 1 has no word for "no limit": it shows the largest page-aligned number of bytes instead.
_UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """One memory cgroup: a folder below a mount point.

    Parameters
    ----------
    path : str
        The folder of the cgroup.
    mount : str
        The topmost folder that is visible.
    """

    version: ClassVar[int]
    _usage: ClassVar[str]
    _limit: ClassVar[str]
    _peak: ClassVar[str]
    _parts: ClassVar[tuple[str, str]]  # lines of memory.stat: anonymous memory and page cache

    path: str
    mount: str

    def usage(self) -> int | None:
        """Bytes charged to the group: heap, page cache, kernel memory, of all its processes."""
        return _number(self.path, self._usage)

    def stat(self) -> dict[str, int]:
        """``memory.stat``; in version 1 the ``total_`` figures, which include the groups below."""
        try:
            text = proc.read(f"{self.path}/memory.stat").decode()
        except OSError:
            return {}
        pairs = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        numbers = {name: int(value) for name, value in pairs.items() if value.isdigit()}
        totals = {name[6:]: value for name, value in numbers.items() if name.startswith("total_")}
        return {**numbers, **totals}

    def parts(self) -> tuple[int, int] | None:
        """Bytes of anonymous memory and of page cache (mapped or not) charged to the group."""
        stat = self.stat()
        anon, cache = self._parts
        return (stat[anon], stat[cache]) if anon in stat and cache in stat else None

    def working_set(self) -> int | None:
        """Usage without inactive page cache: what Kubernetes evicts for."""
        usage = self.usage()
        stat = self.stat()
        if usage is None or "inactive_file" not in stat:
            return None
        return max(0, usage - stat["inactive_file"])

    def kernel(self, stat: dict[str, int]) -> int:
        """Bytes of kernel memory charged to the group: sockets, page tables, directory entries."""
        raise NotImplementedError

    def limit(self) -> int | None:
        """The smallest limit of the group and of all its parents; ``None`` where there is none."""
        limits = [_number(folder, self._limit) for folder in self._upwards()]
        # Version 1 also reports the limit of parents that a container's mount does not show.
        limits.append(self.stat().get("hierarchical_memory_limit") or None)
        return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)

    def peak(self) -> int | None:
        """The highest usage since the group was created (or since it was reset)."""
        return _number(self.path, self._peak)

    def exists(self) -> bool:
        """Whether the group has the memory controller. A root of version 2 has no usage, but a stat."""
        return self.usage() is not None or bool(self.stat())

    def _upwards(self) -> Iterator[str]:
        folder = self.path
        yield folder
        while len(folder) > len(self.mount):
            folder = os.path.dirname(folder)
            yield folder


class CgroupV1(MemoryCgroup):
    """A group in the tree of the version 1 memory controller."""

    __slots__ = ()
    version = 1
    _usage, _limit = "memory.usage_in_bytes", "memory.limit_in_bytes"
    _peak = "memory.max_usage_in_bytes"
    _parts = ("rss", "cache")

    def kernel(self, stat: dict[str, int]) -> int:
        return _number(self.path, "memory.kmem.usage_in_bytes") or 0

    @staticmethod
    def member(_number: str, controllers: str) -> bool:
        """Whether a line of ``/proc/PID/cgroup`` is for this tree."""
        return "memory" in controllers.split(",")

    @staticmethod
    def mounted(kind: str, options: str) -> bool:
        """Whether a line of ``mountinfo`` is for this tree."""
        return kind == "cgroup" and "memory" in options.split(",")


class CgroupV2(MemoryCgroup):
    """A group in the unified tree."""

    __slots__ = ()
    version = 2
    _usage, _limit, _peak = "memory.current", "memory.max", "memory.peak"
    _parts = ("anon", "file")

    def kernel(self, stat: dict[str, int]) -> int:
        parts = ("kernel_stack", "pagetables", "percpu", "slab")  # before Linux 5.18 there is no sum
        return stat.get("kernel", sum(stat.get(name, 0) for name in parts)) + stat.get("sock", 0)

    @staticmethod
    def member(number: str, controllers: str) -> bool:
        return number == "0" and controllers == ""

    @staticmethod
    def mounted(kind: str, _options: str) -> bool:
        return kind == "cgroup2"


# A controller lives in one tree at a time; on a hybrid machine the unified tree lacks it.
VERSIONS: tuple[type[CgroupV1 | CgroupV2], ...] = (CgroupV1, CgroupV2)


def find(pid: int | str = "self") -> MemoryCgroup | None:
    """The memory cgroup of a process; ``None`` where there is no memory controller."""
    try:
        memberships = proc.read(f"{proc.ROOT}/{pid}/cgroup").decode()
        mounts = proc.read(f"{proc.ROOT}/self/mountinfo").decode()
    except OSError:
        return None
    lines = [line.split(":", 2) for line in memberships.splitlines()]
    for kind in VERSIONS:
        for path in [path for number, controllers, path in lines if kind.member(number, controllers)]:
            for root, point in _mounts(mounts, kind):
                group = kind(_below(root, point, path), point)
                if group.exists():
                    return group
    return None


def _mounts(mountinfo: str, kind: type[CgroupV1 | CgroupV2]) -> Iterator[tuple[str, str]]:
    """Root and mount point of each cgroup mount that may hold the memory controller."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, system = before.split(), after.split()
        if len(fields) >= 5 and len(system) >= 3 and kind.mounted(system[0], system[2]):
            yield _unescape(fields[3]), _unescape(fields[4])


def _below(root: str, point: str, path: str) -> str:
    """The folder of cgroup ``path`` when the tree from ``root`` on is mounted at ``point``."""
    inside = os.path.relpath(path, root)
    folder = os.path.normpath(os.path.join(point, inside))
    if inside.startswith("..") or not os.path.isdir(folder):
        return point  # the path is not visible from here: the mount itself is the nearest that is
    return folder


def _unescape(text: str) -> str:
    """Mount points with spaces and tabs are written in octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _number(folder: str, name: str) -> int | None:
    try:
        text = proc.read(f"{folder}/{name}").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # version 2 writes "max" for no limit
