"""What is asked of lowtide's batches alone, each in its own process: waits, memory, the first batch.

``python -m benchmarks.probes NAME JSON`` prints its answer as JSON. PyTorch and lowtide are imported before
anything is measured.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import lowtide
import lowtide.nanogpt
from benchmarks.loaders import BATCH, LENGTH
from lowtide._io import pagecache
from lowtide._memory import proc
from lowtide.memory import peak, reset_peak

IN_FLIGHT = BATCH * (2 * (LENGTH + 1) + 2 * 8 * LENGTH)
"""Bytes of one batch: the tokens as read, and two tensors."""


def _peak() -> int:
    result = peak()
    assert result is not None, "only Linux keeps a peak"
    return result


def _multiply() -> Callable[[], object]:
    a, b = torch.rand(256, 256), torch.rand(256, 256)
    return lambda: a @ b


def _count() -> Callable[[], object]:
    return lambda: sum(range(5_000))


def waits(folder: str, compute: str, milliseconds: float, batches: int) -> dict[str, float]:
    """How long a consumer waits for each batch that works ``milliseconds`` between two of them.

    ``compute``: ``torch`` multiplies matrices in one thread, and so leaves the interpreter lock to others;
    ``cores`` does so on every core; ``python`` holds that lock all the time; ``sleep`` leaves the processor
    as well.
    """
    if compute == "cores":
        torch.set_num_threads(os.cpu_count() or 1)
    work = _multiply() if compute in ("torch", "cores") else _count()
    taken = []
    pairs = lowtide.corpus(os.path.join(folder, "train.bin")).batches(BATCH, LENGTH).torch()
    for _ in range(batches):
        pending = time.perf_counter()
        next(pairs)
        taken.append(time.perf_counter() - pending)
        until = time.perf_counter() + milliseconds / 1000
        if compute == "sleep":
            time.sleep(milliseconds / 1000)
        while time.perf_counter() < until:
            work()
    pairs.close()
    taken = taken[batches // 10 :]  # the thread's own start
    ordered = sorted(taken)
    return {"median": statistics.median(taken), "p99": ordered[len(ordered) * 99 // 100]}


def growth(folder: str, cache: Any, order: Any, batches: int) -> dict[str, Any]:
    """Memory of the process, and page cache left behind, by so many batches."""
    corpus = lowtide.corpus(os.path.join(folder, "train.bin"), cache=cache)
    pairs = corpus.batches(BATCH, LENGTH, order=order).torch()
    reset_peak()
    before = proc.status().rss
    pending = time.perf_counter()
    for _ in range(batches):
        next(pairs)
    seconds = time.perf_counter() - pending
    message = {"rss": proc.status().rss - before, "peak": _peak() - before, "speed": batches / seconds}
    pairs.close()
    left = pagecache.resident(os.path.join(folder, "train.bin"))
    return {**message, "cached": left[0] if left else None}


def first(path: str, dtype: str | None) -> dict[str, float]:
    """Seconds until the first batch of a corpus, opening included; descriptors and memory it took."""
    reset_peak()
    before, files = proc.status().rss, len(os.listdir("/proc/self/fd"))
    pending, worked = time.perf_counter(), time.process_time()
    corpus = lowtide.corpus(path, dtype=dtype)
    pairs = corpus.batches(BATCH, LENGTH).torch()
    x, _ = next(pairs)
    seconds, worked = time.perf_counter() - pending, time.process_time() - worked
    message = {
        "seconds": seconds,
        "cpu": worked,
        "files": len(os.listdir("/proc/self/fd")) - files,
        "peak": _peak() - before,
    }
    assert x.shape == (BATCH, LENGTH)
    return {**message, "tokens": len(corpus)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.collect()  # what the imports left to collect is theirs: 0.1 s, whenever it happens to fall due
    probes: dict[str, Callable[..., object]] = {"waits": waits, "growth": growth, "first": first}
    print(json.dumps(probes[sys.argv[1]](**json.loads(sys.argv[2]))))
