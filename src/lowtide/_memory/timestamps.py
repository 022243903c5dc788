"""``python -m lowtide._memory.timestamps FILE -- SCRIPT…``: run a program, note calls of marked functions.

What the program marks with ``@profile`` is appended to FILE at the end, a line per call, as ``mprof run`` of
memory_profiler does it: name, MiB and time at the start, MiB and time at the end, depth.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from lowtide._memory import calls, proc
from lowtide._memory.lines import script


class Timestamps:
    """The decorator ``@profile``, and the calls of the functions that it marks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def __call__(self, function: Any = None, **_options: object) -> Any:
        """Mark a function; the options of memory_profiler's decorator have no meaning here."""
        if function is None:
            return self
        if not inspect.isfunction(function):  # a class, or a static method: it stays what it is
            return function
        name = f"{function.__module__}.{function.__name__}"
        return calls.wrapped(function, lambda: self._call(name))

    @contextlib.contextmanager
    def _call(self, name: str) -> Iterator[None]:
        before, depth = _now(), self._depth
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.lines.append(f"FUNC {name} {before} {_now()} {depth}\n")


def _now() -> str:
    return f"{proc.status().rss / 2**20:.4f} {time.time():.4f}"


def command(words: Sequence[str], path: str) -> list[str] | None:
    """The command that runs a Python command line with timestamps; ``None`` if ``words`` do not run Python.

    >>> command(["python", "a.py", "1"], "/tmp/x.dat")
    ['python', '-m', 'lowtide._memory.timestamps', '/tmp/x.dat', '--', 'a.py', '1']
    """
    return script.command(words, [path], "lowtide._memory.timestamps")


def main(words: Sequence[str]) -> None:
    """Run ``words``: the file, ``--``, and the program as for ``script.run``."""
    timestamps, own = Timestamps(), os.getpid()
    try:
        script.run(list(words[2:]), timestamps)
    finally:
        if os.getpid() == own:  # and not a child that the program has forked
            with open(words[0], "a", encoding="utf-8") as file:
                file.writelines(timestamps.lines)


if __name__ == "__main__":
    main(sys.argv[1:])
