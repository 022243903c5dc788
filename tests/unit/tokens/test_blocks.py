"""lowtide._tokens.blocks: whole blocks are read, and windows are taken from a buffer of them."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io.buffers import Buffers
from lowtide._tokens import blocks
from tests.support.corpora import numbered


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lowtide.Corpus:
    monkeypatch.setattr(blocks, "BLOCK", 10 * 16 * 4)
    monkeypatch.setattr(blocks, "BUFFER", 4 * 10 * 16 * 4)
    return numbered(tmp_path, 10_007, shards=3)


def test_each_read_has_length_of_block(corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = corpus.batches(1, 16, order="blocks", seed=1, prefetch=0)
    reads: list[tuple[int, int]] = []
    segments: Any = corpus._segments
    submit = segments.submit_windows

    def counted(starts: Any, out: Any) -> Any:
        reads.append(out.shape)
        return submit(starts, out)

    monkeypatch.setattr(segments, "submit_windows", counted)
    x = np.concatenate([next(batches)[0] for _ in range(batches.epoch_samples)])
    assert len(np.unique(x)) == x.size
    assert {width for _, width in reads} <= {161, 10_007 // 16 % 10 * 16 + 1}
    assert sum(count for count, _ in reads) == -(-batches.epoch_samples // 10)


def test_threads_share_one_shuffle_buffer(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, 16, order="blocks", seed=1, prefetch=0)
    expected = [batches[step][0].tolist() for step in range(60)]
    results: dict[int, list[Any]] = {}

    def read(number: int) -> None:
        results[number] = [batches[step][0].tolist() for step in range(60)]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[number] == expected for number in range(3))


def test_interrupted_thread_reads_without_the_buffer(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that reads in the middle of a load neither waits for itself nor spoils the buffer."""
    batches = corpus.batches(4, 16, order="blocks", seed=1, prefetch=0)
    expected = [batches[step][0].tolist() for step in (0, 100)]
    fresh = corpus.batches(4, 16, order="blocks", seed=1, prefetch=0)
    inside: list[Any] = []
    load = blocks.Blocks._load

    def interrupted(self: blocks.Blocks, *arguments: Any) -> None:
        if not inside:
            inside.append(None)
            inside[0] = fresh[100][0].tolist()
        load(self, *arguments)

    monkeypatch.setattr(blocks.Blocks, "_load", interrupted)
    assert fresh[0][0].tolist() == expected[0]
    assert inside == [expected[1]]


def test_buffer_of_another_size_is_released_before_the_next(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last window of an epoch is shorter, so that its buffer is another one: never two at a time."""
    samples: Any = corpus.batches(1, 16, order="blocks", prefetch=0)._samples
    samples._idle = np.empty(10, samples.dtype)
    idle = weakref.ref(samples._idle)
    alive: list[bool] = []
    empty = Buffers.empty

    def recorded(self: Any, *arguments: Any) -> Any:
        alive.append(idle() is not None)
        return empty(self, *arguments)

    monkeypatch.setattr(Buffers, "empty", recorded)
    assert len(samples._spare(20)) == 20
    assert alive == [False]
