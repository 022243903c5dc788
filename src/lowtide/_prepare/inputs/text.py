"""Plain text: a file that is one document, or that a separator divides into documents."""

from __future__ import annotations

from collections.abc import Iterator

from lowtide._io.store import opened
from lowtide._prepare.inputs.kind import Head, Kind, ReadOptions, Skip, Unit
from lowtide._prepare.inputs.pieces import AHEAD, BOM, Piece, cut, invalid_utf8, reach, truncated
from lowtide._prepare.inputs.streams import blocks

ENDINGS = (".txt", ".text", ".md", ".rst")


class Text(Kind):
    """Files without zero bytes that no other kind recognises."""

    name = "text"

    def recognises(self, head: Head, /) -> bool:
        return head.name.endswith(ENDINGS) or b"\0" not in head.block

    def read(self, unit: Unit, options: ReadOptions, skip: Skip | None = None, /) -> Iterator[Piece]:
        if options.split_on is None:
            return _whole(unit, options, skip)
        return _divided(unit, options, options.split_on.encode(), skip)


def _whole(unit: Unit, options: ReadOptions, skip: Skip | None) -> Iterator[Piece]:
    """The pieces of a file that is one document; a unit has the pieces whose marks are in it."""
    size = options.piece_size
    mark = -(-unit.start // size) * size
    if mark >= unit.end:
        return
    window = _Window(unit, options, max(0, mark - reach(size)), skip)
    start = 0
    if mark:
        window.hold(mark + AHEAD)
        start = window.cut(mark, size)
    while mark < unit.end:
        mark += size
        window.hold(mark + AHEAD, start)
        if window.end <= mark:
            yield from window.piece(0, start, window.end, ends=True)
            return
        at = window.cut(mark, size)
        yield from window.piece(0, start, at, ends=False)
        start = at


def _divided(unit: Unit, options: ReadOptions, separator: bytes, skip: Skip | None) -> Iterator[Piece]:
    """The pieces of documents between separators.

    A unit has the documents that start in it, and reads the last of them to its end.
    """
    size = options.piece_size
    base = _in_step(unit.path, unit.start, separator)
    window = _Window(unit, options, base, skip)
    document, searched = (0, 0) if unit.start == 0 else (-1, base)
    while document < unit.start:
        at = window.find(separator, searched)
        if at >= 0:
            document = searched = at + len(separator)
            continue
        searched = max(searched, window.end - len(separator) + 1)
        if searched >= unit.end or not window.more(searched):
            return
    while document < unit.end:
        start = searched = document
        mark = document + size
        while True:
            at = window.find(separator, searched)
            complete = at >= 0 or window.ended
            # A separator may start in the last bytes of the window, so that they may not be the document's.
            end = at if at >= 0 else window.end if complete else window.end - len(separator) + 1
            while mark < end if complete else mark + AHEAD <= end:
                boundary = window.cut(mark, size, end)
                yield from window.piece(document, start, boundary, ends=False)
                start, mark = boundary, mark + size
            if complete:
                break
            searched = max(searched, end)
            window.more(start)
        after = at + len(separator)
        stop = after if at >= 0 and options.keep_separators else end
        yield from window.piece(document, start, stop, ends=True)
        if at < 0:
            return
        document = after


class _Window:
    """The part of a stream that is in memory. Positions are those of the stream."""

    def __init__(self, unit: Unit, options: ReadOptions, start: int, skip: Skip | None) -> None:
        self._path = unit.path
        self._least = 0 if unit.compression else unit.stop
        self._blocks = blocks(unit.path, unit.compression, start)
        self._errors = options.decode_errors
        self._skip = skip
        self._base = start
        self._data = b""
        self.ended = False

    @property
    def end(self) -> int:
        return self._base + len(self._data)

    def more(self, keep: int) -> bool:
        """Read a block, and release everything before ``keep``; false at the end of the stream."""
        block = next(self._blocks, b"")
        self._data = self._data[keep - self._base :] + block
        self._base = keep
        if not block:
            self.ended = True
            if self.end < self._least:
                raise truncated(self._path, self.end, self._least)
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

    def piece(self, document: int, start: int, end: int, *, ends: bool) -> Iterator[Piece]:
        """The piece; none if it is empty, or if its bytes are not text and are skipped.

        The last piece of several is always yielded, since the document must end.
        """
        text = self._decode(start, end)
        if text or (ends and start != document):
            yield Piece(text, ends, document, start)

    def _decode(self, start: int, end: int) -> str:
        view = memoryview(self._data)[start - self._base : end - self._base]
        if start == 0 and view[:3] == BOM:
            view, start = view[3:], 3
        try:
            return str(view, "utf-8", self._errors)
        except UnicodeDecodeError as error:
            problem = invalid_utf8(f"{self._path}: byte {start + error.start}", error)
            if self._skip is None:
                raise problem from None
            self._skip(problem)
            return ""


def _in_step(path: str, start: int, separator: bytes) -> int:
    """A position from which a search finds the same separators as a search from the start of the file.

    It is far enough before ``start`` to find a separator that ends there. No separator may lie across it: in
    ``"a\\n\\n\\nb"`` the first two of three newlines are the separator, not the last two.
    """
    length = len(separator)
    at = max(0, start - length)
    with opened(path) as store:
        while at > 0:
            low = max(0, at - length + 1)
            count = max(0, min(at - 1 + length, store.size) - low)
            position = store.read(low, count).find(separator) if count else -1
            if position < 0:
                break
            at = low + position
    return at
