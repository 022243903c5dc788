"""Measuring and limiting memory: the meter, the guard, the profiler and its report.

Names are imported when first used, so that the pytest plugin and the sampler stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide._front import front

if TYPE_CHECKING:
    from lowtide._memory.cgroups import MemoryCgroup as MemoryCgroup
    from lowtide._memory.guard import Watch as Watch
    from lowtide._memory.guard import watch as watch
    from lowtide._memory.meter import Snapshot as Snapshot
    from lowtide._memory.meter import drop_page_cache as drop_page_cache
    from lowtide._memory.meter import peak as peak
    from lowtide._memory.meter import reset_peak as reset_peak
    from lowtide._memory.meter import snapshot as snapshot

_NAMES = {
    "MemoryCgroup": "lowtide._memory.cgroups",
    "Snapshot": "lowtide._memory.meter",
    "Watch": "lowtide._memory.guard",
    "drop_page_cache": "lowtide._memory.meter",
    "peak": "lowtide._memory.meter",
    "reset_peak": "lowtide._memory.meter",
    "snapshot": "lowtide._memory.meter",
    "watch": "lowtide._memory.guard",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = front(__name__, _NAMES)
