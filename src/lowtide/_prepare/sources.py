"""Sources: what people name, as the files to read and the kind of each."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from lowtide import errors
from lowtide._io.publish import Partial
from lowtide._io.store import peek
from lowtide._prepare.streams import blocks
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FileChangedError, FormatError, NotFoundError

_TEXT = (".txt", ".text", ".md", ".rst")
_JSON_LINES = (".jsonl", ".ndjson")
_MAGIC = {"parquet": b"PAR1", "gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "dataset": b"\xff\xff\xff\xff"}
_SKIPPED = b"\x50\x2a\x4d\x18"  # pzstd's files begin with a frame that holds no data
_ENDINGS = {".parquet": "parquet", ".gz": "gz", ".zst": "zst", ".arrow": "dataset"}
_FIRST_LINE = 2**20  # where no line ends before, it is not looked at whether the first is JSON


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read."""

    path: str  # absolute: it is read by other processes
    kind: str  # "text" and "jsonl", both plain or with ".gz" or ".zst"; "parquet"; "dataset", an Arrow stream
    size: int  # bytes on disk
    modified: int  # nanoseconds, to notice a change
    name: str  # as it was named, for people

    def check(self) -> None:
        """Raise if the file is no longer what was found: a run that goes on would mix the old and the new."""
        now = _source(self.path, self.name)
        if (now.size, now.modified) != (self.size, self.modified):
            raise FileChangedError(
                f"{self.path}: changed since it was looked at: {self.size} bytes then, {now.size} now; leave "
                "sources alone while they are prepared, and begin again"
            )


def find(sources: Sequence[str], *, glob: str | None = None) -> list[Source]:
    """The files of what was named: files, folders of them, data sets.

    Folders are read recursively and in the order of their names, without hidden files and empty ones;
    ``glob`` chooses by name, or by path if it holds a slash.

    >>> _ = (tmp / "b.txt").write_text("tide"), (tmp / "a.jsonl").write_text('{"text": "low"}')
    >>> [(source.name.removeprefix(str(tmp)), source.kind) for source in find([str(tmp)], glob="*.*l*")]
    [('/a.jsonl', 'jsonl')]
    """
    if isinstance(sources, str | os.PathLike):
        raise ArgumentError(f"sources must be a list of names, got {sources!r}; write [{str(sources)!r}]")
    if not sources:
        raise ArgumentError("no source was named; name files, folders or data sets")
    found: dict[str, Source] = {}
    for name in map(os.fspath, sources):
        for source in _files_of(name, glob):
            if source.path in found:
                raise ArgumentError(
                    f"{source.path}: comes twice, by {found[source.path].name!r} and {source.name!r}; name "
                    "each file once"
                )
            found[source.path] = source
    return list(found.values())


def spool(stream: BinaryIO, folder: str | os.PathLike[str]) -> str:
    """Standard input as a file in ``folder``, since a stream can be read only once; its path."""
    path = os.path.join(os.path.abspath(folder), "stdin")
    partial = Partial(path)
    try:
        with os.fdopen(os.dup(partial.fd), "wb") as file:
            shutil.copyfileobj(stream, file, 2**20)
    except OSError as error:
        partial.abort()
        raise errors.writing(path, error) from error
    except BaseException:
        partial.abort()
        raise
    partial.publish()
    return path


def _files_of(name: str, glob: str | None) -> Iterator[Source]:
    if name.startswith("hf:"):
        from lowtide._prepare import datasets

        for path in datasets.by_name(name):
            yield _source(path, f"{name}/{os.path.basename(path)}", "dataset")
        return
    if not os.path.isdir(name):
        source = _source(name, name)
        if not source.size:
            raise FormatError(f"{source.path}: is empty; name a file that holds text")
        yield recognised(source)
        return
    from lowtide._prepare import datasets

    if (saved := datasets.saved(name)) is not None:
        for path in saved:
            yield _source(path, os.path.join(name, os.path.basename(path)), "dataset")
        return
    chosen = [_source(path, path) for path in _walk(name) if _chosen(path, name, glob)]
    if not any(source.size for source in chosen):
        what = "no file" if glob is None else f"no file that fits {glob!r}"
        empty = f", and {len(chosen)} that are empty" if chosen else ""
        raise NotFoundError(
            f"{os.path.abspath(name)}: holds {what}{empty}; name another folder, or another glob"
        )
    for source in chosen:
        if source.size:
            yield recognised(source)


def _walk(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise errors.reading(error.filename or folder, error) from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(parent, name) for name in sorted(files) if not name.startswith("."))


def _chosen(path: str, folder: str, glob: str | None) -> bool:
    if glob is None:
        return True
    inside = os.path.relpath(path, folder).replace(os.sep, "/")
    return fnmatch.fnmatchcase(inside if "/" in glob else os.path.basename(path), glob)


def _source(path: str, name: str, kind: str = "") -> Source:
    path = os.path.abspath(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise errors.reading(path, error) from error
    except ValueError as error:
        raise FormatError(f"{brief(path)}: cannot be the name of a file ({error}); name another") from None
    return Source(path, kind, status.st_size, status.st_mtime_ns, name)


def recognised(source: Source) -> Source:
    """The source with its kind: by its first bytes, else by the end of its name, else by its first line."""
    kind = _kind(source.path)
    return Source(source.path, kind, source.size, source.modified, source.name)


def _kind(path: str) -> str:
    name = path.lower()
    head = peek(path).head
    if head.startswith(_SKIPPED):
        head = _MAGIC["zst"] + head
    magic = next((kind for kind, first in _MAGIC.items() if head.startswith(first)), None)
    promised = next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), magic)
    if promised != magic:
        raise FormatError(
            f"{path}: its name says {promised}, but it begins with {head[:4].hex(' ')} and not with "
            f"{_MAGIC[promised or ''].hex(' ')}; name it after what it holds"
        )
    if magic in ("gz", "zst"):
        return f"{_text_kind(path, name.removesuffix(f'.{magic}'), magic)}.{magic}"
    return magic or _text_kind(path, name, None)


def _text_kind(path: str, name: str, compression: str | None) -> str:
    if name.endswith(_JSON_LINES):
        return "jsonl"
    if name.endswith(_TEXT):
        return "text"
    first = next(blocks(path, compression), b"")
    if b"\0" in first:
        raise FormatError(
            f"{path}: holds bytes of zero, so it is no text, and it is none of the other sources (JSON "
            "lines, Parquet, a saved data set); leave it out with a glob such as '*.txt'"
        )
    line, newline, _ = first.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    try:
        is_object = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        # The first line may be longer than what was read of it.
        is_object = line.startswith(b'{"') and not newline and len(first) >= _FIRST_LINE
    if not is_object and name.endswith(".json"):
        raise FormatError(
            f"{path}: is JSON, but its first line is no object of its own; write one object a line"
        )
    return "jsonl" if is_object else "text"
