"""Units of work: what one process reads and encodes at a time, and the pieces of text it meets there.

The plan of units depends on the sources alone, never on workers: the same plan gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Unit:
    """A whole source, or a range of it. Plain values: it is sent to other processes and machines."""

    index: int  # its place in the plan, and so in the corpus
    source: int  # the number of its source
    path: str
    kind: str  # which reader takes it: "text", "jsonl", "parquet", ...
    start: int  # bytes, or row groups, or rows: what the kind counts in
    stop: int


class Piece(NamedTuple):
    """A document's text, or the next part of a very long one's."""

    text: str
    ends: bool  # the document ends with this piece
    document: int  # where the document begins in its source: with the source's number its identity
    position: int  # where this piece begins, for errors
