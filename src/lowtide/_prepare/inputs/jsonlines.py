"""JSON lines: each line is an object, and one of its fields is the document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._io import jsonfiles
from lowtide._prepare.inputs import text
from lowtide._prepare.inputs.kind import IDS, Head, Kind, ReadOptions, Skip, Unit
from lowtide._prepare.inputs.pieces import BOM, Piece, document, invalid_utf8, truncated
from lowtide._prepare.inputs.streams import blocks
from lowtide._printable import brief
from lowtide._sizes import format_size
from lowtide.errors import FormatError, LowtideError

_FIRST_LINE = 2**20  # bytes; a longer first line is not parsed to recognise the file
_SMALL = 2**20  # bytes; a shorter line is parsed without an estimate of its memory


class _Line(NamedTuple):
    position: int
    number: int  # counted from the first that was read, which may not be the first of the file
    content: bytes | None  # None if it is too long


class JsonLines(Kind):
    """Files that are JSON lines by their name or by their first line."""

    name = "jsonl"

    def recognises(self, head: Head, /) -> bool:
        if head.name.endswith((".jsonl", ".ndjson")):
            return True
        if head.name.endswith(text.ENDINGS) or b"\0" in head.block:
            return False
        line, newline, _ = head.block.removeprefix(BOM).lstrip().partition(b"\n")
        try:
            is_object = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            # The first line may be longer than the block.
            is_object = line.startswith(b'{"') and not newline and len(head.block) >= _FIRST_LINE
        if not is_object and head.name.endswith(".json"):
            raise FormatError(
                f"{head.path}: is JSON, but not JSON lines (found {brief(line[:100])} as its first line, "
                "expected an object); write one object per line"
            )
        return is_object

    def read(self, unit: Unit, options: ReadOptions, skip: Skip | None = None, /) -> Iterator[Piece]:
        """The documents of the lines that start in a unit."""
        before = -1
        for line in _lines(unit, options.line_limit):
            try:
                content = _text(line, options)
            except _LineError as error:
                if before < 0:
                    before = _lines_before(unit)
                problem = FormatError(
                    f"{unit.path}: line {before + line.number}, byte {line.position}: {error}"
                )
                if skip is None:
                    raise problem from None
                skip(problem)
                continue
            yield from document(content, line.position, options.piece_size)


class _LineError(LowtideError):
    """A problem of a line; the position is added later."""


def _text(line: _Line, options: ReadOptions) -> str | npt.NDArray[Any]:
    content = line.content
    if content is None:
        raise _LineError(
            f"is longer than {format_size(options.line_limit)}; write large documents as text files, which "
            "are streamed"
        )
    if line.position == 0 and content.startswith(BOM):
        content = content[len(BOM) :]
    if not content or content.isspace():
        return ""
    try:
        source = content.decode("utf-8", options.decode_errors)
    except UnicodeDecodeError as error:
        raise _LineError(str(invalid_utf8(f"byte {error.start} of the line", error))) from None
    if len(content) > _SMALL and (memory := jsonfiles.memory_of(content)) > jsonfiles.MAX_MEMORY:
        raise _LineError(
            f"its values take about {format_size(memory)} of memory, expected at most "
            f"{format_size(jsonfiles.MAX_MEMORY)}; remove fields that are not text"
        )
    try:
        record = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise _LineError(
            f"is not valid JSON ({error}), found {brief(source)}; repair or remove the line"
        ) from None
    return _text_of(record, source, options)


def _text_of(record: object, source: str, options: ReadOptions) -> str | npt.NDArray[Any]:
    """The text field of a line, or its token ids."""
    if not isinstance(record, dict):
        raise _LineError(f"must be a JSON object with a field {options.text_field!r}, found {brief(record)}")
    field = options.field_of(record)
    value = record.get(field)
    if field not in record:
        raise _LineError(
            f"has no field {field!r}, found {brief(sorted(record))}; pass the field that "
            "contains the text (text_field)"
        )
    if isinstance(value, list) and all(type(one) is int and 0 <= one < 2**32 for one in value):
        return np.array(value, np.uint32)
    if not isinstance(value, str):
        expected = "a list of token ids" if isinstance(value, list) or field == IDS else "a string"
        raise _LineError(
            f"field {field!r} must be {expected}, found "
            f"{'null' if value is None else brief(value)}; repair or remove the line, or pass on_error='skip'"
        )
    if "\\u" in source:  # an escape may be half of a surrogate pair
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if options.replace:
                return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            raise _LineError(
                f"field {field!r} contains half a surrogate pair, "
                f"\\u{ord(value[error.start]):04x}; repair it, or pass on_error='replace'"
            ) from None
    return value


def _lines(unit: Unit, limit: int) -> Iterator[_Line]:
    """The lines that start in the unit; a line longer than ``limit`` is skipped in bounded memory."""
    # A line starts at `start` if the byte before it is a newline.
    position = max(0, unit.start - 1)
    foreign = unit.start > 0
    number = 1
    parts: list[bytes] = []
    held = 0  # bytes of the line so far, whether or not they are in parts
    for block in blocks(unit.path, unit.compression, position):
        *complete, rest = block.split(b"\n")
        for content in complete:
            length = held + len(content)
            if parts:
                content = b"".join([*parts, content]) if length <= limit else b""
                parts, held = [], 0
            if foreign:
                foreign = False
            else:
                yield _Line(position, number, content if length <= limit else None)
            position += length + 1
            number += 1
            if position >= unit.end:
                return
        held += len(rest)
        if held > limit or foreign:
            parts = [b""] if held else []
        elif rest:
            parts.append(rest)
    if position + held < unit.stop and not unit.compression:
        raise truncated(unit.path, position + held, unit.stop)
    if held and not foreign:
        yield _Line(position, number, b"".join(parts) if held <= limit else None)


def _lines_before(unit: Unit) -> int:
    """Lines of the file before the first that was read. It costs a pass, so it is only used for errors."""
    first = max(0, unit.start - 1)
    counted = lines = 0
    for block in blocks(unit.path) if first else ():
        lines += block.count(b"\n", 0, max(0, first - counted))
        counted += len(block)
        if counted >= first:
            break
    return lines
