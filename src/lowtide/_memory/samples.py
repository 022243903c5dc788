"""A bounded number of samples from an unbounded series: peaks and the last one stay."""

from __future__ import annotations

TYPE_CHECKING = False  # typing and collections.abc would double the start of the sampler
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")


def thin(samples: Sequence[T], most: int, size: Callable[[T], float]) -> list[T]:
    """At most ``most`` samples: the largest of each group of neighbours, and the last.

    >>> thin([0, 1, 9, 2, 3, 4, 5], 4, float)
    [9, 4, 5]
    """
    if len(samples) <= most:
        return list(samples)
    group = -(-len(samples) // (most - 1))
    kept = [max(samples[start : start + group], key=size) for start in range(0, len(samples), group)]
    return kept if kept[-1] == samples[-1] else [*kept, samples[-1]]


def keep(samples: list[T], sample: T, most: int, size: Callable[[T], float]) -> None:
    """Append a sample; if there are then more than ``most``, thin them to half."""
    samples.append(sample)
    if len(samples) > most:
        samples[:] = thin(samples, most // 2, size)
