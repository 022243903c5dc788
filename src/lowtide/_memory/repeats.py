"""Whether a function that is called again and again keeps memory: for marks of tests."""

from __future__ import annotations

import ctypes
import gc
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowtide._memory import proc
from lowtide._sizes import format_size, parse_size
from lowtide.errors import ArgumentError

_WARM = 2  # the first calls fill caches and import modules
_MOST = 1000


def settle() -> None:
    """Collect garbage and give back what malloc has kept, so that the next figure shows what is in use."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # a C library without it
        return


def check(
    call: Callable[[], object], mark: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Call a test, which has run once, again and again; the problem, if its memory grows."""
    function: Callable[..., str | None] = _bounded if mark == "bounded" else _leak_free
    kwargs = dict(kwargs)
    isolate = kwargs.pop("isolate", False)  # the plugin's, around all of this
    try:
        if not isinstance(isolate, bool):
            raise ArgumentError(f"isolate must be True or False (got {isolate!r})")
        return function(call, *args, **kwargs)
    except ArgumentError as error:
        return f"{mark}: {error}"
    except TypeError as error:
        name = f"{function.__name__}()"
        if name not in str(error):
            raise
        return f"{mark}: {str(error).replace(name, 'the mark')}"


def _bounded(
    call: Callable[[], object], reads: int | str | None = None, repeats: int = 5, limit: int | str = "8 MiB"
) -> str | None:
    most = parse_size(limit)
    enough = 0 if reads is None else parse_size(reads)
    start = proc.io()[0]
    sizes = [_memory("rss")]
    while len(sizes) <= _require(repeats) or (_WARM < len(sizes) <= _MOST and proc.io()[0] - start < enough):
        call()
        sizes.append(_memory("rss"))
        if enough and len(sizes) == repeats + 1 and proc.io()[0] - start < enough // _MOST:
            return (
                f"bounded: the test has read {format_size(proc.io()[0] - start)} in {repeats} repeats by "
                f"read calls, and {format_size(enough)} are asked for; use repeats= instead of reads="
            )
    return _problem("bounded", "memory", sizes, most)


def _leak_free(call: Callable[[], object], repeats: int = 10, limit: int | str = "1 MiB") -> str | None:
    most = parse_size(limit)
    sizes = [_memory("anon")]
    for _ in range(_require(repeats)):
        call()
        sizes.append(_memory("anon"))
    return _problem("leak_free", "heap", sizes, most)


def _require(repeats: int) -> int:
    if not isinstance(repeats, int) or repeats < 4:
        raise ArgumentError(f"repeats must be an integer >= 4 (got {repeats!r})")
    return repeats


def _memory(field: str) -> int:
    settle()
    size: int = getattr(proc.status(), field)
    return size


def _problem(mark: str, noun: str, sizes: list[int], limit: int) -> str | None:
    """The problem, if memory at the end is above that after the first calls."""
    later = sizes[_WARM:]
    steps = [after - before for before, after in itertools.pairwise(later)]
    growth = statistics.median(later[-2:]) - later[0]
    if growth <= limit:
        return None
    curve = ", ".join(format_size(size) for size in sizes[:: max(1, len(sizes) // 8)])
    step = format_size(int(max(0, statistics.median(steps))))
    return (
        f"{mark}: {noun} grew by {format_size(int(growth))} over the last {len(steps)} of {len(sizes)} "
        f"calls, the limit is {format_size(limit)}; {step} per call\n  after each call: {curve}"
    )
