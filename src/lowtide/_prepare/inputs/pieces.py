"""Pieces: where a long document is cut, which depends on its bytes alone.

A document has a mark every ``size`` bytes. The cut is at the mark or a little before it: at a single space
between two words, where cutting changes no token of the usual tokenizers; else after a newline; else between
two characters. A few bytes around a mark thus determine its cut, and several processes can read the pieces of
one document without communicating.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError, TruncatedFileError

AHEAD = 2
"""Bytes after a mark that determine its cut, if the document has them."""

BOM = b"\xef\xbb\xbf"

_REACH = 4096  # how far before the mark the cut may be
_SPACES = b" \t\n\v\f\r"


class Piece(NamedTuple):
    """The text of a document, or the next part of a very long one."""

    text: str
    ends: bool  # the document ends with this piece
    document: int  # where the document starts in its file: identifies it together with the file's number
    position: int  # where this piece starts, for errors
    ids: npt.NDArray[Any] | None = None  # the tokens, if the source contains these and not the text


def reach(size: int) -> int:
    """The largest distance of a cut from its mark."""
    return min(_REACH, size // 2)


def cut(data: bytes, mark: int, end: int, size: int) -> int:
    """The cut at ``mark``; ``data`` has the bytes around it, of a document that ends at ``end``.

    >>> cut(b"low tide is here", 10, 16, size=12)
    8
    """
    low = mark - reach(size) + 1
    at = data.rfind(b" ", low, min(mark + 1, end - 1))
    while at > 0:
        if data[at - 1] not in _SPACES and data[at + 1] not in _SPACES:
            return at
        at = data.rfind(b" ", low, at)
    newline = data.rfind(b"\n", low, mark)
    if newline >= 0:
        return newline + 1
    return _between_characters(data, mark)


def pieces(text: str, size: int) -> Iterator[str]:
    """A document in memory, cut as one that is read from a file would be.

    >>> list(pieces("low tide is here", 12))
    ['low tide is', ' here']
    """
    if len(text) * (1 if text.isascii() else 4) <= size:
        yield text
        return
    data = text.encode()
    start, mark = 0, size
    while mark < len(data):
        end = cut(data, mark, len(data), size)
        yield data[start:end].decode()
        start, mark = end, mark + size
    yield data[start:].decode()


def document(content: str | npt.NDArray[Any], position: int, size: int) -> Iterator[Piece]:
    """The pieces of a document in memory, a text or token ids; an empty document has none."""
    if isinstance(content, np.ndarray):
        if len(content):
            yield Piece("", True, position, position, content)
        return
    last = ""
    for part in pieces(content, size):
        if last:
            yield Piece(last, False, position, position)
        last = part
    if last:
        yield Piece(last, True, position, position)


def invalid_utf8(where: str, error: UnicodeDecodeError) -> FormatError:
    """The error for bytes that are not UTF-8."""
    data = error.object[error.start : error.start + 4].hex(" ")
    return FormatError(
        f"{where}: invalid UTF-8 ({error.reason}), found {data}; convert the source to UTF-8, or pass "
        "on_error='replace' to read U+FFFD there"
    )


def truncated(path: str, size: int, expected: int) -> TruncatedFileError:
    """The error for a file that became shorter after the plan was made."""
    return TruncatedFileError(
        f"{path}: was truncated during the run ({size} bytes, expected {expected}); restore it and run again"
    )


def _between_characters(data: bytes, mark: int) -> int:
    """The mark, or the start of the character or the ``\\r\\n`` that it would cut in two."""
    if data[mark] == 10 and data[mark - 1] == 13:
        return mark - 1
    for at in range(mark, mark - 4, -1):
        if data[at] & 0xC0 != 0x80:  # not the second or a later byte of a character
            return at
    return mark  # no character is that long: these bytes are not UTF-8
