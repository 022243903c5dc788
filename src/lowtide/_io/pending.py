"""Pending: a read that was submitted, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Outcome(NamedTuple):
    """How many extents of a read were in the page cache."""

    late: int = 0
    """Extents that were not in the page cache. A reader that cannot know counts all of them."""
    total: int = 0
    """All extents."""

    @property
    def cached(self) -> bool:
        """Whether nearly all were cached: sometimes a cached page is busy."""
        return 16 * self.late <= self.total


def combined(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several reads together.

    >>> combined([Outcome(1, 10), Outcome(0, 5)])
    Outcome(late=1, total=15)
    """
    late = total = 0
    for outcome in outcomes:
        late, total = late + outcome.late, total + outcome.total
    return Outcome(late, total)


class Pending(Generic[T]):
    """A result that was submitted: ``wait()`` finishes it.

    ``done`` is True if ``wait()`` returns without waiting for a device. A caller with several reads submits
    all of them before it waits for the first, so that the device is never idle between them. After ``wait()``
    has returned or raised, and after the object was dropped, nothing writes to the caller's buffer any more.

    >>> Pending(pow, 3, 2).then(str).wait()
    '9'
    >>> Pending.of(5).done
    True
    """

    __slots__ = ("_arguments", "_function", "_steps", "beside", "done")

    def __init__(
        self, function: Callable[..., T], *arguments: Any, done: bool = False, beside: bool = False
    ) -> None:
        self._function: Callable[..., Any] = function
        self._arguments = arguments
        self._steps: tuple[Callable[[Any], Any], ...] = ()
        self.done = done
        self.beside = beside
        """Whether several threads may wait at the same time, each for its own pending."""

    @classmethod
    def of(cls, result: T) -> Pending[T]:
        """A result that is known already."""
        return cls(lambda: result, done=True)

    def wait(self) -> T:
        """Finish it, and return the result."""
        result = self._function(*self._arguments)
        for step in self._steps:
            result = step(result)
        return result  # type: ignore[no-any-return]

    def then(self, function: Callable[[T], U]) -> Pending[U]:
        """A pending ``function(result)``. The function runs in the thread that waits."""
        after: Pending[U] = Pending(self._function, *self._arguments, done=self.done, beside=self.beside)
        after._steps = (*self._steps, function)
        return after


def every(pendings: Sequence[Pending[T]]) -> Pending[list[T]]:
    """One pending for several, with a list of their results.

    >>> every([Pending.of(1), Pending(abs, -2)]).wait()
    [1, 2]
    """
    done = all(pending.done for pending in pendings)
    return Pending(lambda: [pending.wait() for pending in pendings], done=done)
