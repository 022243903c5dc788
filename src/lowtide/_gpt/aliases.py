"""Names of settings in 0.1, which work for one more version."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def block_size_alias(kind: type[_T]) -> type[_T]:
    """Class decorator: accept ``block_size``, which was ``length`` in 0.1, with a ``DeprecationWarning``."""
    init: Any = kind.__init__

    @functools.wraps(init)
    def with_alias(self: _T, *arguments: Any, **values: Any) -> None:
        init(self, *arguments, **without_alias(values, f"{kind.__name__}: block_size", stacklevel=3))

    def block_size(self: Any) -> int:
        _warn(f"{kind.__name__}.block_size", f"{kind.__name__}.length", 3)
        return int(self.length)

    changes = {"__init__": with_alias, "block_size": property(block_size)}
    for name, value in changes.items():
        setattr(kind, name, value)
    return kind


def without_alias(values: Mapping[str, Any], name: str | None = None, stacklevel: int = 2) -> dict[str, Any]:
    """``values`` with ``block_size`` renamed to ``length``; given its ``name`` for the message, warn."""
    values = dict(values)
    if "block_size" in values and "length" not in values:
        if name is not None:
            _warn(name, "length", stacklevel)
        values["length"] = values.pop("block_size")
    return values


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run saved them, under today's names; 0.1 had no ``muon_dtype`` and used bfloat16."""
    return {"muon_dtype": "bfloat16", **without_alias(values)}


def _warn(old: str, new: str, stacklevel: int) -> None:
    message = f"{old} is deprecated and will be removed in the next version; use {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)
