"""Attention within documents, forward and backward on a CPU: document by document against a mask.

Documents of 300 tokens on average, heads of 64 features. Processor time of one thread, the least of several
rounds by turns, so that other work on the machine matters little. Bars: at most half of the mask's time in
windows of 1,024 and 2,048 tokens, and 1.1 times it in windows of 256.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from benchmarks.harness import Report, run
from lowtide._gpt.attention import Documents, Split
from lowtide._tokens.documents import cu_seqlens

MEAN = 300
SHAPES = ((8, 4, 256), (4, 4, 1024), (2, 4, 2048))  # rows, heads, tokens
BARS = {256: 1.1, 1024: 0.5, 2048: 0.5}


def build(options: argparse.Namespace) -> list[Report]:
    """Processor time of attention by a mask and by documents."""
    torch.set_num_threads(1)
    report = Report(f"Attention within documents of {MEAN} tokens, forward and backward, one thread")
    for rows, heads, length in SHAPES:
        rng = np.random.default_rng(0)
        ids = (rng.random((rows, length)) < 1 / MEAN).cumsum(1).astype(np.int32)
        kinds = {"mask": Documents, "documents": Split}
        batches = {name: kind(torch.from_numpy(ids), None, cu_seqlens(ids)) for name, kind in kinds.items()}
        q, k, v = (torch.randn(rows, heads, length, 64, requires_grad=True) for _ in range(3))
        least = dict.fromkeys(batches, float("inf"))
        for _ in range(max(3, options.rounds)):
            for name, batch in batches.items():
                start = time.process_time()
                batch.attend(q, k, v, 0.0).sum().backward()  # type: ignore[no-untyped-call]
                least[name] = min(least[name], time.process_time() - start)
        ratio = least["documents"] / least["mask"]
        report.row(
            f"{rows} x {length}",
            mask_ms=round(1000 * least["mask"], 2),
            documents_ms=round(1000 * least["documents"], 2),
            ratio=round(ratio, 2),
        )
        report.claim(f"documents' time / mask's in windows of {length}", ratio, BARS[length], at_most=True)
    return [report]


if __name__ == "__main__":
    run(build)
