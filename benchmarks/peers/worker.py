"""One peer in its own process: ``python -m benchmarks.peers.worker NAME FOLDER``.

It tells its version once its imports are done, or why it cannot; then it answers each line of JSON on its
standard input with one line. The peer is opened at the first request, so that whoever asks can empty
the page cache between the imports and the first read. RANK and WORLD_SIZE are read from the environment, as
under ``torchrun``.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders import LENGTH
from benchmarks.peers import rows, tokens
from benchmarks.peers.work import COLUMNS, ROWS, USEFUL, Peer, Place, Stream, Work
from lowtide._memory import proc

PEERS: dict[str, Peer] = {peer.name: peer for peer in (*tokens.PEERS, *rows.PEERS)}
RAM: dict[Work, Peer] = {"tokens": tokens.RAM, "rows": rows.RAM}
"""The same work on an array in memory."""
_POINTS = 64
"""Of a curve of memory."""


def samples(work: Work, batch: Any) -> Any:
    """The rows of a batch, after a look at whether it is one."""
    if work == "rows":
        fits = isinstance(batch, np.ndarray) and batch.shape == (ROWS, COLUMNS) and batch.dtype == np.float32
        if not fits or len(np.unique(batch[:, 0])) != ROWS:
            raise SystemExit("not 4,096 different rows of float32")
        return batch
    x, y = batch
    # MosaicML counts in 64 bits and others in the dtype of the file: here all have been widened.
    fits = x.shape == y.shape and x.shape[1] == LENGTH and str(x.dtype) == str(y.dtype) == "torch.int64"
    if not fits or not x.is_contiguous() or bool((x[:, 1:] != y[:, :-1]).any()):
        raise SystemExit(f"not a pair of windows of int64: {x.shape}, {y.shape}, {x.dtype}")
    return x.numpy()


def digests(work: Work, batch: Any) -> list[str]:
    """What tells each row of a batch from any other."""
    return [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in samples(work, batch)]


class Worker:
    """A peer, opened when it is first asked for something."""

    def __init__(self, peer: Peer, folder: str) -> None:
        self._peer = peer
        self._folder = folder
        self._stream: Stream | None = None
        gc.collect()  # what the imports left to collect is theirs
        proc.reset_peak()
        self._start = proc.status().rss
        self._peak = 0

    def _open(self, **place: Any) -> Stream:
        if self._stream is None:
            rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
            self._stream = self._peer.open(Place(self._folder, rank, ranks, **place))
        return self._stream

    def run(self, batches: int = sys.maxsize, seconds: float = float("inf")) -> dict[str, Any]:
        """Batches until there are so many or so much time is over; at least one.

        The time is that of the last batch which came in time: who reads far ahead gives many batches at once,
        and the one that comes late is the first of those that were still being read.
        """
        pending = time.perf_counter()
        stream = self._open()
        done, counted, taken, last, first, curve = 0, 0, 0.0, None, 0.0, []
        every = max(1, batches // _POINTS) if batches < sys.maxsize else sys.maxsize
        while done < batches and (not done or time.perf_counter() - pending < seconds):
            last = next(stream.batches)
            elapsed = time.perf_counter() - pending
            first = first or elapsed
            done += 1
            if done == 1 or elapsed <= seconds:
                counted, taken = done, elapsed
            if done % every == 0:
                curve.append((done * USEFUL[self._peer.work], self._peak_of_part()))
        self._peak_of_part()
        samples(self._peer.work, last)
        return {
            "nbytes": counted * USEFUL[self._peer.work],
            "seconds": taken,
            "first": first,
            "peak": self._peak,
            "curve": curve,
        }

    def _peak_of_part(self) -> int:
        """The highest memory since the last call: what a chunk took and gave back is in it."""
        peak = proc.status().peak - self._start
        proc.reset_peak()
        self._peak = max(self._peak, peak)
        return peak

    def in_order(self) -> dict[str, Any]:
        """One pass over all rows, and its time."""
        assert self._peer.in_order is not None
        pending, nbytes = time.perf_counter(), 0
        for taken in self._peer.in_order(self._folder):
            nbytes += taken.nbytes
        return {"nbytes": nbytes, "seconds": time.perf_counter() - pending}

    def digests(self, batches: int, skip: int = 0, save: str = "", load: str = "") -> dict[str, Any]:
        """What the rows of so many batches are; ``save`` and ``load`` name the file of a state."""
        state = pickle.loads(Path(load).read_bytes()) if load else None
        stream = self._open(resumable=bool(save or load), state=state)
        for _ in range(skip):
            next(stream.batches)
        if save:
            Path(save).write_bytes(pickle.dumps(stream.state()))
        return {"digests": [digests(self._peer.work, next(stream.batches)) for _ in range(batches)]}

    def convert(self) -> dict[str, Any]:
        """Let the peer's own writer make of the file what it reads."""
        assert self._peer.convert is not None
        pending = time.perf_counter()
        self._peer.convert(self._folder)
        return {"seconds": time.perf_counter() - pending}


def _load(peer: Peer) -> dict[str, Any]:
    """Import a peer; its version, or why it is not there."""
    try:
        if peer.work == "tokens":
            import torch

            torch.set_num_threads(1)
        peer.load()
        return {"version": importlib.metadata.version(peer.package)}
    except ImportError as error:
        return {"missing": f"not installed: {error}"}
    except Exception as error:
        return {"missing": f"does not import: {type(error).__name__}: {error}"}


def main(name: str, folder: str) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print their progress
    peer = {**PEERS, **{ram.name: ram for ram in RAM.values()}}[name]
    result = _load(peer)
    print(json.dumps(result), file=answers, flush=True)
    if "missing" in result:
        return
    worker = Worker(peer, folder)
    for line in sys.stdin:
        expected = json.loads(line)
        print(json.dumps(getattr(worker, expected.pop("do"))(**expected)), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
