"""The memory cgroup of a process: what a container really has, and what it is charged for.

Version 1, version 2 and hybrid mounts (the memory controller on version 1 beside an empty unified tree)
are found from ``/proc/PID/cgroup`` and ``/proc/self/mountinfo``. In a container the mount often shows only
the container's own part of the tree, so paths are taken relative to the mount's root.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from lowtide._memory import proc

# Version 1 has no word for "no limit": it shows the largest page-aligned number of bytes instead.
_UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """One memory cgroup: a folder below a mount point.

    ``version`` is 1 or 2; ``path`` the folder; ``mount`` the topmost folder that can be seen.
    """

    version: int
    path: str
    mount: str

    def usage(self) -> int | None:
        """Bytes charged to the group: heap, page cache, kernel memory, of all its processes."""
        return _number(self.path, "memory.usage_in_bytes" if self.version == 1 else "memory.current")

    def stat(self) -> dict[str, int]:
        """``memory.stat``; in version 1 the ``total_`` figures, which include the groups below."""
        try:
            text = proc.read(f"{self.path}/memory.stat").decode()
        except OSError:
            return {}
        pairs = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        numbers = {name: int(value) for name, value in pairs.items() if value.isdigit()}
        return {
            **numbers,
            **{name[6:]: value for name, value in numbers.items() if name.startswith("total_")},
        }

    def parts(self) -> tuple[int, int] | None:
        """Bytes of anonymous memory and of page cache (mapped or not) charged to the group."""
        stat = self.stat()
        names = ("rss", "cache") if self.version == 1 else ("anon", "file")
        if not all(name in stat for name in names):
            return None
        return stat[names[0]], stat[names[1]]

    def working_set(self) -> int | None:
        """Usage without inactive page cache: what Kubernetes evicts for."""
        usage = self.usage()
        stat = self.stat()
        if usage is None or "inactive_file" not in stat:
            return None
        return max(0, usage - stat["inactive_file"])

    def limit(self) -> int | None:
        """The smallest limit of the group and of all its parents; ``None`` where there is none."""
        limits = [limit for limit in map(self._own_limit, self._upwards()) if limit is not None]
        # Version 1 also tells the limit of parents that a container's mount does not show.
        if self.version == 1 and 0 < (beyond := self.stat().get("hierarchical_memory_limit", 0)) < _UNLIMITED:
            limits.append(beyond)
        return min(limits, default=None)

    def peak(self) -> int | None:
        """The highest usage since the group was made (or since somebody reset it)."""
        return _number(self.path, "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")

    def _own_limit(self, folder: str) -> int | None:
        number = _number(folder, "memory.limit_in_bytes" if self.version == 1 else "memory.max")
        return number if number is not None and number < _UNLIMITED else None

    def _upwards(self) -> list[str]:
        folders = [self.path]
        while len(folders[-1]) > len(self.mount):
            folders.append(os.path.dirname(folders[-1]))
        return folders


def find(pid: int | str = "self") -> MemoryCgroup | None:
    """The memory cgroup of a process; ``None`` where there is no memory controller."""
    try:
        memberships = proc.read(f"{proc.ROOT}/{pid}/cgroup").decode()
        mounts = proc.read(f"{proc.ROOT}/self/mountinfo").decode()
    except OSError:
        return None
    paths: dict[int, str] = {}
    for line in memberships.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            paths[1] = path
        elif number == "0" and controllers == "":
            paths[2] = path
    # A controller lives in one tree at a time; on a hybrid machine the unified tree lacks it.
    for version in (1, 2):
        if version not in paths:
            continue
        for root, point in _mounts(mounts, version):
            folder = _below(root, point, paths[version])
            group = MemoryCgroup(version, folder, point)
            # The top of the unified tree has no usage file; it has a stat file if it has the controller.
            if group.usage() is not None or (version == 2 and group.stat()):
                return group
    return None


def _mounts(mountinfo: str, version: int) -> list[tuple[str, str]]:
    """Root and mount point of each cgroup mount that may hold the memory controller."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        wanted = (
            kind[0] == "cgroup2" if version == 2 else kind[0] == "cgroup" and "memory" in kind[2].split(",")
        )
        if wanted:
            found.append((_unescape(fields[3]), _unescape(fields[4])))
    return found


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
    return int(text) if text.isdigit() else None  # version 2 says "max" for no limit
