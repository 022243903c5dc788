"""lowtide._tokens.documents: which tokens of a row belong together."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._tokens.batches import Batches
from lowtide._tokens.documents import cu_seqlens, ids_from_index, ids_from_marks
from lowtide._tokens.formats.documents import Documents, Listed
from lowtide.errors import ArgumentError


def slow_ids(row: list[int], mark: int, marks: str) -> list[int]:
    ids, now = [], 0
    for place, token in enumerate(row):
        if marks == "start" and token == mark and place:
            now += 1
        ids.append(now)
        if marks == "end" and token == mark:
            now += 1
    return ids


@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=12, max_size=12), min_size=1, max_size=4))
@pytest.mark.parametrize("marks", ["end", "start"])
def test_ids_from_marks_match_reference(rows: list[list[int]], marks: Any) -> None:
    ids = ids_from_marks(np.array(rows, "u2"), 0, marks)
    assert ids.tolist() == [slow_ids(row, 0, marks) for row in rows]


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30), data=st.data())
def test_ids_from_index_match_ids_from_marks(lengths: list[int], data: st.DataObject) -> None:
    """Rows that pass the end continue at the start, as windows do."""
    whole = np.array([token for length in lengths for token in [*[1] * length, 0]], "u2")
    ends = np.cumsum(np.array(lengths) + 1)
    documents = Documents([Listed("a test", ends)], [len(whole)])
    length = data.draw(st.integers(1, len(whole)))
    starts = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=5)))
    ring = np.concatenate((whole, whole))
    rows = np.stack([ring[start : start + length] for start in starts])
    assert ids_from_index(documents, starts, length).tolist() == ids_from_marks(rows, 0, "end").tolist()


@given(st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=1, max_size=4))
def test_cu_seqlens_are_document_borders(steps: list[list[int]]) -> None:
    ids = np.cumsum(np.array(steps), axis=1).astype(np.int32)
    borders = cu_seqlens(ids)
    assert borders[0] == 0
    assert borders[-1] == ids.size
    for start, stop in pairwise(borders.tolist()):
        assert start // 6 == (stop - 1) // 6, "within one row"
        assert len(set(ids.ravel()[start:stop].tolist())) == 1


def test_batches_with_documents_have_ids_or_cu_seqlens(tmp_path: Path) -> None:
    np.array([1, 1, 0, 2, 2, 2, 0] * 40, "<u2").tofile(tmp_path / "t.bin")
    corpus = lowtide.corpus(tmp_path / "t.bin", dtype="<u2", eos=0)
    with corpus.batches(4, 16, seed=1).with_documents() as batches:
        for step in range(5):
            x, y, ids = next(batches)
            assert ids.tolist() == [slow_ids(row, 0, "end") for row in x.tolist()]
            assert (batches[step][0] == x).all()
            assert (batches[step][1] == y).all()
    x, _, borders = corpus.batches(4, 16, seed=1).with_documents("cu_seqlens")[3]
    assert borders.tolist() == cu_seqlens(ids_from_marks(x, 0, "end")).tolist()
    with pytest.raises(ArgumentError, match="kind must be 'ids' or 'cu_seqlens', got 'mask'"):
        corpus.batches(4, 16).with_documents("mask")  # type: ignore[arg-type]


def test_pickled_batch_keeps_its_attributes(tmp_path: Path) -> None:
    np.array([1, 1, 0, 2, 2, 2, 0] * 40, "<u2").tofile(tmp_path / "t.bin")
    corpus = lowtide.corpus(tmp_path / "t.bin", dtype="<u2", eos=0)
    batch = corpus.batches(2, 16, order="sequential").with_documents("cu_seqlens")[0]
    again = pickle.loads(pickle.dumps(batch))
    assert again.position_ids.tolist() == batch.position_ids.tolist()
    assert batch.position_ids[0, :9].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1]
    assert again.max_seqlen == batch.max_seqlen == 4
    assert [part.tolist() for part in again] == [part.tolist() for part in batch]


def test_mixture_uses_eos_of_each_corpus_for_ids(tmp_path: Path) -> None:
    corpora = {}
    for name, eos in (("a", 0), ("b", 9)):
        np.array([1, 1, eos, 2, 2, eos] * 40, "<u2").tofile(tmp_path / f"{name}.bin")
        corpora[name] = lowtide.corpus(tmp_path / f"{name}.bin", dtype="<u2", eos=eos)
    x, _, ids = lowtide.mix(corpora, {"a": 1, "b": 1}).batches(6, 16).with_documents()[2]
    for row, row_ids in zip(x.tolist(), ids.tolist(), strict=True):
        assert row_ids == slow_ids(row, 9 if 9 in row else 0, "end")


def test_ids_match_batch_if_another_thread_reads_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.random.default_rng(0).integers(0, 9, 5000).astype("<u2")
    tokens.tofile(tmp_path / "train.bin")
    corpus = lowtide.corpus(tmp_path, eos=0)
    batches = corpus.batches(2, 16, order="packed", prefetch=0)

    def step_of_another_thread_too(asked: Batches) -> int:
        before = asked._ahead.position
        asked._ahead.next()
        return before

    expected = corpus.batches(2, 16, order="packed", prefetch=0).with_documents()
    given = {expected[step][0].tobytes(): expected[step][2].tolist() for step in range(4)}
    monkeypatch.setattr(Batches, "step", property(step_of_another_thread_too))
    x, _, ids = next(batches.with_documents())
    assert ids.tolist() == given[x.tobytes()]


@pytest.mark.parametrize("order", ["shuffle", "sequential", "documents", "packed"])
def test_borders_and_loss_mask_follow_the_documents(tmp_path: Path, order: Any) -> None:
    """Tokens are the numbers of their documents; where packing truncates one, its end is a border too."""
    lengths = np.random.default_rng(0).integers(1, 12, 300)
    tokens = np.repeat(np.arange(1, 301), lengths)
    tokens[np.cumsum(lengths) - 1] = 0
    tokens.astype(np.uint16).tofile(tmp_path / "train.bin")
    batches = lowtide.corpus(tmp_path, eos=0).batches(4, 16, seed=1, order=order).with_documents()
    for step in range(12):
        batch = batches[step]
        x, y, ids = batch
        other = x == 0
        if order == "packed":
            other = other | ((x != y) & (y != 0) & (x != 0))
        first = np.ones(x.shape, bool)
        first[:, 1:] = other[:, :-1]
        assert batch.borders.tolist() == [*np.flatnonzero(first).tolist(), x.size]
        assert (batch.loss_mask == ~other).all()
        assert (ids[:, 1:] - ids[:, :-1] == other[:, :-1]).all()
        assert ((batch.position_ids == 0) == first).all()
        assert batch.max_seqlen == np.diff(batch.borders).max()
