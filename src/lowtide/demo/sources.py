"""Text from every machine: the Python sources of the standard library."""

from __future__ import annotations

import os
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.errors import missing, write_errors

# Tests and installed packages are large and differ from machine to machine; the rest is tables of numbers.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}


@dataclass(frozen=True, slots=True)
class Texts:
    """The files that were copied."""

    folder: str
    files: int
    size: int
    """Bytes, as UTF-8."""


def copy(folder: str, limit: int, *, library: str | None = None) -> Texts:
    """Copy about ``limit`` bytes of sources from the interpreter, or from ``library``, to ``folder``."""
    library = library or sysconfig.get_path("stdlib")
    files = size = 0
    for path in _sources(library):
        text = _read(path)
        if not text.strip():
            continue
        data = text.encode()
        target = os.path.join(folder, os.path.relpath(path, library))
        with write_errors(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
        files, size = files + 1, size + len(data)
        if size >= limit:
            break
    if not files:
        raise missing(
            library,
            "has no Python sources, which the demo uses as text; run it with an interpreter that has its "
            "standard library as files, as those of python.org and of most systems do",
        )
    return Texts(folder, files, size)


def _sources(library: str) -> Iterator[str]:
    for parent, folders, files in os.walk(library):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("_"))
        yield from (os.path.join(parent, name) for name in sorted(files) if name.endswith(".py"))


def _read(path: str) -> str:
    """The text of a source, in the encoding that it declares; empty if the source is invalid."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError, OSError):
        return ""
