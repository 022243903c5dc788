"""A memory budget for a block of code.

>>> import lowtide
>>> with lowtide.watch(budget="64 MiB") as w:
...     block = bytearray(2**20)
>>> w.growth < 64 * 2**20
True
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, ParamSpec, TypeVar

from lowtide._memory import alarm, calls, gauges, proc
from lowtide._memory.helper import helper
from lowtide._memory.tree import Tree
from lowtide._printable import printable
from lowtide._sizes import format_size, parse_size
from lowtide.errors import ArgumentError, MemoryBudgetExceeded, UnsupportedError

INTERVAL = 0.025
_numbers = itertools.count(1)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Sample(NamedTuple):
    """One sample of a watch, in bytes; ``time`` is in seconds since the epoch."""

    time: float
    value: int
    """What the budget is for."""
    heap: int
    mapped: int
    shared: int

    @property
    def anon(self) -> int:
        """Deprecated: use ``heap``."""
        warnings.warn("Sample.anon is deprecated; use Sample.heap", DeprecationWarning, stacklevel=2)
        return self.heap

    @property
    def file(self) -> int:
        """Deprecated: use ``mapped``."""
        warnings.warn("Sample.file is deprecated; use Sample.mapped", DeprecationWarning, stacklevel=2)
        return self.mapped


class Watch:
    """Hold a block or a function to a memory budget: a context manager and a decorator.

    Raises ``MemoryBudgetExceeded`` (a ``MemoryError``) with the numbers at the end of the block, or as soon
    as it is noticed with ``strict=True``. After the block ``base``, ``peak`` and ``growth`` hold the numbers,
    ``true_peak`` is true if the peak comes from the kernel, and ``samples`` is the curve.

    Parameters
    ----------
    budget : int or str, optional
        What the block may add at its highest, such as ``"512 MiB"``, or ``"25%"`` of what is available.
        Without one nothing is raised and the numbers can be read from the watch.
    kind : str
        ``"rss"`` resident memory, with a true peak from the kernel; ``"heap"`` anonymous memory;
        ``"mapped"`` resident pages of mapped files; ``"cache"`` page cache of ``files`` (or of all files that
        the process has open); ``"cgroup"`` all that the container is charged for, with a true peak if it is a
        new one.
    strict : bool
        Raise at once, between two Python instructions: a single long call into C ends first. A task of
        asyncio that waits is cancelled, and the exception with the numbers leaves the block. Code in the
        block that catches ``Exception`` catches it too; it is then raised at the end.
    absolute : bool
        Compare the total with the budget, not what the block added.
    interval : float
        Seconds between two samples. At the default the sampler, a separate process, takes less than
        one hundredth of a core.
    files : iterable of str or os.PathLike
        The files for ``kind="cache"``.
    children : bool
        Count all descendants of this process too, as proportional shares (PSS), so that pages which
        processes share count once. The peak is then the highest sample, unless this process alone
        had a higher one. Without it only ``kind="cgroup"`` counts other processes.

    Notes
    -----
    Memory belongs to the process: what other threads, tasks and the caller of a generator add while
    the block runs counts too.

    Examples
    --------
    >>> @Watch("32 MiB", kind="heap")
    ... def step():
    ...     return sum(range(10))
    >>> step()
    45
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        kind: str = "rss",
        strict: bool = False,
        absolute: bool = False,
        interval: float = INTERVAL,
        files: Iterable[str | os.PathLike[str]] = (),
        children: bool = False,
    ) -> None:
        self._kind = gauges.named(kind)
        if not interval >= 0.001:
            raise ArgumentError(f"interval must be at least 0.001 seconds (got {interval!r})")
        self.budget = None if budget is None else parse_size(budget)
        if strict and self.budget is None:
            raise ArgumentError("strict=True needs a budget; pass one, such as budget='512 MiB'")
        self.kind = self._kind.name
        self.strict = strict
        self.absolute = absolute
        self.interval = interval
        self.files = tuple(os.path.abspath(os.fspath(path)) for path in files)
        self.children = children
        self.base: int | None = None
        self.peak: int | None = None
        self.true_peak = False
        self.samples: tuple[Sample, ...] = ()
        self.first_over: Sample | None = None
        self.mapped: tuple[tuple[str, int], ...] = ()  # the largest mapped data files and what is resident
        self.tripped = False
        self._number = 0
        self._growth: dict[str, int] = {}  # of the parts, at the peak

    @property
    def growth(self) -> int | None:
        """Peak minus base: what the block added at its highest."""
        return None if self.peak is None or self.base is None else self.peak - self.base

    @property
    def exceeded(self) -> bool:
        """Whether memory has exceeded the budget so far: at any time for ``rss``, now for other kinds."""
        return self._number != 0 and self._gauge.highest(self._status()) > self._limit

    def __enter__(self) -> Watch:
        if self._number:
            raise ArgumentError("this watch is in use; create another one for the inner block")
        if not proc.available():
            raise UnsupportedError(
                f"lowtide.watch reads {proc.ROOT}, which this system does not have; use Linux"
            )
        tree = Tree(os.getpid(), descendants=self.children)
        self._gauge = self._kind(tree, self._bases())
        if problem := self._gauge.problem():
            raise UnsupportedError(f"kind={self.kind!r} {problem}; use another kind")
        self._helper = helper()
        tree.excluded.add(self._helper.pid)
        self._number = next(_numbers)
        self.tripped = False
        if self._gauge.includes_sampler:
            self._helper.ready(self._gauge)  # its memory is not the block's doing
        # The first look is taken here, and then the kernel keeps the peak: nothing waits for the sampler.
        status = self._status()
        self.base = self._gauge.start(status)
        self._parts = self._gauge.parts(status)
        self._limit = (1 << 62) if self.budget is None else self.budget + (0 if self.absolute else self.base)
        if self.strict:
            alarm.arm(self._number, self, self._helper)
        try:
            self._helper.start(self._number, self._gauge, self.interval, self._limit)
        except alarm.Tripped as error:  # over from the first moment on
            self.__exit__(type(error), error, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        tripped = self.strict and alarm.disarm(self._number, error)
        self._collect()
        self._number = 0
        exceeded = None
        try:
            # Where the signal was sent it was over, even if no sample or mark shows it any more.
            if tripped or (self.peak is not None and self.peak > self._limit):
                exceeded = MemoryBudgetExceeded(self.explain())
                # Nobody sees the exception that closes a generator.
                if error is None or tripped or isinstance(error, GeneratorExit):
                    raise exceeded from None
                # An error of the block must not be hidden by this one; but it gets the numbers as a note.
                with contextlib.suppress(AttributeError):
                    error.add_note(str(exceeded))
        finally:
            # This frame is in the traceback of `exceeded`, and so would be everything that the block holds.
            del exceeded, error

    def pause(self) -> None:
        """Raise nothing until ``resume``, since code outside of the block runs; measuring continues."""
        if self.strict:
            alarm.pause(self._number)

    def resume(self) -> None:
        """Raise again, and at once if the budget was exceeded meanwhile."""
        if self.strict:
            alarm.resume(self._number)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Watch every call of a function.

        Parameters
        ----------
        function : callable
            The function to watch. Coroutine functions are watched until they return, generators and
            async generators from their first item to their last.
        """

        def again() -> Watch:
            return Watch(
                self.budget, kind=self.kind, strict=self.strict, absolute=self.absolute,
                interval=self.interval, files=self.files, children=self.children,
            )  # fmt: skip

        return calls.wrapped(function, again)

    def explain(self) -> str:
        """The numbers in words: the budget, the peak, the first sample over, and what grew."""
        assert self.base is not None
        assert self.peak is not None
        lines = []
        if self.budget is not None:
            above = "" if self.absolute else " over the start"
            passed = self.peak - (0 if self.absolute else self.base)
            lines.append(
                f"{self._kind.noun} reached {format_size(passed)}{above}, the budget is "
                f"{format_size(self.budget)} ({passed:,} bytes against {self.budget:,} bytes)"
            )
        how = "true peak, kept by the kernel" if self.true_peak else f"highest of {len(self.samples)} samples"
        lines.append(f"base {format_size(self.base)}, peak {format_size(self.peak)} ({how})")
        if self.first_over is not None:
            after = self.first_over.time - self.samples[0].time if self.samples else 0.0
            lines.append(f"first sample over: {format_size(self.first_over.value)} after {after:.3f} s")
        elif self.budget is not None and self.peak > self._limit:
            lines.append(f"no sample was over: it lasted less than {self.interval * 1000:.0f} ms")
        lines.append(f"what grew: {self._what_grew()}")
        return "\n  ".join(lines)

    def _bases(self) -> dict[str, int]:
        """What the page cache holds of the files before the block starts."""
        if not self.files:
            return {}
        from lowtide._io import pagecache

        sizes = ((path, pagecache.resident(path)) for path in self.files)
        return {path: size[0] for path, size in sizes if size is not None}

    def _status(self) -> proc.Status:
        """Memory of now; of this process alone in a forked child that leaves the block of its parent."""
        tree = self._gauge.tree
        return tree.status() if self.children and tree.root == os.getpid() else proc.status()

    def _collect(self) -> None:
        """Fetch what the sampler saw and join it with what the kernel kept."""
        assert self.base is not None
        status = self._status()
        last, parts = self._gauge.read(status), self._gauge.parts(status)
        peak = self._gauge.peak()
        summary = self._helper.stop(self._number)
        self.samples = tuple(Sample(*sample) for sample in summary.get("samples", ()))
        highest = summary.get("highest", -1)
        if highest >= last:
            parts = summary["parts"]
        self._growth = {name: size - self._parts.get(name, 0) for name, size in parts.items()}
        self.true_peak = peak is not None and not self.children
        self.peak = max(self.base, last, highest, peak or 0)
        over = summary.get("first_over")
        self.first_over = Sample(*over) if over else None
        self.mapped = tuple(summary.get("files", ()))

    def _what_grew(self) -> str:
        text = {name: f"{printable(name)} {_signed(size)}" for name, size in self._growth.items()}
        names = [
            f"{printable(path)} {format_size(size)} resident"
            for path, size in self.mapped[:3]
            if size >= 2**20
        ]
        if names and self._growth.get("mapped files", 0) + self._growth.get("shared memory", 0) > 0:
            text["mapped files"] += f" ({'; '.join(names)})"
        return ", ".join(text.values()) or "not seen"


watch = Watch


def _signed(size: int) -> str:
    return f"{'+' if size >= 0 else '-'}{format_size(abs(size))}"
