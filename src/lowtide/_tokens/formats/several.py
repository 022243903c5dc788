"""Several corpora as one: folders, or data sets, one after another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from lowtide._printable import brief
from lowtide._tokens.formats.documents import Documents
from lowtide._tokens.formats.index import check_same
from lowtide._tokens.formats.tokens import Chained, Tokens
from lowtide.errors import ArgumentError


def join(corpora: Sequence[Tokens]) -> Tokens:
    """The tokens of corpora one after another, if their ids mean the same as far as is known."""
    first = corpora[0]
    if len(corpora) == 1:
        return first
    where = [os.path.dirname(one.segments[0].path) for one in corpora]
    for path, one in zip(where[1:], corpora[1:], strict=True):
        check_same("dtype", path, one.dtype.name, where[0], first.dtype.name)
        check_same("eos", path, one.eos, where[0], first.eos)
        check_same("usual eos", path, one.usual_eos, where[0], first.usual_eos)
        check_same("place of marks", path, one.marks, where[0], first.marks)
        if None not in (one.vocab_size, first.vocab_size):
            check_same("vocabulary size", path, one.vocab_size, where[0], first.vocab_size)
        if one.tokenizer_digest and first.tokenizer_digest:
            check_same("tokenizer", path, one.tokenizer_digest, where[0], first.tokenizer_digest)
    lists = [one.documents for one in corpora if one.documents is not None]
    indexes = tuple(one.index for one in corpora if one.index is not None)
    if 0 < len(lists) + len(indexes) < len(corpora) or (lists and indexes):
        known = {
            path: one.documents is not None or one.index is not None
            for path, one in zip(where, corpora, strict=True)
        }
        raise ArgumentError(
            f"{where[0]}: some corpora record where documents end and others do not, or in another way "
            f"({brief(known)}); open them one by one, and mix their batches with lowtide.mix"
        )
    documents = None
    if lists:
        parts = [part for one in lists for part in one._parts]
        sizes = [size for one in lists for size in one._sizes]
        documents = Documents(parts, sizes, whole=all(one._whole for one in lists))
    index = Chained(indexes, tuple(one.count for one in corpora)) if indexes else None
    segments = tuple(segment for one in corpora for segment in one.segments)
    formats = dict.fromkeys(one.format for one in corpora)
    size = next((one.vocab_size for one in corpora if one.vocab_size is not None), None)
    return replace(
        first,
        format=" and ".join(formats),
        segments=segments,
        documents=documents,
        index=index,
        vocab_size=size,
        metadata={**first.metadata, "corpora": tuple(where)},
    )
