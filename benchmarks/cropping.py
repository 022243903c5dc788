"""Tokens that are lost where rows are filled with documents: nanochat's best-fit cropping, and ours.

nanochat fills a row with the largest document of its buffer that fits, again and again; where none fits, it
crops the shortest one to fill the row exactly and drops the rest. Its documentation says that about 35 % of
the tokens are lost in rows of 2,048. ``order="packed"`` packs in the same way, but documents that are longer
than a row are continued in further rows.

    python -m benchmarks.cropping [CORPUS] [--length 2048] [--eos ID]

Without a corpus: lengths drawn as on web pages. Times are not measured: both do this work beside training.
"""

from __future__ import annotations

import argparse
import bisect
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import lowtide

BUFFER = 1000
"""Documents among which nanochat looks, by default."""


def lengths_like_web(documents: int, seed: int) -> npt.NDArray[np.int64]:
    """Lengths in tokens as of filtered web pages: half of them below 700, a mean above 1,200, a long tail."""
    drawn = np.random.default_rng(seed).lognormal(np.log(680), 1.05, documents)
    return np.maximum(drawn, 8).astype(np.int64)


def best_fit_cropping(lengths: npt.NDArray[np.int64], capacity: int, buffer: int = BUFFER) -> float:
    """Share of the tokens taken from the buffer that nanochat's documented behaviour drops.

    Documents are taken while others arrive, so those that wait at the end count in neither.
    """
    arriving = iter(lengths.tolist())
    waiting = sorted(length for _, length in zip(range(buffer), arriving, strict=False))
    dropped, taken, free = 0, 0, capacity
    for length in arriving:  # each replaces one that was placed
        fitting = bisect.bisect_right(waiting, free)
        chosen = waiting.pop(fitting - 1 if fitting else 0)
        taken += chosen
        dropped += max(0, chosen - free)
        free = free - min(chosen, free) or capacity
        bisect.insort(waiting, length)
    return dropped / max(1, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("corpus", nargs="?", help="a corpus with documents")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--eos", type=int, help="id that ends a document, if the corpus does not record it")
    parser.add_argument("--documents", type=int, default=100_000, help="number of drawn documents")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"eos": options.eos}
        if options.corpus is None:
            lengths = lengths_like_web(options.documents, seed=0)
            tokens = np.ones(int(lengths.sum()), np.uint16)
            tokens[np.cumsum(lengths) - 1] = 0
            tokens.tofile(Path(folder) / "train.bin")
            given = {"eos": 0, "dtype": "uint16"}
        corpus = lowtide.corpus(options.corpus or Path(folder) / "train.bin", **given)
        bounds = corpus.documents.bounds(0, corpus.documents.count)
        lengths = np.diff(bounds, axis=1)[:, 0]
        batches = corpus.batches(1, options.length, order="packed")
        print(f"{len(lengths):,} documents, {len(corpus):,} tokens, median {np.median(lengths):,.0f} tokens")
        lost = best_fit_cropping(lengths, options.length + 1)
        print(f"lost by best-fit cropping  {lost:7.2%}")
        print(f"lost by order='packed'     {batches.dropped_tokens / len(corpus):7.2%}")
        print(f"lost by order='shuffle'    {0:7.2%}")


if __name__ == "__main__":
    main()
