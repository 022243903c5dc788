"""JSON lines: each line an object, one field of which is the document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from lowtide._io import jsonfiles
from lowtide._prepare.streams import blocks, compression_of
from lowtide._prepare.texts import BOM, cut_short, document, invalid
from lowtide._prepare.units import Piece, Unit
from lowtide._printable import brief
from lowtide._sizes import format_size
from lowtide.errors import FormatError, LowtideError

if TYPE_CHECKING:
    from lowtide._prepare.reading import ReadOptions


_SMALL = 2**20  # a line below it is parsed at once: it cannot take much


class _Line(NamedTuple):
    position: int
    number: int  # from the first that was read, which is not always the first of the file
    content: bytes | None  # None when it is too long


def read(
    unit: Unit, options: ReadOptions, on_error: Callable[[Exception], None] | None = None
) -> Iterator[Piece]:
    """The documents of the lines that begin in a unit."""
    before = -1
    for line in _lines(unit, options.line_limit):
        try:
            text = _text(line, options)
        except _WrongError as error:
            if before < 0:
                before = _lines_before(unit)
            wrong = FormatError(f"{unit.path}: line {before + line.number}, byte {line.position}: {error}")
            if on_error is None:
                raise wrong from None
            on_error(wrong)
            continue
        yield from document(text, line.position, options.piece_size)


class _WrongError(LowtideError):
    """What is wrong with a line; where it is, is not known yet."""


def _text(line: _Line, options: ReadOptions) -> str:
    content = line.content
    if content is None:
        raise _WrongError(
            f"is longer than {format_size(options.line_limit)}; write large documents as text files, which "
            "are streamed"
        )
    if line.position == 0 and content.startswith(BOM):
        content = content[len(BOM) :]
    if not content or content.isspace():
        return ""
    try:
        source = content.decode("utf-8", options.errors)
    except UnicodeDecodeError as error:
        raise _WrongError(str(invalid(f"byte {error.start} of the line", error))) from None
    if len(content) > _SMALL and (memory := jsonfiles.memory_of(content)) > jsonfiles.MAX_MEMORY:
        raise _WrongError(
            f"its values take about {format_size(memory)} of memory, expected at most "
            f"{format_size(jsonfiles.MAX_MEMORY)}; leave out what is not text"
        )
    try:
        record = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"is no JSON ({error}), found {brief(source)}; repair or remove the line") from None
    return text_of(record, source, options)


def text_of(record: object, source: str, options: ReadOptions) -> str:
    """The text field of a line."""
    if not isinstance(record, dict):
        raise _WrongError(f"must be a JSON object with a field {options.text_field!r}, found {brief(record)}")
    text = record.get(options.text_field)
    if text is None:
        raise _WrongError(
            f"has no field {options.text_field!r}, found {brief(sorted(record))}; name the field that holds "
            "the text (text_field)"
        )
    if not isinstance(text, str):
        raise _WrongError(f"field {options.text_field!r} must be a string, found {brief(text)}")
    if "\\u" in source:  # an escape may be half of a pair that stands for one character
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if options.errors == "replace":
                return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            raise _WrongError(
                f"field {options.text_field!r} holds half a surrogate pair, \\u{ord(text[error.start]):04x}; "
                "repair it, or pass errors='replace'"
            ) from None
    return text


def _lines(unit: Unit, limit: int) -> Iterator[_Line]:
    """The lines that begin in the unit; a line longer than ``limit`` is passed over in bounded memory."""
    compression = compression_of(unit.kind)
    stop = 2**63 if compression else unit.stop
    # A line begins at `start` if the byte before it is a newline.
    position = max(0, unit.start - 1)
    foreign = unit.start > 0
    number = 1
    parts: list[bytes] = []
    held = 0  # bytes of the line so far, whether or not they were kept
    for block in blocks(unit.path, compression, position):
        *complete, rest = block.split(b"\n")
        for content in complete:
            if parts:
                parts.append(content)
                length = held + len(content)
                content = b"".join(parts) if length <= limit else b""
                parts.clear()
                held = 0
            else:
                length = len(content)
            if foreign:
                foreign = False
            else:
                yield _Line(position, number, content if length <= limit else None)
            position += length + 1
            number += 1
            if position >= stop:
                return
        held += len(rest)
        if held > limit or foreign:
            parts = [b""] if held else []
        elif rest:
            parts.append(rest)
    if position + held < stop and not compression:
        raise cut_short(unit.path, position + held, stop)
    if held and not foreign:
        yield _Line(position, number, b"".join(parts) if held <= limit else None)


def _lines_before(unit: Unit) -> int:
    """Lines of the file before the first that was read. It costs a pass, so only errors ask for it."""
    first = max(0, unit.start - 1)
    counted = lines = 0
    for block in blocks(unit.path) if first else ():
        lines += block.count(b"\n", 0, max(0, first - counted))
        counted += len(block)
        if counted >= first:
            break
    return lines
