"""The kinds of memory that a watch can measure, one class each, and the list of them.

A gauge exists twice for each watch: in the watched process, which reads it at the start and at the end, and
in the sampler, which reads it in between. The sampler imports this module, so it imports next to nothing.
"""

from __future__ import annotations

from lowtide._memory.tree import Tree, cached, data_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar

    from lowtide._memory.proc import Status

    Parts = Mapping[str, int]


class Gauge:
    """One way to measure the memory of a tree; ``bases`` are figures of files at the start of the watch."""

    name: ClassVar[str]
    """The value of ``kind=``."""
    noun: ClassVar[str]
    """What messages call it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Deprecated values of ``kind=``."""
    includes_sampler: ClassVar[bool] = False
    """Whether the memory of the sampler process counts."""

    def __init__(self, tree: Tree, bases: Parts) -> None:
        self.tree = tree
        self.bases = dict(bases)

    def problem(self) -> str | None:
        """Why this gauge cannot be read here; ``None`` if it can."""
        return None

    def read(self, status: Status) -> int:
        """Bytes now. ``status`` is that of the tree, which is read anyway."""
        raise NotImplementedError

    def parts(self, status: Status) -> Parts:
        """What the bytes of now consist of, by name."""
        return {"heap": status.anon, "mapped files": status.file, "shared memory": status.shared}

    def start(self, status: Status) -> int:
        """Start to measure the true peak, where there is one; bytes now."""
        return self.read(status)

    def highest(self, status: Status) -> int:
        """The highest since ``start`` that is known in the watched process: true peak, or bytes now."""
        return self.read(status)

    def peak(self) -> int | None:
        """The true peak since ``start``, if the kernel knows it. Ends the measurement."""
        return None

    def files(self) -> list[tuple[str, int]]:
        """The largest mapped data files, for the message of a watch over its budget."""
        rows = [row for rows in self.tree.mappings().values() for row in rows]
        return list(data_files(rows).items())[:8]


class Resident(Gauge):
    """Resident memory, with the kernel's own peak."""

    name, noun = "rss", "resident memory"
    _peak: Any = None
    _alone = _base = 0

    def read(self, status: Status) -> int:
        return status.rss

    def start(self, status: Status) -> int:
        from lowtide._memory.peaks import Peak

        self._peak = Peak()
        # With children, base and samples are proportional shares; the mark is of this process alone.
        self._alone = int(self._peak.base)
        self._base = status.rss if self.tree.descendants else self._alone
        return self._base

    def highest(self, status: Status) -> int:
        return max(self._base + int(self._peak.read()) - self._alone, self.read(status))

    def peak(self) -> int | None:
        self._peak.close()
        highest: int = self._peak.read()
        return self._base + highest - self._alone if self._peak.known else None


class Heap(Gauge):
    """Anonymous memory: heap, stacks, buffers."""

    name, noun, aliases = "heap", "heap", ("anon",)

    def read(self, status: Status) -> int:
        return status.anon


class Mapped(Gauge):
    """Resident pages of mapped files."""

    name, noun, aliases = "mapped", "mapped files", ("file",)

    def read(self, status: Status) -> int:
        return status.file


class PageCache(Gauge):
    """Growth of the page cache of some files, or of all files that the processes have open."""

    name, noun = "cache", "page cache"

    def __init__(self, tree: Tree, bases: Parts) -> None:
        super().__init__(tree, bases)
        self._paths = list(bases)
        self._growth: dict[str, int] = {}

    def read(self, status: Status) -> int:
        # A file that is no longer open keeps its place: its pages stay.
        paths = self._paths or {*self.bases, *self.tree.open_files()}
        sizes = cached(paths)
        # Growth counts from what was cached when a file was first seen.
        growth = {path: size - self.bases.setdefault(path, size) for path, size in sizes.items()}
        self._growth = {path: size for path, size in growth.items() if size > 0}
        return sum(self._growth.values())

    def parts(self, status: Status) -> Parts:
        ranked = sorted(self._growth.items(), key=lambda item: -item[1])
        return dict(ranked[:8])

    def files(self) -> list[tuple[str, int]]:
        return []


class Cgroup(Gauge):
    """Everything that the container is charged for."""

    name, noun, includes_sampler = "cgroup", "the cgroup's memory", True
    _mark = 0

    def __init__(self, tree: Tree, bases: Parts) -> None:
        super().__init__(tree, bases)
        from lowtide._memory import cgroup

        self._group = cgroup.find(tree.root)

    def problem(self) -> str | None:
        if self._group is None or self._group.usage() is None:
            return "needs a memory cgroup, and none is visible here"
        return None

    def read(self, status: Status) -> int:
        return (self._group.usage() or 0) if self._group else 0

    def parts(self, status: Status) -> Parts:
        heap, cache = (self._group and self._group.parts()) or (0, 0)
        return {"heap": heap, "page cache": cache}

    def start(self, status: Status) -> int:
        self._mark = self._highest()
        return self.read(status)

    def peak(self) -> int | None:
        # The mark is never set back: it vouches only for a new high of the container.
        highest = self._highest()
        return highest if highest > self._mark else None

    def files(self) -> list[tuple[str, int]]:
        return []

    def _highest(self) -> int:
        return (self._group.peak() or 0) if self._group else 0


GAUGES: list[type[Gauge]] = [Resident, Heap, Mapped, PageCache, Cgroup]


def named(kind: str) -> type[Gauge]:
    """The gauge for a value of ``kind=``."""
    for gauge in GAUGES:
        if kind == gauge.name:
            return gauge
        if kind in gauge.aliases:
            import warnings

            message = f"kind={kind!r} is deprecated; use kind={gauge.name!r}"
            warnings.warn(message, DeprecationWarning, stacklevel=3)
            return gauge
    from lowtide.errors import ArgumentError

    names = ", ".join(gauge.name for gauge in GAUGES)
    raise ArgumentError(f"kind must be one of {names} (got {kind!r})")
