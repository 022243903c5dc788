"""``python -m lowtide._memory.lines.script [MODULE:FUNCTION…] -- SCRIPT…``: run a program, print its lines.

Without functions these are the ones that the script marks with ``@profile``; where it marks none, all
functions of the script itself. The table goes to standard error at the end, whatever ends the program.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from lowtide._memory.lines.table import tables
from lowtide._memory.lines.tracer import Tracer


def main(words: Sequence[str]) -> None:
    """Run ``words``: functions, ``--``, a script or ``-m module`` or ``-c code``, and its arguments."""
    split = words.index("--")
    functions, program = words[:split], list(words[split + 1 :])
    marked: list[Any] = []
    tracer = Tracer(_chosen(functions, program))

    def profile(function: Any) -> Any:
        marked.append(function)
        tracer.add(function.__code__)
        return function

    if not hasattr(builtins, "profile"):
        builtins.profile = profile  # type: ignore[attr-defined]
    try:
        with tracer:
            _run(program)
    finally:
        lines = tracer.lines
        if marked and not functions:
            codes = {function.__code__ for function in marked}
            lines = {code: rows for code, rows in lines.items() if code in codes}
        sys.stdout.flush()
        sys.stderr.write(tables(lines) + "\n")


def _chosen(functions: Sequence[str], program: list[str]) -> Callable[[FrameType], bool]:
    names = {tuple(name.split(":", 1)) for name in functions}
    script = os.path.abspath(program[0])

    def chosen(frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__", ""))
        code = frame.f_code
        if names:
            return (module, code.co_qualname) in names or (module,) in names
        own = module == "__main__" and os.path.abspath(code.co_filename) in (
            script,
            os.path.abspath("<string>"),
        )
        return (own or (program[0] == "-m" and module == "__main__")) and not code.co_name.startswith("<")

    return chosen


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    elif program[0] == "-c":
        sys.argv = ["-c", *program[2:]]
        sys.path.insert(0, "")
        exec(compile(program[1], "<string>", "exec"), {"__name__": "__main__", "__builtins__": builtins})  # noqa: S102 - the user's own program
    else:
        sys.argv = program
        sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
        runpy.run_path(program[0], run_name="__main__")


def command(words: Sequence[str], functions: Sequence[str]) -> list[str] | None:
    """The command that runs a Python command line by line; ``None`` if ``words`` do not run Python.

    >>> command(["python", "-u", "a.py", "1"], ["a:f"])
    ['python', '-u', '-m', 'lowtide._memory.lines.script', 'a:f', '--', 'a.py', '1']
    """
    if not words or not os.path.basename(words[0]).startswith("python"):
        return None
    start = 1
    while start < len(words) and words[start].startswith("-") and words[start] not in ("-m", "-c", "-"):
        start += 2 if words[start] in ("-W", "-X") else 1
    if start >= len(words) or words[start] == "-":
        return None
    return [*words[:start], "-m", "lowtide._memory.lines.script", *functions, "--", *words[start:]]


if __name__ == "__main__":
    main(sys.argv[1:])
