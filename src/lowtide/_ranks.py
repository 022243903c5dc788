"""The rank of this process among several, as passed or as set by the launcher."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Literal

from lowtide._sizes import whole
from lowtide.errors import ArgumentError

Rank = int | Literal["auto"] | None
"""``"auto"`` takes it from ``torch.distributed`` or the environment; None means a single process."""


def ranks(rank: Rank, world_size: int | None) -> tuple[int, int]:
    """The rank and the number of ranks, as plain integers.

    ``"auto"`` takes both from ``torch.distributed`` if its process group exists, else from the environment
    variables ``RANK`` and ``WORLD_SIZE`` that ``torchrun`` sets; without either this is the only rank.

    >>> ranks(1, 4), ranks(None, None)
    ((1, 4), (0, 1))
    """
    if isinstance(rank, str):
        if rank != "auto":
            raise ArgumentError(f"rank must be an integer or 'auto', got {rank!r}")
        number, count = launched()
        if world_size is not None and whole("world_size", world_size, 1) != count:
            raise ArgumentError(
                f"world_size contradicts rank='auto' ({world_size}, expected {count}); leave it out"
            )
        return number, count
    if rank is None and world_size is None:
        _warn_if_launched()
    number = whole("rank", 0 if rank is None else rank, 0)
    count = whole("world_size", 1 if world_size is None else world_size, 1)
    if number >= count:
        raise ArgumentError(f"rank must be below world_size, got rank {number} of {count}")
    return number, count


def launched() -> tuple[int, int]:
    """The rank and the number of ranks according to ``torch.distributed`` or the environment."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    count = variable("WORLD_SIZE", 1)
    if count > 1 and "RANK" not in os.environ:
        raise ArgumentError(
            f"WORLD_SIZE is {count} and the environment has no RANK; start the processes with torchrun, wait "
            f"for the process group of torch.distributed, or pass rank= and world_size="
        )
    number = variable("RANK", 0)
    if not 0 <= number < count:
        raise ArgumentError(f"the environment has RANK {number} of WORLD_SIZE {count}; set both or neither")
    return number, count


def variable(name: str, default: int) -> int:
    """The value of an environment variable of ``torchrun``."""
    value = os.environ.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise ArgumentError(
            f"the environment variable {name} must be an integer, got {value!r}; start several processes "
            "with torchrun"
        ) from None


def _warn_if_launched() -> None:
    value = os.environ.get("WORLD_SIZE", "")
    if value.isdecimal() and int(value) > 1:
        warnings.warn(
            f"WORLD_SIZE is {value} and no rank was given: every process reads the same data; pass "
            f"rank='auto', or rank=0 if that is intended",
            UserWarning,
            stacklevel=5,
        )
