"""Plain text: a file that is one document, or a text that a separator cuts into documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lowtide._prepare.cutting import AHEAD, cut, pieces, reach
from lowtide._prepare.streams import blocks, compression_of
from lowtide._prepare.units import Piece, Unit
from lowtide.errors import FormatError, TruncatedFileError, reading

if TYPE_CHECKING:
    from lowtide._prepare.reading import ReadOptions

BOM = b"\xef\xbb\xbf"

OnError = Callable[[Exception], None]


def read(unit: Unit, options: ReadOptions, on_error: OnError | None = None) -> Iterator[Piece]:
    """The pieces of a unit of text."""
    if options.split_on is None:
        return _whole(unit, options, on_error)
    return _split(unit, options, options.split_on.encode(), on_error)


def _whole(unit: Unit, options: ReadOptions, on_error: OnError | None) -> Iterator[Piece]:
    """The file is one document. A unit has the pieces whose marks lie in it."""
    size = options.piece_size
    stop = _stop(unit)
    mark = -(-unit.start // size) * size
    if mark >= stop:
        return
    window = _Window(unit, options, max(0, mark - reach(size)), on_error)
    begin = 0
    if mark:
        window.hold(mark + AHEAD)
        begin = window.cut(mark, size)
    while mark < stop:
        mark += size
        window.hold(mark + AHEAD, begin)
        if window.end <= mark:
            yield from window.piece(0, begin, window.end, ends=True)
            return
        at = window.cut(mark, size)
        yield from window.piece(0, begin, at, ends=False)
        begin = at


def _split(unit: Unit, options: ReadOptions, separator: bytes, on_error: OnError | None) -> Iterator[Piece]:
    """Documents lie between separators. A unit has those that begin in it, and reads the last to its end."""
    size = options.piece_size
    stop = _stop(unit)
    start = _in_step(unit.path, unit.start, separator)
    window = _Window(unit, options, start, on_error)
    if unit.start == 0:
        document = 0
    else:
        document = -1
        searched = start
        while document < unit.start:
            found = window.find(separator, searched)
            searched = (
                found + len(separator) if found >= 0 else max(searched, window.end - len(separator) + 1)
            )
            if found >= 0:
                document = searched
            elif searched >= stop or not window.more(searched):
                return
    while document < stop:
        begin = searched = document
        mark = document + size
        while True:
            found = window.find(separator, searched)
            known = found >= 0 or window.ended
            # A separator may begin in the last bytes that are held: they may be the document's, or not.
            end = found if found >= 0 else window.end if known else window.end - len(separator) + 1
            while mark < end if known else mark + AHEAD <= end:
                at = window.cut(mark, size, end)
                yield from window.piece(document, begin, at, ends=False)
                begin, mark = at, mark + size
            if known:
                break
            searched = max(searched, end)
            window.more(begin)
        yield from window.piece(document, begin, end, ends=True)
        if found < 0:
            return
        document = found + len(separator)


class _Window:
    """The part of a stream that is in memory. Positions are those of the stream."""

    def __init__(self, unit: Unit, options: ReadOptions, start: int, on_error: OnError | None) -> None:
        compression = compression_of(unit.kind)
        self._path = unit.path
        self._promised = 0 if compression else unit.stop
        self._blocks = blocks(unit.path, compression, start)
        self._errors = options.errors
        self._on_error = on_error
        self._base = start
        self._data = b""
        self.ended = False

    @property
    def end(self) -> int:
        return self._base + len(self._data)

    def more(self, keep: int) -> bool:
        """Read a block, and let go of what lies before ``keep``; false at the end of the stream."""
        block = next(self._blocks, b"")
        self._data = self._data[keep - self._base :] + block
        self._base = keep
        if not block:
            self.ended = True
            if self.end < self._promised:
                raise cut_short(self._path, self.end, self._promised)
        return bool(block)

    def hold(self, end: int, keep: int | None = None) -> None:
        """Read until ``end`` is in memory, or the stream ends."""
        while self.end < end and not self.ended:
            self.more(self._base if keep is None else keep)

    def find(self, separator: bytes, start: int) -> int:
        at = self._data.find(separator, start - self._base)
        return self._base + at if at >= 0 else -1

    def cut(self, mark: int, size: int, end: int | None = None) -> int:
        end = self.end if end is None else end
        return self._base + cut(self._data, mark - self._base, end - self._base, size)

    def piece(self, document: int, begin: int, end: int, *, ends: bool) -> Iterator[Piece]:
        """The piece, or none: of an empty document, or of bytes that are no text and may be left out.

        A document of several pieces has its last one in any case, since the others were given away already.
        """
        text = self._decoded(begin, end)
        if text or (ends and begin != document):
            yield Piece(text, ends, document, begin)

    def _decoded(self, begin: int, end: int) -> str:
        view = memoryview(self._data)[begin - self._base : end - self._base]
        if begin == 0 and view[:3] == BOM:
            view, begin = view[3:], 3
        try:
            return str(view, "utf-8", self._errors)
        except UnicodeDecodeError as error:
            wrong = invalid(f"{self._path}: byte {begin + error.start}", error)
            if self._on_error is None:
                raise wrong from None
            self._on_error(wrong)
            return ""


def invalid(where: str, error: UnicodeDecodeError) -> FormatError:
    """The error for bytes that are no UTF-8."""
    found = error.object[error.start : error.start + 4].hex(" ")
    return FormatError(
        f"{where}: invalid UTF-8 ({error.reason}), found {found}; convert the source to UTF-8, or pass "
        "errors='replace' to read U+FFFD there"
    )


def document(text: str, position: int, piece_size: int) -> Iterator[Piece]:
    """The pieces of a document that is held in memory."""
    if not text:
        return
    last = None
    for part in pieces(text, piece_size):
        if last is not None:
            yield Piece(last, False, position, position)
        last = part
    yield Piece(last or "", True, position, position)


def cut_short(path: str, found: int, expected: int) -> TruncatedFileError:
    """The error for a file that became shorter since the plan was made."""
    return TruncatedFileError(
        f"{path}: ends at byte {found} and {expected} bytes were expected: it was cut short since it was "
        "looked at; restore it and run again"
    )


def _stop(unit: Unit) -> int:
    """A compressed stream is one unit, whose length nobody knows."""
    return unit.stop if compression_of(unit.kind) is None else 2**63


def _in_step(path: str, start: int, separator: bytes) -> int:
    """A place from which searching finds the separators that searching from the beginning finds.

    Far enough before ``start`` that a separator that ends there is found. In ``"a\\n\\n\\nb"`` the first two
    of three newlines are the separator, and not the last two: so no separator may lie across that place.
    """
    length = len(separator)
    at = max(0, start - length)
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            while at > 0:
                low = max(0, at - length + 1)
                os.lseek(fd, low, os.SEEK_SET)
                found = os.read(fd, at - 1 + length - low).find(separator)
                if found < 0:
                    break
                at = low + found
        finally:
            os.close(fd)
    except OSError as error:
        raise reading(path, error) from error
    return at
