"""Hold a block of code to a memory budget.

>>> import lowtide
>>> with lowtide.watch(budget="64 MiB") as w:
...     block = bytearray(2**20)
>>> w.growth < 64 * 2**20
True
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args

from lowtide._memory import cgroups, proc, trips
from lowtide._memory.helper import helper
from lowtide._memory.peaks import Peak
from lowtide._printable import printable
from lowtide._sizes import format_size, parse_size
from lowtide.errors import ArgumentError, MemoryBudgetExceeded, UnsupportedError

Kind = Literal["rss", "anon", "file", "cache", "cgroup"]
INTERVAL = 0.025
_WORDS = {
    "rss": "resident memory",
    "anon": "heap",
    "file": "mapped files",
    "cache": "page cache",
    "cgroup": "the cgroup's memory",
}
_numbers = itertools.count(1)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Sample(NamedTuple):
    """One look by the sampler. ``value`` is what the budget is for; ``time`` is since the epoch."""

    time: float
    value: int
    anon: int
    file: int
    shared: int


class Watch:
    """A block of code with a memory budget; see ``watch``.

    After the block (and in the exception) ``base``, ``peak`` and ``growth`` hold the numbers, ``true_peak``
    says whether the kernel vouches for the peak, and ``samples`` is the course.
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        kind: Kind = "rss",
        strict: bool = False,
        absolute: bool = False,
        interval: float = INTERVAL,
        files: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        if kind not in get_args(Kind):
            raise ArgumentError(f"kind must be one of {', '.join(get_args(Kind))} (got {kind!r})")
        if not interval >= 0.001:
            raise ArgumentError(f"interval must be at least 0.001 seconds (got {interval!r})")
        self.budget = None if budget is None else parse_size(budget)
        if strict and self.budget is None:
            raise ArgumentError("strict=True needs a budget: there is nothing to be strict about")
        self.kind = kind
        self.strict = strict
        self.absolute = absolute
        self.interval = interval
        self.files = tuple(os.path.abspath(os.fspath(path)) for path in files)
        self.base: int | None = None
        self.peak: int | None = None
        self.true_peak = False
        self.samples: tuple[Sample, ...] = ()
        self.first_over: Sample | None = None
        self.mapped: tuple[tuple[str, int], ...] = ()  # the largest mapped data files and what is resident
        self.cached: tuple[tuple[str, int], ...] = ()  # for kind="cache": growth by file
        self.thread = threading.get_ident()
        self.tripped = False
        self._number = 0

    @property
    def growth(self) -> int | None:
        """Peak over base: what the block added at its highest."""
        return None if self.peak is None or self.base is None else self.peak - self.base

    @property
    def exceeded(self) -> bool:
        """Whether resident memory has passed the budget so far; other kinds know at the end of the block."""
        return self._number != 0 and self.kind == "rss" and self._peak.read() > self._over

    def __enter__(self) -> Watch:
        if self._number:
            raise ArgumentError("this watch is in use already; make another for the inner block")
        if not proc.available():
            raise UnsupportedError(
                f"lowtide.watch reads {proc.ROOT}, which this system does not have; use Linux"
            )
        self._number = next(_numbers)
        self.thread = threading.get_ident()
        self.tripped = False
        self._helper = helper()
        self._cgroup = cgroups.find() if self.kind == "cgroup" else None
        if self.kind == "cgroup" and (self._cgroup is None or self._cgroup.usage() is None):
            self._number = 0
            raise UnsupportedError("kind='cgroup' needs a memory cgroup, and none is visible here")
        if self._cgroup is not None:
            self._helper.ready(self.kind)  # the sampler lives in the same cgroup and is not the block's doing
        # The first look is ours, and from here on the kernel keeps the peak: nothing waits for the sampler.
        self._peak = Peak()
        self._before = proc.status()
        self._marks = (self._cgroup.peak() or 0, self._cgroup.parts()) if self._cgroup else (0, None)
        self.base = self._value_now()
        over = (1 << 62) if self.budget is None else self.budget + (0 if self.absolute else self.base)
        self._over = over
        if self.strict:
            trips.arm(self._number, self, self._helper)
        try:
            self._helper.start(self._number, self.kind, self.interval, over, self._cached_now())
        except trips.Tripped as error:  # over from the first moment on
            self.__exit__(type(error), error, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.strict:
            trips.disarm(self._number)
        self._collect()
        tripped = isinstance(error, trips.Tripped) and error.number in (0, self._number)
        self._number = 0
        # An error of the block's own is not to be hidden by ours; but it gets the numbers beside it.
        if self.peak is not None and self.peak > self._over:
            exceeded = MemoryBudgetExceeded(self.explain())
            if error is None or tripped:
                raise exceeded from None
            with contextlib.suppress(AttributeError):
                error.add_note(str(exceeded))
        elif tripped:  # it was over when the signal left, and no sample or mark says so any more
            raise MemoryBudgetExceeded(self.explain()) from None

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Watch every call of a function."""

        def again() -> Watch:
            return Watch(
                self.budget, kind=self.kind, strict=self.strict, absolute=self.absolute,
                interval=self.interval, files=self.files,
            )  # fmt: skip

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def watched_later(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with again():
                    return await function(*args, **kwargs)

            return watched_later  # type: ignore[return-value]

        @functools.wraps(function)
        def watched(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with again():
                return function(*args, **kwargs)

        return watched

    def explain(self) -> str:
        """The numbers in words: the budget, the peak, the first sample over, and what grew."""
        assert self.base is not None
        assert self.peak is not None
        lines = []
        of = _WORDS[self.kind]
        if self.budget is not None:
            above = "" if self.absolute else " over the start"
            passed = self.peak - (0 if self.absolute else self.base)
            lines.append(
                f"{of} reached {format_size(passed)}{above}, the budget is {format_size(self.budget)} "
                f"({_exact(passed)} against {_exact(self.budget)})"
            )
        how = "true peak, kept by the kernel" if self.true_peak else f"highest of {len(self.samples)} samples"
        lines.append(f"base {format_size(self.base)}, peak {format_size(self.peak)} ({how})")
        if self.first_over is not None:
            after = self.first_over.time - self.samples[0].time if self.samples else 0.0
            lines.append(f"first sample over: {format_size(self.first_over.value)} after {after:.3f} s")
        elif self.budget is not None and self.peak > self._over:
            lines.append(f"no sample was over: it lasted less than {self.interval * 1000:.0f} ms")
        lines.append(f"what grew: {self._what_grew()}")
        return "\n  ".join(lines)

    def _cached_now(self) -> dict[str, int]:
        """What the page cache holds of the named files before the block begins."""
        if self.kind != "cache":
            return {}
        from lowtide._io import pagecache

        return {path: told[0] for path in self.files if (told := pagecache.resident(path)) is not None}

    def _value_now(self) -> int:
        if self._cgroup is not None:
            return self._cgroup.usage() or 0
        if self.kind == "cache":
            return 0  # growth is counted from what was cached when each file was first seen
        return self._peak.base if self.kind == "rss" else int(getattr(self._before, self.kind))

    def _collect(self) -> None:
        """Fetch what the sampler saw and join it with what the kernel kept."""
        assert self.base is not None
        highest = max(self.base, 0 if self.kind == "cache" else self._value_at_end())
        self._peak.close()
        seen = self._helper.stop(self._number)
        self.samples = tuple(Sample(*sample) for sample in seen.get("samples", ()))
        highest = max(highest, seen.get("highest", 0))
        self.true_peak = False
        if self.kind == "rss":
            highest = max(highest, self._peak.read())
            self.true_peak = self._peak.known
        elif self._cgroup is not None and (mark := self._cgroup.peak() or 0) > self._marks[0]:
            highest, self.true_peak = max(highest, mark), True
        self.peak = highest
        over = seen.get("first_over")
        self.first_over = Sample(*over["sample"]) if over else None
        self.cached = tuple(seen.get("cached", ()))
        # The mappings when it was first over and at the end: a file may have come or gone in between.
        found = dict(over["mappings"]) if over else {}
        for path, size in seen.get("mappings", ()):
            found[path] = max(size, found.get(path, 0))
        self.mapped = tuple(sorted(found.items(), key=lambda row: -row[1]))

    def _value_at_end(self) -> int:
        if self._cgroup is not None:
            return self._cgroup.usage() or 0
        return int(getattr(proc.status(), self.kind))

    def _what_grew(self) -> str:
        if self.kind == "cache":
            return "page cache: " + ", ".join(
                f"{printable(path)} {_signed(size)}" for path, size in self.cached[:3]
            )
        if self._cgroup is not None and self._marks[1] is not None and (now := self._cgroup.parts()):
            heap, cache = (after - before for after, before in zip(now, self._marks[1], strict=True))
            return f"heap {_signed(heap)}, page cache {_signed(cache)}"
        top = max(self.samples, key=lambda sample: sample.value, default=None)
        if self.first_over is not None and (top is None or self.first_over.value > top.value):
            top = self.first_over
        if top is None:
            return "not seen"
        parts = [
            f"heap {_signed(top.anon - self._before.anon)}",
            f"mapped files {_signed(top.file - self._before.file)}",
            f"shared memory {_signed(top.shared - self._before.shared)}",
        ]
        large = [(printable(path), size) for path, size in self.mapped if size >= 2**20]
        names = [f"{path} {format_size(size)} resident" for path, size in large[:3]]
        if names and top.file + top.shared > self._before.file + self._before.shared:
            parts[1] += f" ({'; '.join(names)})"
        return ", ".join(parts)


def watch(
    budget: int | str | None = None,
    *,
    kind: Kind = "rss",
    strict: bool = False,
    absolute: bool = False,
    interval: float = INTERVAL,
    files: Iterable[str | os.PathLike[str]] = (),
) -> Watch:
    """Hold a block or a function to a memory budget: a context manager and a decorator.

    Raises ``MemoryBudgetExceeded`` (a ``MemoryError``) with the numbers at the block's end, or as soon as
    it is noticed with ``strict``.

    Parameters
    ----------
    budget
        What the block may add at its highest, such as ``"512 MiB"``. Without one nothing is raised and
        the numbers can be read from the watch.
    kind
        ``"rss"`` resident memory, with a true peak from the kernel; ``"anon"`` heap; ``"file"`` resident
        pages of mapped files; ``"cache"`` page cache of ``files`` (or of all files that the process has
        open); ``"cgroup"`` all that the container is charged for, with a true peak when it is a new one.
    strict
        Raise at once, between two instructions of Python: a single long call into C ends first.
    absolute
        Compare the whole, not what the block added.
    interval
        Seconds between two samples. At the default the sampler, a process of its own, takes less than
        one hundredth of a core.

    Examples
    --------
    >>> @watch("32 MiB", kind="anon")
    ... def step():
    ...     return sum(range(10))
    >>> step()
    45
    """
    return Watch(budget, kind=kind, strict=strict, absolute=absolute, interval=interval, files=files)


def _exact(size: int) -> str:
    return f"{size:,} bytes"


def _signed(size: int) -> str:
    return f"{'+' if size >= 0 else '-'}{format_size(abs(size))}"
