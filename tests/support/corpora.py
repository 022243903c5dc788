"""Corpora for tests: every token says where it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lowtide


def numbered(folder: Path, tokens: int, shards: int = 1, dtype: str = "<u4") -> lowtide.Corpus:
    """A corpus whose token at position i is i, cut into shards of unequal sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    borders = np.linspace(0, 1, shards + 1) ** 1.5 * tokens
    whole = np.arange(tokens, dtype=dtype)
    paths = []
    for nth, (start, stop) in enumerate(zip(borders.astype(int), borders.astype(int)[1:], strict=False)):
        path = folder / f"part-{nth:03}.bin"
        whole[start:stop].tofile(path)
        paths.append(path)
    return lowtide.corpus(paths, dtype=dtype)
