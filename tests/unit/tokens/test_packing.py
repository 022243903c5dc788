"""lowtide._tokens.packing: full rows of whole documents, with what is dropped stated exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._tokens import packing
from lowtide._tokens.packing import pack
from lowtide.errors import ArgumentError


@given(lengths=st.lists(st.integers(0, 40), max_size=60), capacity=st.integers(1, 25))
def test_rows_are_full_and_tokens_are_used_once_or_counted_as_dropped(
    lengths: list[int], capacity: int
) -> None:
    ends = np.cumsum([0, *lengths])
    rows, dropped = pack(np.stack((ends[:-1], ends[1:]), axis=1), capacity)
    used = [token for row in rows for start, length in row for token in range(start, start + length)]
    assert len(used) == len(set(used))
    assert len(used) + dropped == sum(lengths)
    assert all(sum(length for _, length in row) == capacity for row in rows)


@pytest.mark.parametrize(
    ("low", "high", "capacity", "kept_whole", "lost"),
    [pytest.param(5, 200, 1025, 0.9, 0.01, id="short"), pytest.param(10, 91, 101, 0.55, 0.03, id="long")],
)
def test_most_documents_stay_whole_and_few_tokens_are_dropped(
    low: int, high: int, capacity: int, kept_whole: float, lost: float
) -> None:
    lengths = np.random.default_rng(0).integers(low, high, 1024)
    ends = np.cumsum([0, *lengths])
    rows, dropped = pack(np.stack((ends[:-1], ends[1:]), axis=1), capacity)
    whole = dict(zip(ends[:-1].tolist(), lengths.tolist(), strict=True))
    kept = sum(whole.get(start) == length for row in rows for start, length in row)
    assert kept > kept_whole * len(lengths)
    assert dropped < lost * lengths.sum()


def test_every_piece_starts_at_document_start() -> None:
    lengths = np.random.default_rng(0).integers(1, 101, 1000)
    ends = np.cumsum([0, *lengths])
    rows, _ = pack(np.stack((ends[:-1], ends[1:]), axis=1), 101)
    assert {start for row in rows for start, _ in row} <= set(ends.tolist())


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lowtide.Corpus:
    monkeypatch.setattr(packing, "_GROUP", 32)
    random = np.random.default_rng(1)
    tokens = [[*[i] * int(random.integers(1, 60)), 0] for i in range(1, 501)]
    np.array([token for document in tokens for token in document], "<u2").tofile(tmp_path / "t.bin")
    return lowtide.corpus(tmp_path / "t.bin", dtype="<u2", eos=0)


def test_packed_epoch_uses_each_token_at_most_once(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(1, 63, order="packed", seed=4, prefetch=0)
    rows = batches.epoch_samples
    assert rows * 64 + batches.dropped_tokens == len(corpus)
    for epoch in range(2):
        windows = batches.read_samples(np.arange(epoch * rows, (epoch + 1) * rows))
        counts = np.bincount(windows.ravel(), minlength=501)
        whole = np.bincount(corpus[:], minlength=501)
        assert (counts <= whole).all()
        assert counts.sum() == rows * 64
    assert (batches[3][0] != batches[3 + rows][0]).any()


def test_ids_of_packed_rows_separate_documents(corpus: lowtide.Corpus) -> None:
    x, y, ids = corpus.batches(8, 63, order="packed", seed=4).with_documents()[2]
    assert (x[:, 1:] == y[:, :-1]).all()
    for row, row_ids in zip(x, ids, strict=True):
        for document in range(row_ids.max() + 1):
            tokens = set(row[row_ids == document].tolist()) - {0}
            assert len(tokens) == 1


def test_when_lists_steps_of_packed_token(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, 63, order="packed", seed=4, prefetch=0)
    for token in (0, 777, 5000):
        mark = int(corpus[token]) or int(corpus[token - 1])
        for step in batches.when(token):
            assert mark in batches.read(step)


def test_documents_shorter_than_one_row_raise(tmp_path: Path) -> None:
    np.array([1, 0, 2, 0], "<u2").tofile(tmp_path / "t.bin")
    with pytest.raises(ArgumentError, match="do not fill one row of 65 tokens"):
        lowtide.corpus(tmp_path / "t.bin", dtype="<u2", eos=0).batches(1, 64, order="packed")
