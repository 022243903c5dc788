"""The sources of a run: names become files, and documents from elsewhere are written to a file first."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lowtide import errors
from lowtide._io import store
from lowtide._io.atomic import Partial
from lowtide._prepare import inputs
from lowtide._prepare.inputs.kind import IDS, File
from lowtide._prepare.tokenizers.kind import as_ids
from lowtide._printable import brief
from lowtide.errors import ArgumentError

Path = str | os.PathLike[str]
Document = str | Mapping[str, Any] | Sequence[int]
Sources = Path | Sequence[Path] | Iterable[Document]

STDIN = "-"
ITERABLE = "(iterable)"
SPOOLED = (STDIN, ITERABLE)
"""Names of files that are written again in each run, and are therefore compared by content."""


def find(sources: Sources, folder: str, *, field: str, glob: str | None, name: str) -> list[File]:
    """The files of sources. Standard input and the documents of an iterable are written to ``folder`` first.

    ``field`` is the field or column of documents that are mappings, ``name`` the file of an iterable.
    """
    if isinstance(sources, str | os.PathLike):
        return _files([os.fspath(sources)], folder, glob)
    if isinstance(sources, list | tuple):
        if not all(isinstance(one, str | os.PathLike) for one in sources):
            return _spooled(iter(sources), folder, field, name)
        return _files([os.fspath(one) for one in sources], folder, glob)
    if isinstance(sources, Mapping):
        splits = ", ".join(map(repr, sources))
        raise ArgumentError(
            f"sources must be one data set, got the splits {splits}; pass one, as in sources['train'], and "
            "the validation split as val"
        )
    if not isinstance(sources, Iterable):
        raise ArgumentError(f"sources must be paths or an iterable of texts, got {sources!r}")
    documents = iter(_columns(sources, field))
    first = next(documents, None)
    if first is None:
        raise ArgumentError("sources is empty; pass files, folders, data sets or texts")
    documents = itertools.chain([first], documents)
    if isinstance(first, os.PathLike):
        return _files([os.fspath(one) for one in documents], folder, glob)
    if isinstance(first, str) and len(first) < 4096 and "\n" not in first and store.exists(first):
        raise ArgumentError(
            f"the first text is the path of a file ({first!r}), and the items of an iterable are texts; pass "
            "a list of paths"
        )
    return _spooled(documents, folder, field, name)


def _files(names: list[str], folder: str, glob: str | None) -> list[File]:
    paths = [inputs.spool(sys.stdin.buffer, folder) if name == STDIN else name for name in names]
    spooled = os.path.join(folder, "stdin")
    return [
        dataclasses.replace(file, name=STDIN) if file.path == spooled else file
        for file in inputs.find(paths, glob=glob)
    ]


def _columns(sources: Iterable[Any], field: str) -> Iterable[Any]:
    """A data set of Hugging Face reduced to one column, so that the others are not decoded."""
    select, names = getattr(sources, "select_columns", None), getattr(sources, "column_names", None)
    if select is None or not names:
        return sources
    column = next((name for name in (field, IDS) if name in names), None)
    if column is None:
        raise ArgumentError(
            f"the data set has no column {field!r}, found {brief(names)}; pass the one of text (text_field)"
        )
    selected: Iterable[Any] = select([column])
    return selected


def _spooled(documents: Iterator[Any], folder: str, field: str, name: str) -> list[File]:
    """The documents as a file of JSON lines: an iterable can be read only once, and only here."""
    path = os.path.join(os.path.abspath(folder), name)
    with (
        errors.write_errors(path),
        Partial(path) as partial,
        os.fdopen(os.dup(partial.fd), "w", encoding="utf8") as file,
    ):
        for number, document in enumerate(documents):
            json.dump({field: _content(document, field, number)}, file)
            file.write("\n")
    return [dataclasses.replace(file, name=ITERABLE) for file in inputs.find([path])]


def _content(document: Any, field: str, number: int) -> str | list[int]:
    """The text, or the token ids, of a document."""
    if isinstance(document, Mapping):
        key = field if field in document else IDS
        if key not in document:
            raise ArgumentError(
                f"document {number} has no field {field!r}, found {brief(list(document))}; pass the field "
                "that contains the text (text_field)"
            )
        document = document[key]
    if isinstance(document, str):
        return document
    ids = None if isinstance(document, bytes) else as_ids(document)
    if ids is None:
        raise ArgumentError(
            f"document {number} must be a text, a mapping with a field {field!r} or a list of token ids, got "
            f"{brief(document)}"
        )
    values: list[int] = ids.tolist()
    return values
