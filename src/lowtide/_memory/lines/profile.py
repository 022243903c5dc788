"""``@profile_lines``: which line of a function takes the memory."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeVar, overload

from lowtide._memory import calls, proc
from lowtide._memory.lines.table import tables
from lowtide._memory.lines.tracer import Tracer
from lowtide.errors import ArgumentError, UnsupportedError

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def profile_lines(function: _F, *, stream: TextIO | None = None) -> _F: ...
@overload
def profile_lines(function: None = None, *, stream: TextIO | None = None) -> Callable[[_F], _F]: ...
def profile_lines(function: Any = None, *, stream: TextIO | None = None) -> Any:
    """Measure the memory that each line of a function takes, as memory_profiler's ``@profile`` does.

    Heap and mapped files are separate, and the peak inside a line is the kernel's own. Figures belong to
    the process: what other threads add while a line runs is among them. Coroutines and generators are
    measured while they run.

    Parameters
    ----------
    function : callable
        The function.
    stream : file, optional
        Print the table of all calls so far here after each call. Without one it is printed once, on
        standard output, when the program ends.

    Returns
    -------
    callable
        The function; its ``lines()`` returns the table as text.

    Examples
    --------
    >>> @profile_lines(stream=sys.stdout)
    ... def load():
    ...     block = bytearray(2**25)
    ...     return len(block)
    >>> load()  # doctest: +ELLIPSIS
    load in ...
      line     hits         heap       mapped         peak  code
    ...
    33554432
    """
    if function is None:
        return functools.partial(profile_lines, stream=stream)
    original = inspect.unwrap(function)
    if not inspect.isfunction(original):
        raise ArgumentError(f"profile_lines needs a Python function (got {function!r})")
    if not proc.available():
        raise UnsupportedError(f"profile_lines reads {proc.ROOT}, which this system does not have; use Linux")
    tracer = Tracer(lambda _: False)
    tracer.add(original.__code__)

    @contextlib.contextmanager
    def measured() -> Iterator[None]:
        try:
            with tracer:
                yield
        finally:
            if stream is not None:
                stream.write(tables(tracer.lines) + "\n")

    wrapper: Any = calls.wrapped(function, measured)
    wrapper.lines = lambda: tables(tracer.lines)
    if stream is None:
        atexit.register(_print_at_exit, tracer)
    return wrapper


def _print_at_exit(tracer: Tracer) -> None:
    if any(tracer.lines.values()):
        sys.stdout.write(tables(tracer.lines) + "\n")
