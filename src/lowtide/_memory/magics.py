"""``%load_ext lowtide``: ``%memit``, ``%%memit`` and ``%mprun``."""

from __future__ import annotations

import inspect
from typing import Any

from lowtide._memory import snapshot, tree
from lowtide._memory.lines.table import tables
from lowtide._memory.lines.tracer import Tracer
from lowtide._memory.watch import Watch
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError


class Usage:
    """The memory of a statement, in bytes; ``str()`` is the line that ``%memit`` prints."""

    def __init__(self, peak: int, increment: int, heap: int, mapped: int, cache: int) -> None:
        self.peak = peak
        """The true peak of resident memory."""
        self.increment = increment
        """Peak minus the memory before."""
        self.heap = heap
        """Growth of the heap, at the end."""
        self.mapped = mapped
        """Growth of mapped files, at the end."""
        self.cache = cache
        """Growth of the page cache of the files that are open at the end."""

    def __str__(self) -> str:
        parts = (("heap", self.heap), ("mapped", self.mapped), ("page cache", self.cache))
        left = ", ".join(f"{name} {'-' if size < 0 else '+'}{format_size(abs(size))}" for name, size in parts)
        return (
            f"peak memory: {self.peak / 2**20:.2f} MiB, increment: {self.increment / 2**20:.2f} MiB ({left})"
        )


def measure(code: Any, names: dict[str, Any], children: bool = False) -> Usage:
    """Run compiled code and measure it."""
    import gc

    gc.collect()
    before = snapshot.snapshot()
    open_before = set(tree.Tree(before.pid, descendants=False).open_files())
    cached_before = tree.cached(open_before)
    with Watch(children=children) as watch:
        exec(code, names)  # noqa: S102 - what the user typed
        cached = tree.cached(tree.Tree(before.pid, descendants=False).open_files())
    after = snapshot.snapshot()
    assert watch.peak is not None
    cache = sum(max(0, size - cached_before.get(path, size)) for path, size in cached.items())
    return Usage(
        watch.peak,
        watch.growth or 0,
        (after.heap or 0) - (before.heap or 0),
        (after.mapped or 0) - (before.mapped or 0),
        cache,
    )


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics ``%memit``, ``%%memit`` and ``%mprun``: what ``%load_ext lowtide`` calls.

    Parameters
    ----------
    ipython : IPython.InteractiveShell
        The shell or kernel.

    Examples
    --------
    >>> class Shell:
    ...     def register_magic_function(self, function, kind, name):
    ...         print(kind, name)
    >>> load_ipython_extension(Shell())
    line_cell memit
    line_cell mprun
    """
    magics = Magics(ipython)
    ipython.register_magic_function(magics.memit, "line_cell", "memit")
    ipython.register_magic_function(magics.mprun, "line_cell", "mprun")


class Magics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def memit(self, line: str = "", cell: str | None = None) -> Usage | None:
        """Measure the memory of a statement, or of a cell after the setup code in its first line.

        ``%memit [-r N] [-c] [-o] [-q] STATEMENT``: ``-r`` repeats it and shows the highest, ``-c`` counts
        children, ``-o`` returns the figures, ``-q`` prints nothing. ``-t`` and ``-i`` of memory_profiler are
        accepted and not needed: the peak is the kernel's.
        """
        options, statement = _options(line, "rti", "coq")
        repeats = options.get("r", ["1"])[-1]
        if not repeats.isdecimal():
            raise ArgumentError(f"-r needs a number (got {repeats!r}); write %memit -r3 STATEMENT")
        setup = ""
        if cell is not None:
            setup, statement = statement, cell
        names = self.shell.user_ns
        if setup:
            exec(self._compiled(setup), names)  # noqa: S102 - what the user typed
        code = self._compiled(statement)
        usages = [measure(code, names, "c" in options) for _ in range(max(1, int(repeats)))]
        usage = max(usages, key=lambda one: one.peak)
        if "q" not in options:
            print(usage)  # noqa: T201 - the magic's result
        return usage if "o" in options else None

    def mprun(self, line: str = "", cell: str | None = None) -> None:
        """Measure a statement, and a cell after it, line by line.

        ``%mprun -f FUNCTION [-f FUNCTION…] [-T FILE] STATEMENT``: the functions whose lines to measure, and
        a file to write the table to as well. ``-r`` and ``-c`` of memory_profiler are accepted and have no
        effect.
        """
        options, statement = _options(line, "fT", "rc")
        if "f" not in options:
            raise ArgumentError("no function to measure; write %mprun -f FUNCTION STATEMENT")
        names = self.shell.user_ns
        tracer = Tracer(lambda _: False)
        for name in options["f"]:
            function = inspect.unwrap(eval(name, names))  # noqa: S307 - what the user typed
            if not hasattr(function, "__code__"):
                raise ArgumentError(f"-f needs a Python function (got {name}); pass one of those it calls")
            tracer.add(function.__code__)
        try:
            with tracer:
                exec(self._compiled(f"{statement}\n{cell or ''}"), names)  # noqa: S102 - what the user typed
        finally:
            tracer.close()
            text = tables(tracer.lines)
            print(text)  # noqa: T201 - the magic's result
            for path in options.get("T", ()):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text + "\n")

    def _compiled(self, source: str) -> Any:
        return compile(self.shell.transform_cell(source), "<memit>", "exec")


def _options(line: str, with_value: str, flags: str) -> tuple[dict[str, list[str]], str]:
    """Leading options of a magic with all their values, and the statement after them.

    >>> _options("-r3 -c -t 5 f(-1)", "rti", "coq")
    ({'r': ['3'], 'c': [''], 't': ['5']}, 'f(-1)')
    """
    options: dict[str, list[str]] = {}
    rest = line.strip()
    while len(rest) > 1 and rest[0] == "-" and rest[1] in with_value + flags:
        name, rest = rest[1], rest[2:]
        value = ""
        if name in with_value:
            value, _, rest = rest.lstrip().partition(" ")
        options.setdefault(name, []).append(value)
        rest = rest.lstrip()
    return options, rest
