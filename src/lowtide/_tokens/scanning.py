"""Documents that no index tells of: found by one pass over the tokens, and kept beside the corpus."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lowtide._arrays.formats import inspect
from lowtide._arrays.writer import create
from lowtide._io import store
from lowtide._io.extents import Ints
from lowtide._tokens.formats.documents import Column, Documents
from lowtide.errors import FormatError, LowtideError, UnsupportedError

if TYPE_CHECKING:
    from lowtide._tokens.corpora import Corpus


def scan(corpus: Corpus) -> Documents:
    """The corpus' documents, from the index that an earlier scan left or from a new one.

    The index is a hidden ``.npy`` of document ends beside the first shard, or in the user's cache folder
    where that may not be written. Its name holds a digest of the shards' sizes and times: another corpus, or
    a changed one, is scanned again.
    """
    name = f".lowtide-documents-{_digest(corpus)}.npy"
    folders = [os.path.dirname(corpus.found.segments[0].path), _cache_folder()]
    for folder in folders:
        known = _open(os.path.join(folder, name), len(corpus))
        if known is not None:
            return known
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            store.make_folder(folder)
            with create(path, "<u8") as out:
                for ends in _ends(corpus):
                    out.append(ends.astype("<u8"))
        except OSError:
            if folder == folders[-1]:
                raise
            continue
        found = _open(path, len(corpus))
        if found is not None:
            return found
    raise LowtideError(f"{corpus.name}: the index of its documents vanished as soon as it was written")


def _open(path: str, tokens: int) -> Documents | None:
    """The documents that an earlier scan found; None if there are none, or what is there is damaged."""
    if not store.is_file(path):
        return None
    try:
        layout = inspect(path)
        if layout.dtype != np.dtype("<u8") or len(layout.shape) != 1:
            return None
        documents = Documents("scanned", [Column(layout, "the documents found by a scan")], [tokens])
        documents.at(tokens - 1)  # so the last document ends where the tokens do
    except (FormatError, UnsupportedError):
        return None
    return documents


def _ends(corpus: Corpus) -> Iterator[Ints]:
    """Blocks of document ends, the end of the corpus included."""
    last = 0
    source = corpus.found.index() if corpus.found.index is not None else _marked(corpus)
    for ends in source:
        if len(ends):
            last = int(ends[-1])
            yield ends
    if last != len(corpus):  # the last document has no mark
        yield np.array([len(corpus)], np.int64)


def _marked(corpus: Corpus) -> Iterator[Ints]:
    """By the token that ends documents, or that begins them."""
    begins = corpus.found.marks == "start"
    start = 0
    for part in corpus.stream():
        ends = np.flatnonzero(part == corpus.eos) + start + (0 if begins else 1)
        yield ends[ends > 0]
        start += len(part)


def _digest(corpus: Corpus) -> str:
    digest = hashlib.blake2b(f"{corpus.eos} {corpus.found.marks} {corpus.dtype}".encode(), digest_size=10)
    for segment in corpus.found.segments:
        changed = segment.identity.mtime_ns if segment.identity else 0
        digest.update(f"{segment.path}\0{segment.offset} {segment.count} {changed}\n".encode())
    return digest.hexdigest()


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "lowtide")
