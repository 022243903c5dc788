"""What a unit holds: documents as pieces of text, in memory that does not depend on their length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from lowtide._prepare import jsonlines, texts
from lowtide._prepare.units import Piece, Unit
from lowtide._sizes import whole
from lowtide.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How sources are read. Together with the sources it decides every piece, and so every token.

    >>> ReadOptions(split_on="<|endoftext|>").errors
    'strict'
    """

    text_field: str = "text"  # of JSON lines, Parquet files and data sets
    split_on: str | None = None  # what stands between the documents of a text
    errors: Literal["strict", "replace"] = "strict"  # about bytes that are no UTF-8
    unit_size: int = 32 * 2**20  # bytes that a unit covers
    piece_size: int = 2**18  # bytes from which a document is cut into pieces
    line_limit: int = 64 * 2**20  # bytes of one JSON line, which is parsed as a whole

    def __post_init__(self) -> None:
        if self.split_on == "":
            raise ArgumentError("split_on must hold at least one character, got ''")
        if self.split_on is not None:
            try:
                self.split_on.encode()
            except UnicodeEncodeError:
                raise ArgumentError(f"split_on must be valid Unicode, got {self.split_on!r}") from None
        if self.errors not in ("strict", "replace"):
            raise ArgumentError(f"errors must be 'strict' or 'replace', got {self.errors!r}")
        whole("unit_size", self.unit_size, least=1)
        whole("piece_size", self.piece_size, least=8)
        whole("line_limit", self.line_limit, least=1)


def read(
    unit: Unit, options: ReadOptions, on_error: Callable[[Exception], None] | None = None
) -> Iterator[Piece]:
    """The pieces of a unit, in order.

    A document that cannot be read raises; with ``on_error`` it is handed there and left out. Of a text longer
    than a piece, the piece is left out. An empty document is passed over.

    >>> _ = (tmp / "x.jsonl").write_text('{"text": "low"}\\n{"text": "tide"}\\n')
    >>> [piece.text for piece in read(Unit(0, 0, str(tmp / "x.jsonl"), "jsonl", 0, 33), ReadOptions())]
    ['low', 'tide']
    """
    kind = unit.kind.partition(".")[0]
    if kind == "text":
        return texts.read(unit, options, on_error)
    if kind == "jsonl":
        return jsonlines.read(unit, options, on_error)
    from lowtide._prepare import tables

    return tables.read(unit, options, on_error)
