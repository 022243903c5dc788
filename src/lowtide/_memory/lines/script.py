"""``python -m lowtide._memory.lines.script [MODULE:FUNCTION…] -- SCRIPT…``: run a program, print its lines.

Without functions these are the ones that the script marks with ``@profile``; where it marks none, all
functions of the script itself. The table goes to standard error at the end, whatever ends the program.
"""

from __future__ import annotations

import builtins
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

from lowtide._memory.lines.table import tables
from lowtide._memory.lines.tracer import Tracer


def main(words: Sequence[str]) -> None:
    """Run ``words``: functions, ``--``, a script or ``-m module`` or ``-c code``, and its arguments."""
    split = words.index("--")
    functions, program = words[:split], list(words[split + 1 :])
    marked: list[CodeType] = []
    tracer = Tracer(_chosen(functions, program))

    def profile(function: Any = None, **_options: object) -> Any:
        """Mark a function; the options of memory_profiler's decorator have no meaning here."""
        if function is None:
            return profile
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:  # not a class, nor a function of C
            marked.append(code)
            tracer.add(code)
        return function

    try:
        with tracer:
            run(program, profile)
    finally:
        lines = tracer.lines
        if marked and not functions:
            lines = {code: lines[code] for code in marked}
        sys.stdout.flush()
        sys.stderr.write(tables(lines) + "\n")


def _chosen(functions: Sequence[str], program: list[str]) -> Callable[[FrameType], bool]:
    names = {tuple(name.split(":", 1)) for name in functions}
    script = os.path.abspath(program[0])

    def chosen(frame: FrameType) -> bool:
        if frame.f_globals is globals():  # this module is called __main__ too
            return False
        module, code = str(frame.f_globals.get("__name__", "")), frame.f_code
        if names:
            return (module, code.co_qualname) in names
        own = program[0] in ("-m", "-c") or os.path.abspath(code.co_filename) == script
        return module == "__main__" and own and not code.co_name.startswith("<")

    return chosen


def run(program: list[str], profile: Callable[..., Any]) -> None:
    """Run a script, ``-m module`` or ``-c code`` as Python does, with ``profile`` as a builtin."""
    if not hasattr(builtins, "profile"):
        builtins.profile = profile  # type: ignore[attr-defined]
    kind = program[0]
    sys.argv = program[1:] if kind == "-m" else ["-c", *program[2:]] if kind == "-c" else program
    if not sys.flags.safe_path:  # the first place to import from is the current folder, because of this -m
        folders = {"-m": os.getcwd(), "-c": ""}
        sys.path[0] = folders[kind] if kind in folders else os.path.dirname(os.path.realpath(kind))
    if kind == "-m":
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(program[1], "<string>", "exec"), vars(main))  # noqa: S102 - the user's own program
    else:
        runpy.run_path(kind, run_name="__main__")


def command(
    words: Sequence[str], arguments: Sequence[str], module: str = "lowtide._memory.lines.script"
) -> list[str] | None:
    """The command that runs a Python command line through ``module``; ``None`` if it is not one of Python.

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
    return [*words[:start], "-m", module, *arguments, "--", *words[start:]]


if __name__ == "__main__":
    main(sys.argv[1:])
