"""The bytes of an input, decompressed, in bounded blocks."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator

from lowtide._extras import library
from lowtide._io.store import Store, opened
from lowtide.errors import FormatError, TruncatedFileError

BLOCK = 2**20
"""Bytes in a block, at most."""

_MAGIC = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd"}
_SKIPPABLE = (
    b"\x2a\x4d\x18"  # a frame without data, after a first byte of 0x50 to 0x5f; pzstd writes one first
)
_RLE = 1  # the type of a block that is one byte, repeated


def compression_of(data: bytes, name: str, path: str) -> str | None:
    """The compression of a file by its first bytes; the end of its name must not contradict them.

    >>> compression_of(b"\\x1f\\x8b\\x08", "x.gz", "x.gz"), compression_of(b"low tide", "x.txt", "x.txt")
    ('gz', None)
    """
    if _is_skippable(data):
        return "zst"
    for compression, magic in _MAGIC.items():
        if data.startswith(magic):
            return compression
        if name.endswith(f".{compression}"):
            raise mismatch(path, compression, data, magic)
    return None


def mismatch(path: str, ending: str, data: bytes, magic: bytes) -> FormatError:
    """The error for a file whose name contradicts its first bytes."""
    return FormatError(
        f"{path}: its name says {ending}, but its content does not (found {data[:4].hex(' ')} at the start, "
        f"expected {magic.hex(' ')}); rename it"
    )


def blocks(path: str, compression: str | None = None, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file, decompressed; only a file that is not compressed can be read from ``start``.

    >>> _ = (tmp / "x.txt").write_bytes(b"low tide")
    >>> list(blocks(str(tmp / "x.txt"), start=4))
    [b'tide']
    """
    with opened(path) as store:
        yield from _READERS[compression](store, start)


def _plain(store: Store, start: int) -> Iterator[bytes]:
    while block := store.read_some(start, BLOCK):
        yield block
        start += len(block)


def _gzip(store: Store, _start: int) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=store.stream()) as file:
            while block := file.read(BLOCK):
                yield block
    except EOFError as error:
        raise _truncated(store, "gzip") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _invalid(store, "gzip", error) from error


def _zstd(store: Store, _start: int) -> Iterator[bytes]:
    zstandard = library("zstandard", f"{store.path}: reading zstd")
    _check_frames(store)
    reader = zstandard.ZstdDecompressor().stream_reader(store.stream(), read_across_frames=True)
    try:
        while block := reader.read(BLOCK):
            yield block
    except zstandard.ZstdError as error:
        raise _invalid(store, "zstd", error) from error


_READERS: dict[str | None, Callable[[Store, int], Iterator[bytes]]] = {
    None: _plain,
    "gz": _gzip,
    "zst": _zstd,
}


def _check_frames(store: Store) -> None:
    """Walk over the headers of frames and blocks (RFC 8878) to verify that the last frame is complete.

    The library either reads bounded amounts and takes the end of the file for the end of a frame, or
    distinguishes them and returns unbounded amounts.
    """
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        if at > store.size:
            raise _truncated(store, "zstd")
        return store.read(at - count, count)

    while at < store.size:
        magic = take(4)
        if _is_skippable(magic):
            length = int.from_bytes(take(4), "little")
            at += length
            continue
        if magic != _MAGIC["zst"]:
            raise _invalid(store, "zstd", f"no frame starts at byte {at - 4}: {magic.hex(' ')}")
        descriptor = take(1)[0]
        single = descriptor >> 5 & 1
        take((not single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6])
        last = 0
        while not last:
            header = int.from_bytes(take(3), "little")
            last = header & 1
            at += 1 if header >> 1 & 3 == _RLE else header >> 3
        at += 4 * (descriptor >> 2 & 1)  # the checksum
    if at > store.size:
        raise _truncated(store, "zstd")


def _is_skippable(magic: bytes) -> bool:
    return magic[1:4] == _SKIPPABLE and magic[0] & 0xF0 == 0x50


def _truncated(store: Store, what: str) -> TruncatedFileError:
    return TruncatedFileError(
        f"{store.path}: the {what} stream is truncated, or still being written (the file ends at byte "
        f"{store.size}); copy or download it again"
    )


def _invalid(store: Store, what: str, error: object) -> FormatError:
    return FormatError(f"{store.path}: is not valid {what} ({error}); copy or download it again")
