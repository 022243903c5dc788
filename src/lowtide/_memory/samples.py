"""A bounded number of samples from an unbounded series: peaks and the last one stay."""

from __future__ import annotations

TYPE_CHECKING = False  # typing and collections.abc would double the start of the sampler
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

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


class Samples(list["Any"]):
    """The same for samples that arrive one by one: groups of equal length, which double when it is full.

    >>> samples = Samples(5, float)
    >>> for value in (0, 1, 9, 2, 3, 4, 5):
    ...     samples.add(value)
    >>> samples
    [1, 9, 4, 5]
    """

    def __init__(self, most: int, size: Callable[[Any], float]) -> None:
        super().__init__()
        self._groups = (most - 1) // 2 * 2  # even, so that neighbours can be joined
        self._size = size
        self._group = 1  # samples in a group
        self._count = 0
        self._extra = False  # the last sample is not the largest of its group

    def add(self, sample: Any) -> None:
        """Append a sample."""
        if self._extra:
            self.pop()
        self._extra = False
        if self._count % self._group == 0:
            if len(self) == self._groups:
                pairs = zip(self[::2], self[1::2], strict=True)
                self[:] = [max(pair, key=self._size) for pair in pairs]
                self._group *= 2
            self.append(sample)
        elif self._size(sample) > self._size(self[-1]):
            self[-1] = sample
        else:
            self.append(sample)
            self._extra = True
        self._count += 1
