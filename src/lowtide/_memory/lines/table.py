"""The table of lines as text."""

from __future__ import annotations

import inspect
import linecache
from types import CodeType

from lowtide._memory.lines.tracer import Line

_HEAD = f"{'line':>6} {'hits':>8} {'heap':>12} {'mapped':>12} {'peak':>12}  code"


def table(code: CodeType, lines: dict[int, Line]) -> str:
    """The lines of one function, with what each of them added.

    >>> print(table((lambda: 0).__code__, {}))  # doctest: +ELLIPSIS
    <lambda> in ...
      line     hits         heap       mapped         peak  code
    ...
    """
    rows = [f"{code.co_qualname} in {code.co_filename}", _HEAD]
    for number, text in _source(code, lines):
        figures = " " * 47
        if line := lines.get(number):
            figures = f"{line.hits:>8} {_mib(line.heap):>12} {_mib(line.mapped):>12} {_mib(line.peak):>12}"
        rows.append(f"{number:>6} {figures}  {text.rstrip()}".rstrip())
    return "\n".join(rows)


def tables(lines: dict[CodeType, dict[int, Line]]) -> str:
    """The tables of all functions that ran, in the order of their files and lines."""
    codes = sorted(lines, key=lambda code: (code.co_filename, code.co_firstlineno))
    text = "\n\n".join(table(code, lines[code]) for code in codes if lines[code])
    note = "MiB added by each line over all hits; peak: the most that one hit took above its start."
    return f"{text}\n\n{note}" if text else "no line of the chosen functions ran"


def _source(code: CodeType, lines: dict[int, Line]) -> list[tuple[int, str]]:
    linecache.checkcache(code.co_filename)
    try:
        block, first = inspect.getsourcelines(code)
    except (OSError, TypeError):  # typed in, or the file is gone
        return [(number, "") for number in sorted(lines)]
    return list(enumerate(block, max(first, 1)))


def _mib(size: int) -> str:
    return f"{size / 2**20:.3f}" if size else "-"
