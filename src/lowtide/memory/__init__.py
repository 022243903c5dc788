"""Measuring and limiting memory: snapshots, true peaks, budgets for blocks of code.

Names are imported when first used, so that the pytest plugin stays small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide._front import front

if TYPE_CHECKING:
    from lowtide._memory.available import available as available
    from lowtide._memory.cgroup import MemoryCgroup as MemoryCgroup
    from lowtide._memory.heap import Heap as Heap
    from lowtide._memory.heap import heap as heap
    from lowtide._memory.heap import trim as trim
    from lowtide._memory.lines.profile import profile_lines as profile_lines
    from lowtide._memory.snapshot import Snapshot as Snapshot
    from lowtide._memory.snapshot import drop_page_cache as drop_page_cache
    from lowtide._memory.snapshot import peak as peak
    from lowtide._memory.snapshot import reset_peak as reset_peak
    from lowtide._memory.snapshot import snapshot as snapshot
    from lowtide._memory.usage import memory_usage as memory_usage
    from lowtide._memory.usage import show_memory as show_memory
    from lowtide._memory.watch import Watch as Watch
    from lowtide._memory.watch import watch as watch

_NAMES = {
    "Heap": "lowtide._memory.heap",
    "MemoryCgroup": "lowtide._memory.cgroup",
    "Snapshot": "lowtide._memory.snapshot",
    "Watch": "lowtide._memory.watch",
    "available": "lowtide._memory.available",
    "drop_page_cache": "lowtide._memory.snapshot",
    "heap": "lowtide._memory.heap",
    "memory_usage": "lowtide._memory.usage",
    "peak": "lowtide._memory.snapshot",
    "profile_lines": "lowtide._memory.lines.profile",
    "reset_peak": "lowtide._memory.snapshot",
    "show_memory": "lowtide._memory.usage",
    "snapshot": "lowtide._memory.snapshot",
    "trim": "lowtide._memory.heap",
    "watch": "lowtide._memory.watch",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = front(__name__, _NAMES)
