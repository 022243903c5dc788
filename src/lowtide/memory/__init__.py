"""See and hold memory: the meter, the guard, the profiler and its report.

Names are imported when first used, so that the pytest plugin and the sampler stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.memory.cgroups import MemoryCgroup as MemoryCgroup
    from lowtide.memory.guard import Watch as Watch
    from lowtide.memory.guard import watch as watch
    from lowtide.memory.meter import Snapshot as Snapshot
    from lowtide.memory.meter import drop_page_cache as drop_page_cache
    from lowtide.memory.meter import peak as peak
    from lowtide.memory.meter import reset_peak as reset_peak
    from lowtide.memory.meter import snapshot as snapshot

_HOME = {
    "MemoryCgroup": "cgroups",
    "Snapshot": "meter",
    "Watch": "guard",
    "drop_page_cache": "meter",
    "peak": "meter",
    "reset_peak": "meter",
    "snapshot": "meter",
    "watch": "guard",
}
__all__ = ["MemoryCgroup", "Snapshot", "Watch", "drop_page_cache", "peak", "reset_peak", "snapshot", "watch"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
