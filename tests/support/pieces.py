"""Helpers for tests of inputs: reading by units, and joining pieces to documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

from lowtide._prepare.inputs import find, plan, streams
from lowtide._prepare.inputs.kind import ReadOptions
from lowtide._prepare.inputs.pieces import Piece

Documents = list[tuple[int, str]]


def pieces_of(
    path: Path,
    options: ReadOptions,
    block: int = streams.BLOCK,
    skip: Callable[[Exception], None] | None = None,
) -> list[Piece]:
    """All pieces of a source, read unit by unit and in blocks of ``block`` bytes."""
    with mock.patch.object(streams, "BLOCK", block):
        return [piece for unit in plan(find([str(path)]), options) for piece in unit.read(options, skip)]


def documents(pieces: list[Piece]) -> Documents:
    """Where each document starts, and its text; each ends once, with its last piece."""
    result: Documents = []
    parts: list[str] = []
    for i, piece in enumerate(pieces):
        parts.append(piece.text)
        follows = pieces[i + 1].document if i + 1 < len(pieces) else None
        assert piece.ends == (follows != piece.document), piece
        if piece.ends:
            result.append((piece.document, "".join(parts)))
            parts.clear()
    assert not parts
    return result
