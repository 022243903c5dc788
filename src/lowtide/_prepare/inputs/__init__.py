"""Inputs: the list ``KINDS`` of all kinds; names are turned into files, and files into units."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import BinaryIO

from lowtide import errors
from lowtide._io import store
from lowtide._io.atomic import Partial
from lowtide._prepare.executors import Executor
from lowtide._prepare.inputs.datasets import DataSet
from lowtide._prepare.inputs.jsonlines import JsonLines
from lowtide._prepare.inputs.kind import File, Head, Kind, ReadOptions, Unit
from lowtide._prepare.inputs.tables import Parquet
from lowtide._prepare.inputs.text import Text
from lowtide.errors import ArgumentError, FormatError, missing

KINDS: list[Kind] = [Parquet(), DataSet(), JsonLines(), Text()]
"""The first that recognises a file reads it."""


def find(sources: Sequence[str], *, glob: str | None = None) -> list[File]:
    """The files of sources: files, folders, data sets.

    Folders are read recursively and in the order of names, without hidden and empty files; ``glob`` selects
    by name, or by path if it contains a slash.

    >>> _ = (tmp / "b.txt").write_text("tide"), (tmp / "a.jsonl").write_text('{"text": "low"}')
    >>> [(file.name.removeprefix(str(tmp)), file.label) for file in find([str(tmp)], glob="*.*l*")]
    [('/a.jsonl', 'jsonl')]
    """
    if not sources:
        raise ArgumentError("sources is empty; pass files, folders or data sets")
    files: dict[str, File] = {}
    for name in sources:
        for file in _files_of(name, glob):
            if file.path in files:
                raise ArgumentError(
                    f"{file.path}: occurs twice, in {files[file.path].name!r} and in {file.name!r}; pass "
                    "each file once"
                )
            files[file.path] = file
    return list(files.values())


def plan(files: Sequence[File], options: ReadOptions, executor: Executor | None = None) -> list[Unit]:
    """The units of the files, in order. They depend on the files and the options alone.

    Files whose library may crash are inspected by the executor, if there is one.

    >>> _ = (tmp / "x.txt").write_bytes(b"low tide")
    >>> [(unit.start, unit.stop) for unit in plan(find([str(tmp / "x.txt")]), ReadOptions(unit_size=5))]
    [(0, 5), (5, 8)]
    """
    units: list[Unit] = []
    for number, file in enumerate(files):
        ranges: Iterable[tuple[int, int]] = file.kind.ranges(file, options)
        if executor is not None and file.kind.unsafe:
            ranges = _isolated_ranges(executor, file, options)
        for start, stop in ranges:
            units.append(Unit(number, file.path, file.kind, file.compression, start, stop))
    return units


def spool(stream: BinaryIO, folder: str) -> str:
    """Copy standard input to a file in ``folder``, since a stream can be read only once; its path."""
    path = os.path.join(os.path.abspath(folder), "stdin")
    with errors.write_errors(path), Partial(path) as partial, os.fdopen(os.dup(partial.fd), "wb") as file:
        shutil.copyfileobj(stream, file, 2**20)
    return path


def _isolated_ranges(executor: Executor, file: File, options: ReadOptions) -> list[tuple[int, int]]:
    try:
        return executor.submit(_ranges, file, options).result()
    except BrokenProcessPool as error:
        raise FormatError(
            f"{file.path}: the process that inspected it was killed: the file is damaged, or memory ran out; "
            "copy it again"
        ) from error


def _ranges(file: File, options: ReadOptions) -> list[tuple[int, int]]:
    return list(file.kind.ranges(file, options))


def _files_of(name: str, glob: str | None) -> Iterator[File]:
    for kind in KINDS:
        paths = kind.expand(name)
        if paths is not None:
            for path in paths:
                yield _nonempty(path, os.path.join(name, os.path.basename(path)), kind)
            return
    if not store.is_folder(name):
        yield _nonempty(name, name)
        return
    paths = [path for path in _walk(name) if _matches(path, name, glob)]
    files = [file for path in paths if (file := _file(path, path)) is not None]
    if not files:
        what = "no file" if glob is None else f"no file that matches {glob!r}"
        empty = f" except {len(paths)} empty ones" if paths else ""
        raise missing(os.path.abspath(name), f"contains {what}{empty}; pass another folder or glob")
    yield from files


def _nonempty(path: str, name: str, kind: Kind | None = None) -> File:
    file = _file(path, name, kind)
    if file is None:
        raise FormatError(f"{os.path.abspath(path)}: is empty; pass a file that contains text")
    return file


def _walk(folder: str) -> Iterator[str]:
    """The files in a folder and in those below it; hidden ones and links to folders are left out."""
    files, folders = store.list_folder(folder)
    yield from (os.path.join(folder, name) for name in sorted(files) if not name.startswith("."))
    for path in (os.path.join(folder, name) for name in sorted(folders) if not name.startswith(".")):
        entry = store.entry(path, follow=False)
        if entry is not None and entry.kind == "folder":
            yield from _walk(path)


def _matches(path: str, folder: str, glob: str | None) -> bool:
    if glob is None:
        return True
    inside = os.path.relpath(path, folder).replace(os.sep, "/")
    return fnmatch.fnmatchcase(inside if "/" in glob else os.path.basename(path), glob)


def _file(path: str, name: str, kind: Kind | None = None) -> File | None:
    """The file with its kind; None if it is empty."""
    with store.opened(path) as file:
        if not file.size:
            return None
        head = Head(file)
        kind = kind or next((kind for kind in KINDS if kind.recognises(head)), None)
        if kind is None:
            raise FormatError(
                f"{file.path}: is not text (found zero bytes) or another input ("
                f"{', '.join(kind.name for kind in KINDS)}); exclude it with a glob such as '*.txt'"
            )
        return File(file.path, name, kind, head.compression, file.size, file.identity.mtime_ns)
