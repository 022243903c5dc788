"""The bytes of a source from its beginning or from any byte on, a bounded block at a time."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator

from lowtide import errors
from lowtide.errors import FormatError, MissingExtraError, TruncatedFileError

BLOCK = 2**20
"""Bytes in a block, at most."""

# The decompressor gives all that came of what it was fed. A zstd block of 4 bytes may hold 128 KiB, so that
# this much input is at most 128 MiB of output, and with text it is some 16 KiB.
_FED = 4096


def compression_of(kind: str) -> str | None:
    """The last part of a kind such as ``jsonl.gz``.

    >>> compression_of("jsonl.gz"), compression_of("jsonl")
    ('gz', None)
    """
    _, _, last = kind.partition(".")
    return last or None


def blocks(path: str, compression: str | None = None, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file, decompressed; only one that is not compressed can start elsewhere than at 0.

    >>> _ = (tmp / "x.txt").write_bytes(b"low tide")
    >>> list(blocks(str(tmp / "x.txt"), start=4))
    [b'tide']
    """
    try:
        if compression is None:
            yield from _plain(path, start)
        elif compression == "gz":
            yield from _gzip(path)
        else:
            yield from _zstd(path)
    except OSError as error:
        if isinstance(error, errors.LowtideError):
            raise
        raise errors.reading(path, error) from error


def _plain(path: str, start: int) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while block := file.read(BLOCK):
            yield block


def _gzip(path: str) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as file:
            while block := file.read(BLOCK):
                yield block
    except EOFError as error:
        raise _truncated(path, "gzip") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _broken(path, "gzip", error) from error


def _zstd(path: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(
            f"{path}: reading zstd needs zstandard, which cannot be imported ({error}): "
            "pip install 'lowtide[prepare]'"
        ) from error
    # Not the library's own stream reader: to it the end of a file cut short is an end like any other.
    frame = None
    held: list[bytes] = []
    size = 0
    with open(path, "rb", buffering=BLOCK) as file:
        while fed := file.read(_FED):
            while fed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    made = frame.decompress(fed)
                except zstandard.ZstdError as error:
                    raise _broken(path, "zstd", error) from error
                held.append(made)
                size += len(made)
                fed = b""
                if frame.eof:  # another frame may follow
                    fed, frame = frame.unused_data, None
            if size >= BLOCK // 2:
                yield from _cut(b"".join(held))
                held, size = [], 0
    if frame is not None:
        raise _truncated(path, "zstd")
    yield from _cut(b"".join(held))


def _cut(data: bytes) -> Iterator[bytes]:
    if len(data) <= BLOCK:
        yield from (data,) if data else ()
        return
    for start in range(0, len(data), BLOCK):
        yield data[start : start + BLOCK]


def _truncated(path: str, what: str) -> TruncatedFileError:
    size = os.path.getsize(path)
    return TruncatedFileError(
        f"{path}: the {what} stream goes on after its last byte, {size}: cut short, or still being written; "
        "copy or download it again"
    )


def _broken(path: str, what: str, error: Exception) -> FormatError:
    return FormatError(f"{path}: is no valid {what} ({error}); copy or download it again")
