"""The size of the code and the length of its paths: ``python -m benchmarks.house``.

Lines of each package, with and without docstrings, comments and blank lines; public names; and how many
frames of Python are between ``next(stream)`` and the system call that reads.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import lowtide
from lowtide._io import aio

FRONTS = ("lowtide", "lowtide.memory", "lowtide.gpt")
MODULES = tuple(f"lowtide.{name}" for name in ("errors", "torch", "dask", "grain", "nanochat", "nanogpt"))
_ITEMS = 40  # taken from a stream: the first ones are read otherwise than those that follow


class Lines(NamedTuple):
    """Lines of source."""

    all: int
    code: int
    """Without docstrings, comments and blank lines."""


def lines_of(source: str) -> Lines:
    """Count the lines of a module."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*layout, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that stands alone documents what it stands in or behind.
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Lines(len(source.splitlines()), len(code))


def lines_by_package(folder: Path) -> dict[str, Lines]:
    """The lines of each package in a folder; modules that are in none are counted together."""
    every: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        package = place.parts[0] if len(place.parts) > 1 else "(modules)"
        lines = lines_of(path.read_text())
        every[package] += lines.all
        code[package] += lines.code
    return {package: Lines(every[package], code[package]) for package in sorted(every)}


def public_names(modules: Sequence[str] = (*FRONTS, *MODULES)) -> dict[str, list[str]]:
    """The public names of each public module that can be imported here."""
    names: dict[str, list[str]] = {}
    for module in modules:
        try:
            names[module] = list(import_module(module).__all__)
        except ImportError:
            names[module] = []
    return names


class Call(NamedTuple):
    """A system call that reads, and the functions that led to it, the last one first."""

    name: str
    functions: tuple[str, ...]


@contextmanager
def recorded(calls: list[Call], stop: Callable[..., Any]) -> Iterator[None]:
    """Record each system call that reads, of this thread up to the function ``stop``, of others all of it."""

    def record(name: str) -> None:
        functions: list[str] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code not in (stop.__code__, Thread.run.__code__):
            functions.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}")
            frame = frame.f_back
        calls.append(Call(name, tuple(functions)))

    def preadv(*arguments: Any) -> int:
        record("preadv")
        return read(*arguments)

    class Libc:
        def syscall(self, number: int, *arguments: Any) -> Any:
            if number == submit:
                record("io_submit")
            return libc.syscall(number, *arguments)

    read, libc, submit = os.preadv, aio._LIBC, (aio._CALLS or [0])[-1]
    with patch.object(os, "preadv", preadv), patch.object(aio, "_LIBC", Libc() if libc else None):
        yield


def frames(stream: Iterator[Any]) -> Call:
    """The longest way from ``next(stream)`` to a system call, among the first items of a stream."""
    calls: list[Call] = []
    with recorded(calls, frames):
        for _ in range(_ITEMS):
            next(stream)
    return max(calls, key=lambda call: len(call.functions))


def streams(folder: Path) -> dict[str, Iterator[Any]]:
    """One stream of each kind, over files in a folder."""
    tokens, rows = folder / "train.bin", folder / "rows.npy"
    np.random.default_rng(0).integers(0, 50257, 2**20).astype("<u2").tofile(tokens)
    np.save(rows, np.zeros((2**14, 64), np.float32))
    array = lowtide.open(rows)
    return {
        "tokens": lowtide.corpus(tokens).batches(64, 256),
        "chunks in order": array.chunks(256),
        "shuffled chunks": array.chunks(256, shuffle=True, budget="2 MiB"),
    }


def main() -> None:
    """Print all of it."""
    packages = lines_by_package(Path(str(lowtide.__file__)).parent)
    print(f"{'package':<12} {'lines':>7} {'code':>7}")
    for package, lines in packages.items():
        print(f"{package:<12} {lines.all:>7,} {lines.code:>7,}")
    total = Lines(*map(sum, zip(*packages.values(), strict=True)))
    print(f"{'src':<12} {total.all:>7,} {total.code:>7,}\n")
    names = public_names()
    print(f"public names: {', '.join(f'{module} {len(those)}' for module, those in names.items())}\n")
    with tempfile.TemporaryDirectory() as folder:
        for kind, stream in streams(Path(folder)).items():
            call = frames(stream)
            print(f"{kind}: {len(call.functions)} frames from next() to {call.name}")
            for function in reversed(call.functions):
                print(f"    {function}")


if __name__ == "__main__":
    main()
