"""Marks: which token ends or starts documents, where a format does not record it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide._tokens.formats.tokens import Marks

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus


def find_marks(corpus: Corpus, usual: int) -> tuple[int | None, Marks]:
    """The token that marks documents, the caller's or the ``usual`` one if it occurs, and where it is."""
    first, last, eos = int(corpus[0]), int(corpus[-1]), corpus.eos
    if eos is None and (usual in (first, last) or (corpus._spread(256, 1024) == usual).any()):
        eos = usual
    # A file that starts with the mark has it first in each document. One that starts within a document is a
    # later shard, unless it ends with the mark: then it is the last token of each document.
    return eos, "end" if eos is not None and last == eos != first else "start"
