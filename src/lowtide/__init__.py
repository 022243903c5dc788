"""Data bigger than memory, read with memory that never rises."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lowtide.adapters.dask import to_dask as to_dask
    from lowtide.array import Array as Array
    from lowtide.array import open as open
    from lowtide.corpora import Corpus as Corpus
    from lowtide.corpora import corpus as corpus
    from lowtide.errors import LowtideError as LowtideError
    from lowtide.memory.guard import watch as watch
    from lowtide.mixture import mix as mix
    from lowtide.preparing.prepare import prepare as prepare
    from lowtide.shuffling import shuffle as shuffle
    from lowtide.writer import create as create

# Each public name and the module that holds it. They are imported when first used, so that
# `import lowtide` costs little more than the interpreter itself.
_NAMES = {
    "Array": "lowtide.array",
    "Corpus": "lowtide.corpora",
    "LowtideError": "lowtide.errors",
    "corpus": "lowtide.corpora",
    "create": "lowtide.writer",
    "mix": "lowtide.mixture",
    "open": "lowtide.array",
    "prepare": "lowtide.preparing.prepare",
    "shuffle": "lowtide.shuffling",
    "to_dask": "lowtide.adapters.dask",
    "watch": "lowtide.memory.guard",
}

__all__ = [
    "Array",
    "Corpus",
    "LowtideError",
    "__version__",
    "corpus",
    "create",
    "mix",
    "open",
    "prepare",
    "shuffle",
    "to_dask",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
