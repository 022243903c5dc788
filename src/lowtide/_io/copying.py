"""Copies between files and buckets: in bounded memory, verified, and resumable."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide import errors
from lowtide._io import store
from lowtide._io.extents import Bytes, Extents
from lowtide._io.filesystem import Found
from lowtide._io.identity import Identity
from lowtide._io.pending import Pending
from lowtide._io.reader import Reader, open_reader
from lowtide._io.sinks import ResumableFile, sink
from lowtide._printable import counted
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError, missing

_PIECE = 8 * 2**20  # bytes that are read at once; there are two such buffers
_LAST = ("corpus.json", "index.json")  # make the files beside them a corpus

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy; ``str`` of it is a sentence."""

    files: int
    """Files that were copied."""
    nbytes: int
    """Bytes in them."""
    skipped: int
    """Files that were there already."""

    def __str__(self) -> str:
        there = f", {self.skipped} there already" if self.skipped else ""
        return f"{counted(self.files, 'file')} copied, {format_size(self.nbytes)}{there}"


def copy(
    source: Path,
    target: Path,
    *,
    verify: bool = True,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Copied:
    """Copy a file or a folder between files and buckets, in bounded memory.

    A file appears under its name when it is complete; the index of a corpus comes last, so that a corpus
    is there when all of it is. Files that are there already, as long and not older, are skipped: a copy that
    was killed or failed is resumed by the same call. Of an object of more than 8 MiB, what was copied to a
    file is kept as ``.NAME.partial`` until then, and verified before it is continued.

    Parameters
    ----------
    source
        A file or a folder, or the address of an object or a prefix.
    target
        Where the file or the content of the folder goes. A file goes into a folder that is there, or to an
        address that ends in ``/``, under its own name.
    verify
        Read what was written, and compare it with what was read by its SHA-256.
    progress
        Called with the bytes that are done and those of all files.
    storage_options
        For the addresses, as in :func:`lowtide.open`.

    Returns
    -------
    Copied
        What was copied and what was there.

    Examples
    --------
    >>> print(lowtide.copy(tmp / "given", tmp / "copy"))
    2 files copied, 2.2 KiB
    >>> lowtide.copy(tmp / "given", tmp / "copy").skipped
    2
    """
    paths = [os.fspath(path) for path in (source, target)]
    addresses = [path for path in paths if store.is_address(path)]
    with store.using(addresses or paths, storage_options):
        pairs = list(_pairs(paths[0], paths[1]))
        total, done, copied, skipped = sum(file.size for file, _, _ in pairs), 0, 0, 0
        advance = progress or (lambda done, total: None)
        advance(0, total)
        for file, origin, destination in pairs:
            if _is_there(file, destination):
                skipped += 1
            else:
                before = done
                copy_file(origin, destination, verify, lambda part: advance(before + part, total))  # noqa: B023
                copied += file.size
            done += file.size
            advance(done, total)
    return Copied(len(pairs) - skipped, copied, skipped)


def _pairs(source: str, target: str) -> Iterator[tuple[Found, str, str]]:
    """Size, source and target of each file; the index of a corpus comes last."""
    into_folder = target.endswith("/")
    source, target = store.absolute(source), store.absolute(target)
    entry = store.entry(source)
    if entry is None:
        raise missing(source, "no such file, folder or object; check the path")
    if entry.kind == "file":
        if into_folder or (not store.is_address(target) and store.is_folder(target)):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        if source == target:
            raise ArgumentError(f"{target}: source and target are the same; pass another target")
        yield Found("", entry.identity.size, entry.identity.mtime_ns), source, target
        return
    if f"{target}/".startswith(f"{source}/"):
        raise ArgumentError(f"{target}: is inside {source}; pass another target")
    files = store.filesystem(source).files_below(source)
    if not files:
        raise missing(source, "holds no files; check the path")
    for file in sorted(files, key=lambda one: (one.name.rpartition("/")[2] in _LAST, one.name)):
        yield file, f"{source}/{file.name}", f"{target}/{file.name}"


def _is_there(file: Found, target: str) -> bool:
    entry = store.entry(target)
    if entry is None or entry.kind != "file" or entry.identity.size != file.size:
        return False
    return entry.identity.mtime_ns // 10**9 >= file.modified_ns // 10**9  # buckets count seconds


def copy_file(
    source: str, target: str, verify: bool = True, progress: Callable[[int], None] = lambda part: None
) -> str:
    """Copy one file or object, replacing the target, and return its SHA-256."""
    digest, done, resumable = hashlib.sha256(), 0, None
    with _reading(source) as (reader, identity):
        if store.is_address(source) and not store.is_address(target) and identity.size > _PIECE:
            resumable = ResumableFile(target, source, identity, _PIECE)
            done = resumable.resume(digest.update)
        with resumable or sink(target) as out:
            for piece in _pieces(reader, identity.size, done):
                digest.update(piece.data)
                out.write(piece)
                done += len(piece)
                progress(done)
    if verify:
        written = _digest(target)
        if written != digest.hexdigest():
            raise errors.WriteError(
                errno.EIO,
                f"differs from its source (SHA-256 {written[:16]}…, expected {digest.hexdigest()[:16]}… of "
                f"{source}); delete it and copy it again",
                target,
            )
    return digest.hexdigest()


def _digest(path: str) -> str:
    """The SHA-256 of a file or object, read in bounded memory."""
    digest = hashlib.sha256()
    with _reading(path) as (reader, identity):
        for piece in _pieces(reader, identity.size):
            digest.update(piece.data)
    return digest.hexdigest()


@contextmanager
def _reading(path: str) -> Iterator[tuple[Reader, Identity]]:
    with store.opened(path) as opened:
        reader = open_reader(path, opened.size, cache="drop", identity=opened.identity)
    with closing(reader):
        yield reader, opened.identity


def _pieces(reader: Reader, size: int, first: int = 0) -> Iterator[Bytes]:
    """The bytes from ``first`` on, in order; the next piece is read while the caller uses one."""
    buffers = [np.empty(min(size, _PIECE), np.uint8) for _ in range(2)]
    reads: deque[Pending[Bytes]] = deque()
    for start in range(first, size, _PIECE):
        piece = buffers[start // _PIECE % 2][: size - start]
        read = reader.submit(Extents.of_range(start, len(piece)).cut(), piece)
        reads.append(read.then(lambda _, piece=piece: piece))  # type: ignore[misc]
        if len(reads) == 2:
            yield reads.popleft().wait()
    if reads:
        yield reads.popleft().wait()
