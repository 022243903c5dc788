"""The memory cgroup of a process: what a container really has, and what it is charged for.

Version 1, version 2 and hybrid mounts (the memory controller on version 1 beside an empty unified tree)
are located through ``/proc/PID/cgroup`` and ``/proc/self/mountinfo``. In a container the mount often shows
only the container's part of the tree, so paths are taken relative to the mount's root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from lowtide._memory import proc

# Version 1 has no word for "no limit": it shows the largest page-aligned number of bytes instead.
_UNLIMITED = 2**62


class Charged(NamedTuple):
    """What a group is charged for that the kernel cannot take back, in bytes."""

    heap: int = 0
    shared: int = 0  # shared memory and files in memory file systems, mapped or not
    kernel: int = 0  # sockets, page tables, directory entries


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
    _bounds: ClassVar[tuple[tuple[str, str], ...]]  # files of a bound and of what counts against it

    path: str
    mount: str

    def usage(self) -> int | None:
        """Bytes charged to the group: heap, page cache, kernel memory, of all its processes."""
        return _number(self.path, self._usage)

    def stat(self) -> dict[str, int]:
        """``memory.stat``; in version 1 the ``total_`` figures, which include the groups below."""
        numbers = _counts(f"{self.path}/memory.stat")
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

    def limit(self) -> int | None:
        """The smallest limit of the group and of all its parents; ``None`` where there is none."""
        limits = [group.own_limit() for group in self.upwards()]
        # Version 1 also reports the limit of parents that a container's mount does not show.
        limits.append(self.stat().get("hierarchical_memory_limit") or None)
        return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)

    def own_limit(self) -> int | None:
        """The limit of this group, whatever its parents have; ``None`` where there is none."""
        limit = _number(self.path, self._limit)
        return limit if limit is not None and limit < _UNLIMITED else None

    def high(self) -> int | None:
        """The usage above which the group is throttled; ``None`` where there is none, as in version 1."""
        return _number(self.path, "memory.high")

    def killed_together(self) -> bool:
        """Whether the kernel kills all processes of the group if it kills one."""
        return any(_number(group.path, "memory.oom.group") == 1 for group in self.upwards())

    def peak(self) -> int | None:
        """The highest usage since the group was created (or since it was reset)."""
        return _number(self.path, self._peak)

    def events(self) -> dict[str, int]:
        """How often something happened to the group: ``oom_kill`` processes that the kernel killed.

        Version 2 also has ``oom`` (the limit could not be met), ``max`` (the limit was met, and something
        was reclaimed) and ``high`` (throttled), of this group and those below. Version 1 has ``max``, and
        counts kills of this group alone: see ``kills``.
        """
        raise NotImplementedError

    def kills(self) -> dict[str, int]:
        """How many processes the kernel killed, by the folder of their group: this one or one below.

        A group that was removed has no count any more.
        """
        return {group.path: count for group in self._below() if (count := group._own_kills())}

    def killed(self) -> int:
        """How many processes of this group and of those below the kernel killed."""
        return self.events().get("oom_kill", 0)

    def _own_kills(self) -> int:
        raise NotImplementedError

    def _below(self) -> Iterator[Self]:
        """This group and those below it."""
        yield self
        try:
            if os.stat(self.path).st_nlink == 2:  # no folders: the usual case, and it is asked often
                return
        except OSError:
            return
        for folder, names, _ in os.walk(self.path):
            for name in names:
                yield type(self)(os.path.join(folder, name), self.mount)

    def charged(self) -> Charged:
        """What the group is charged for besides page cache."""
        stat = self.stat()
        return Charged(stat.get(self._parts[0], 0), stat.get("shmem", 0), self.kernel(stat))

    def kernel(self, stat: dict[str, int]) -> int:
        """Bytes of kernel memory charged to the group: sockets, page tables, directory entries.

        Parameters
        ----------
        stat : dict
            What ``stat`` returned.
        """
        raise NotImplementedError

    def pressure(self) -> int | None:
        """Microseconds in which some process of the group waited for memory; ``None`` where unknown."""
        return stalled(f"{self.path}/memory.pressure")

    def processes(self) -> list[int]:
        """The processes of the group and of those below it that are visible from here."""
        pids: list[int] = []
        for folder, _, names in os.walk(self.path):
            if "cgroup.procs" in names:
                with contextlib.suppress(OSError):  # removed in the meantime
                    pids += map(int, proc.read(f"{folder}/cgroup.procs").split())
        return sorted({pid for pid in pids if pid})  # 0: in another process namespace

    def exists(self) -> bool:
        """Whether the group has the memory controller. A root of version 2 has no usage, but a stat."""
        return self.usage() is not None or bool(self.stat())

    def upwards(self) -> Iterator[Self]:
        """The group itself and its parents, as far as they are visible."""
        folder = self.path
        yield self
        while len(folder) > len(self.mount):
            folder = os.path.dirname(folder)
            yield type(self)(folder, self.mount)

    def room(self) -> Iterator[tuple[int, str]]:
        """Bytes that may still be charged within each bound of this group alone, and the file of the bound.

        Page cache and reclaimable kernel memory count as room: the kernel takes them back first.
        """
        stat = self.stat()
        reclaimable = sum(stat.get(name, 0) for name in ("active_file", "inactive_file", "slab_reclaimable"))
        for bound, used in self._bounds:
            limit, usage = _number(self.path, bound), _number(self.path, used)
            if limit is not None and limit < _UNLIMITED and usage is not None:
                yield max(0, limit - max(0, usage - reclaimable)), f"{self.path}/{bound}"
        # A parent that is not visible: what else it is charged for is not known, what this group has is.
        hidden, usage = stat.get("hierarchical_memory_limit", _UNLIMITED), self.usage()
        if self.path == self.mount and hidden < _UNLIMITED and usage is not None:
            yield max(0, hidden - max(0, usage - reclaimable)), f"{self.path}/memory.stat"


class CgroupV1(MemoryCgroup):
    """A group in the tree of the version 1 memory controller."""

    __slots__ = ()
    version = 1
    _usage, _limit = "memory.usage_in_bytes", "memory.limit_in_bytes"
    _peak = "memory.max_usage_in_bytes"
    _parts = ("rss", "cache")
    _bounds = ((_limit, _usage), ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"))

    def events(self) -> dict[str, int]:
        counts = _counts(f"{self.path}/memory.oom_control")
        hits = _number(self.path, "memory.failcnt") or 0
        return {"oom_kill": counts.get("oom_kill", 0), "max": hits}

    def killed(self) -> int:
        return sum(self.kills().values())

    def _own_kills(self) -> int:
        return self.events()["oom_kill"]

    def _below(self) -> Iterator[Self]:
        # Below the root of the tree is the whole machine. Only the root has this file; a container does not.
        return iter((self,)) if os.path.exists(f"{self.path}/release_agent") else super()._below()

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
    _bounds = (("memory.max", "memory.current"), ("memory.high", "memory.current"))

    def events(self) -> dict[str, int]:
        return _counts(f"{self.path}/memory.events")

    def _own_kills(self) -> int:
        # Before Linux 5.2 it is not known which of the groups below it was.
        return _counts(f"{self.path}/memory.events.local").get("oom_kill", 0)

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
                if path.startswith("/..") and pid not in ("self", os.getpid()):
                    # In a container beside this one, as seen from a debug container: as it sees itself.
                    inside = f"{proc.ROOT}/{pid}/root{point}"
                    group = kind(inside, inside)
                if group.exists():
                    return group
    return None


def at(path: str) -> MemoryCgroup | None:
    """The memory cgroup of a folder, or of a path below the mount, such as ``/kubepods/pod7``."""
    try:
        mounts = proc.read(f"{proc.ROOT}/self/mountinfo").decode()
    except OSError:
        return None
    for kind in VERSIONS:
        for _, point in _mounts(mounts, kind):
            for folder in (os.path.abspath(path), os.path.normpath(f"{point}/{path}")):
                if os.path.commonpath([folder, point]) == point and os.path.isdir(folder):
                    group = kind(folder, point)
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


def stalled(path: str) -> int | None:
    """Microseconds of ``some`` in a file of pressure stall information; ``None`` where there is none."""
    try:
        first = proc.read(path).split(b"\n", 1)[0]
        return int(first.rsplit(b"total=", 1)[1]) if first.startswith(b"some ") else None
    except (OSError, IndexError, ValueError):  # EOPNOTSUPP: compiled in and switched off
        return None


def _counts(path: str) -> dict[str, int]:
    """Lines ``name number`` of a file; nothing where it cannot be read."""
    try:
        text = proc.read(path).decode()
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


def _number(folder: str, name: str) -> int | None:
    try:
        text = proc.read(f"{folder}/{name}").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # version 2 writes "max" for no limit
