"""Checking a corpus that lowtide prepared against the sums in its ``corpus.json``."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from lowtide._io import store
from lowtide._printable import listed
from lowtide._tokens.formats import find, own
from lowtide.errors import FormatError


@dataclass(frozen=True)
class Verified:
    """The files and bytes that were checked, all unchanged."""

    files: int
    nbytes: int


def verify(path: str | os.PathLike[str]) -> Verified:
    """Read every file of a corpus and compare its sum; document ends are checked one by one.

    >>> _ = (tmp / "sea.txt").write_text("low tide")
    >>> _ = lowtide.prepare(tmp / "sea.txt", tmp / "corpus", val_fraction=0)
    >>> verify(tmp / "corpus").files  # tokens, document ends, tokenizer
    3
    """
    where = store.absolute(path)
    if store.is_folder(where):
        where = os.path.join(where, own.NAME)
    manifest = own.read(where)
    folder = os.path.dirname(where)
    wrong, count, nbytes = [], 0, 0
    for name, expected in manifest.files:
        if expected is None:
            continue
        with store.opened(os.path.join(folder, name)) as file:
            digest = hashlib.file_digest(file.stream(), "sha256").hexdigest()
            count, nbytes = count + 1, nbytes + file.size
        if digest != expected:
            wrong.append(f"{name} (sha256 {digest[:12]}…, written {expected[:12]}…)")
    if wrong:
        raise FormatError(
            f"{where}: {len(wrong)} of {count} files are not as they were written: {listed(wrong)}; copy "
            "them again, or prepare the corpus again"
        )
    for split in manifest.splits:
        documents = find(where, split=split).documents
        if documents is not None:
            documents.verify()
    return Verified(count, nbytes)
