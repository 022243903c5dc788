"""What a verdict consists of, and its line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from lowtide._printable import printable
from lowtide._sizes import format_size

MIB, GIB = 2**20, 2**30
State = Literal["grows", "bounded", "unclear"]
Cause = Literal[
    "heap",
    "mapped",
    "page cache",
    "shared memory / tmpfs",
    "kernel memory",
    "written, not yet on disk",
]
NAMED = ("mapped", "shared memory / tmpfs", "written, not yet on disk")
"""Causes whose files are part of the line."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a recording."""

    state: State
    base: int
    peak: int
    read: int
    cause: Cause | None = None
    files: tuple[str, ...] = ()  # the mapped or cached files that grew, the one that grew most first
    per_read: float | None = None  # bytes of memory per byte read; None where hardly anything was read
    per_second: float | None = None  # for growth that has nothing to do with reading
    since: float | None = None  # seconds: where growth starts, if that is not the start
    shape: str = ""  # of the curve, in words
    reason: str = ""  # why it is unclear, and how to find out
    cache_growth: int = 0
    unwritten: int = 0  # the most that was written and not yet on disk
    split: bool = True  # heap and mapped files are known separately: not in a .dat file

    @property
    def grows(self) -> bool:
        """Whether memory grows for certain."""
        return self.state == "grows"

    @property
    def line(self) -> str:
        """The verdict in one line that starts with ``bounded``, ``grows`` or ``unclear``."""
        if self.state == "unclear":
            return f"unclear: {self.reason}"
        if self.state == "bounded":
            line = f"bounded: {self.shape}"
            if self.unwritten >= 64 * MIB:
                line += f"; written, not yet on disk +{mib(self.unwritten)}"
            elif self.cache_growth >= 64 * MIB:
                line += f"; page cache +{mib(self.cache_growth)}"
            return line
        if self.per_second is not None:
            pace = f"{format_size(self.per_second)} per second"
        else:
            pace = f"{rate(self.per_read or 0.0)} per GiB read"
        names = ", ".join(printable(os.path.basename(path)) for path in self.files[:1])
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        named = f": {names}{more}" if names and self.cause in NAMED else ""
        cause = self.cause or "heap or mapped files: a .dat file has only their sum"
        since = "" if self.since is None else f" since {self.since:.1f} s"
        return f"grows{since}: {pace}, {cause}{named}{self.shape and '; '}{self.shape}"

    def as_json(self) -> dict[str, Any]:
        """The figures under their names in the document of ``lowtide profile --save``."""
        return {
            "verdict": self.line,
            "state": self.state,
            "grows": self.grows,
            "base_mib": round(self.base / MIB, 3),
            "peak_mib": round(self.peak / MIB, 3),
            "mib_per_gib_read": None if self.per_read is None else round(self.per_read * 1024, 3),
            "per_second": self.per_second,
            "since": None if self.since is None else round(self.since, 3),
            "cause": self.cause,
            "files": list(self.files),
            "bytes_read": self.read,
            "page_cache_growth_mib": round(self.cache_growth / MIB, 3),
        }


def mib(size: float) -> str:
    """A size in MiB without decimals."""
    return f"{max(0.0, size) / MIB:.0f} MiB"


def rate(slope: float) -> str:
    """Memory for each GiB read, in the unit that reads best."""
    size = max(0.0, slope) * GIB
    return f"{size / GIB:.1f} GiB" if size >= 0.95 * GIB else f"{size / MIB:.1f} MiB"
