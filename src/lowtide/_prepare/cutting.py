"""Where a long document is cut into pieces: by its own bytes alone, whatever they are read from.

Every ``size`` bytes from a document's beginning there is a mark. The cut lies at the mark, or a little before
it: at a single space between two words, where cutting changes no token of the usual tokenizers, else behind a
newline, else between two characters. So the cut at a mark is known from a few bytes around it, and the
pieces of one document can be read by many processes without a word between them.
"""

from __future__ import annotations

from collections.abc import Iterator

AHEAD = 2
"""Bytes behind a mark that must be at hand to know its cut, where the document has them."""

_REACH = 4096  # how far before the mark the cut may lie
_SPACES = b" \t\n\v\f\r"


def reach(size: int) -> int:
    """The most that a cut lies before its mark."""
    return min(_REACH, size // 2)


def cut(data: bytes, mark: int, end: int, size: int) -> int:
    """The cut at ``mark``; ``data`` holds the bytes around it, of a document that ends at ``end``.

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
    """A document that is held in memory, cut as one that is read from a file would be.

    >>> list(pieces("low tide is here", 12))
    ['low tide is', ' here']
    """
    if len(text) * (1 if text.isascii() else 4) <= size:
        yield text
        return
    data = text.encode()
    begin, mark = 0, size
    while mark < len(data):
        end = cut(data, mark, len(data), size)
        yield data[begin:end].decode()
        begin, mark = end, mark + size
    yield data[begin:].decode()


def _between_characters(data: bytes, mark: int) -> int:
    """At the mark, or before the character or the ``\\r\\n`` that it would cut in two."""
    if data[mark] == 10 and data[mark - 1] == 13:
        return mark - 1
    for at in range(mark, mark - 4, -1):
        if data[at] & 0xC0 != 0x80:  # not the second or a later byte of a character
            return at
    return mark  # no character is that long: these bytes are no UTF-8
