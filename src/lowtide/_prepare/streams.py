"""The bytes of a source from its beginning or from any byte on, a bounded block at a time."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from lowtide import errors
from lowtide.errors import FormatError, MissingExtraError, TruncatedFileError

BLOCK = 2**20
"""Bytes in a block, at most."""

_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"  # a frame that holds no data, after a first byte of 0x50 to 0x5f
_RLE = 1  # the type of a block that is one byte, repeated


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
    with open(path, "rb") as file:
        _check_frames(file, path)
        file.seek(0)
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        try:
            while block := reader.read(BLOCK):
                yield block
        except zstandard.ZstdError as error:
            raise _broken(path, "zstd", error) from error


def _check_frames(file: BinaryIO, path: str) -> None:
    """Walk over the headers of frames and blocks (RFC 8878) to see that the last one is all there.

    The library either reads bounded amounts and does not tell a frame that ended from a file that did, or
    tells it and gives any amount at once.
    """
    size = os.fstat(file.fileno()).st_size
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        file.seek(at)
        at += count
        if at > size:
            raise _truncated(path, "zstd")
        return file.read(count)

    while at < size:
        magic = take(4)
        if magic[1:] == _SKIPPED and magic[0] & 0xF0 == 0x50:
            length = int.from_bytes(take(4), "little")
            at += length
            continue
        if magic != _FRAME:
            raise _broken(path, "zstd", f"byte {at - 4} begins no frame: {magic.hex(' ')}")
        descriptor = take(1)[0]
        single = descriptor >> 5 & 1
        take((not single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6])
        last = 0
        while not last:
            header = int.from_bytes(take(3), "little")
            last = header & 1
            at += 1 if header >> 1 & 3 == _RLE else header >> 3
        at += 4 * (descriptor >> 2 & 1)  # the checksum
    if at > size:
        raise _truncated(path, "zstd")


def _truncated(path: str, what: str) -> TruncatedFileError:
    size = os.path.getsize(path)
    return TruncatedFileError(
        f"{path}: the {what} stream goes on after its last byte, {size}: cut short, or still being written; "
        "copy or download it again"
    )


def _broken(path: str, what: str, error: object) -> FormatError:
    return FormatError(f"{path}: is no valid {what} ({error}); copy or download it again")
