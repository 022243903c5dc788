"""Batch size and length by step: the same global batches, and every token once, whatever reads them."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._tokens.schedules import Schedule
from lowtide._tokens.stretches import Stretch
from lowtide.errors import ArgumentError, StateError
from tests.support.corpora import numbered
from tests.support.examples import examples

LENGTHS = [1, 2, 3, 4, 6, 8, 12]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[int, lowtide.Corpus]:
    folder = tmp_path_factory.mktemp("corpora")
    return {size: numbered(folder / str(size), size, shards=3) for size in (97, 240, 1009)}


def by_step(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | dict[int, int]]:
    """One value, or a value for each of some steps."""
    later = st.dictionaries(st.integers(1, 40), values, max_size=4)
    return values | st.builds(lambda first, rest: {0: first, **rest}, values, later)


SIZES = by_step(st.integers(3, 9))
ANY_LENGTHS = by_step(st.sampled_from(LENGTHS))


@examples(2)
@given(sizes=SIZES, lengths=ANY_LENGTHS, tokens=st.sampled_from([97, 240, 1009]), seed=st.integers(0, 9))
def test_every_token_occurs_once_per_epoch(
    corpora: dict[int, lowtide.Corpus], sizes: Any, lengths: Any, tokens: int, seed: int
) -> None:
    """Windows are walked in order; an epoch ends when its blocks do, and what it lacks is stated."""
    corpus = corpora[tokens]
    batches = corpus.batches(sizes, lengths, seed=seed, prefetch=0)
    block = np.lcm.reduce(list(lengths.values()) if isinstance(lengths, dict) else [lengths])
    seen: Counter[int] = Counter()
    for step in range(batches.epoch_steps):
        x, y = batches[step]
        assert (y == (x + 1) % tokens).all()
        seen.update(x.ravel().tolist())
    assert max(seen.values(), default=1) == 1
    changes = len(batches._schedule.stretches)
    # Less than a block at the end and at each change, and less than a batch that the next epoch shares.
    assert tokens - len(seen) < block * (changes + 1) + max(x.size for x, _ in [batches[batches.epoch_steps]])
    assert batches.dropped_tokens < block * (changes + 1)


@examples(2)
@given(sizes=SIZES, lengths=ANY_LENGTHS, tokens=st.sampled_from([97, 240]), seed=st.integers(0, 9))
def test_windows_of_every_epoch_do_not_overlap(
    corpora: dict[int, lowtide.Corpus], sizes: Any, lengths: Any, tokens: int, seed: int
) -> None:
    """Of each epoch all windows of all lengths, by their numbers; nothing is lost but parts of blocks."""
    batches = corpora[tokens].batches(sizes, lengths, seed=seed, prefetch=0)
    if len(batches._stretches) == 1:
        return
    block = int(np.lcm.reduce(list(batches._schedule.lengths.values())))
    for epoch in range(4):
        seen: list[int] = []
        lost = tokens % block
        for samples, _ in batches._stretches:
            assert isinstance(samples, Stretch)
            count = samples.in_epoch(epoch)
            if count:
                part = samples._span.part(epoch)
                lost += part.blocks * block - count * samples.length
                starts = samples.starts_at(part.first + np.arange(count))
                windows = (starts[:, None] + np.arange(samples.length)) % tokens
                seen += windows.ravel().tolist()
        assert len(set(seen)) == len(seen)
        assert len(seen) + lost == tokens
        assert lost < block * (len(batches._stretches) + 1)


@examples(2)
@given(
    sizes=SIZES,
    lengths=ANY_LENGTHS,
    ranks=st.integers(1, 3),
    order=st.sampled_from(["shuffle", "sequential", "random"]),
    data=st.data(),
)
def test_ranks_restarts_and_prefetch_do_not_change_batches(
    corpora: dict[int, lowtide.Corpus], sizes: Any, lengths: Any, ranks: int, order: str, data: st.DataObject
) -> None:
    corpus = corpora[240]
    options: dict[str, Any] = {"order": order, "seed": 5}
    alone = corpus.batches(sizes, lengths, prefetch=0, **options)
    steps = 50
    expected = [alone[step][0].copy() for step in range(steps)]
    # Some ranks up to a step, other ranks from there on, through JSON and pickle, prefetched or not.
    stop = data.draw(st.integers(0, steps))
    parts = [
        corpus.batches(sizes, lengths, rank=rank, world_size=ranks, prefetch=2, **options)
        for rank in range(ranks)
    ]
    for step in range(stop):
        joined = np.concatenate([next(part)[0] for part in parts])
        assert np.array_equal(joined, expected[step])
    state = json.loads(json.dumps(parts[0].state_dict()))
    count = data.draw(st.integers(1, 3))
    resumed = []
    for rank in range(count):
        one = corpus.batches(sizes, lengths, rank=rank, world_size=count, prefetch=0, **options)
        one.load_state_dict(state)
        resumed.append(pickle.loads(pickle.dumps(one)))
    for step in range(stop, steps):
        shapes = {one.shape[1] for one in resumed}
        joined = np.concatenate([next(one)[0] for one in resumed])
        assert np.array_equal(joined, expected[step])
        assert shapes == {joined.shape[1]}
    for part in parts:
        part.close()


@examples(1)
@given(
    sizes=SIZES,
    lengths=ANY_LENGTHS,
    order=st.sampled_from(["shuffle", "sequential"]),
    token=st.integers(0, 239),
    seed=st.integers(0, 99),
)
def test_when_lists_exactly_the_steps_with_token(
    corpora: dict[int, lowtide.Corpus], sizes: Any, lengths: Any, order: str, token: int, seed: int
) -> None:
    batches = corpora[240].batches(sizes, lengths, order=order, seed=seed, prefetch=0)
    last = batches.epoch_steps
    listed = set(batches.when(token, 0)) | set(batches.when(token, 1))
    inside = {step for step in range(last) if token in batches.read(step)}
    assert {step for step in listed if step < last} == inside
    for epoch in range(3):
        for step in batches.when(token, epoch):
            assert token in batches.read(step)


def test_batch_size_changes_at_scheduled_step(tmp_path: Path) -> None:
    batches = numbered(tmp_path, 1000).batches({0: 2, 3: 5}, 4, order="sequential")
    shapes = [next(batches)[0].shape for _ in range(5)]
    assert shapes == [(2, 4)] * 3 + [(5, 4)] * 2
    assert batches[3][0][0, 0] == 6 * 4  # behind the windows of the first three steps
    assert (batches.batch_size, batches.length, batches.epoch_steps) == (5, 4, 3 + (249 - 6) // 5)


def test_windows_of_each_length_cover_whole_corpus(tmp_path: Path) -> None:
    """A short length at first does not mean the first part of the corpus."""
    batches = numbered(tmp_path, 100_000).batches(4, {0: 16, 200: 64}, seed=3)
    starts = np.concatenate([batches[step][0][:, 0] for step in range(200)])
    assert starts.min() < 10_000
    assert starts.max() > 90_000
    neighbours = np.abs(np.diff(starts.astype(np.int64))) < 64
    assert neighbours.mean() < 0.05


def test_documents_occur_once_for_any_length(tmp_path: Path) -> None:
    (np.arange(1000) % 10).astype("<u2").tofile(tmp_path / "train.bin")
    corpus = lowtide.corpus(tmp_path, eos=9)
    batches = corpus.batches({0: 3, 5: 5}, {0: 4, 10: 8}, order="documents")
    assert batches.epoch_steps == 5 + 5 + (100 - 15 - 25) // 5
    starts = batches._steps.ranges[0].samples.starts(0, 15)  # type: ignore[attr-defined]
    later = batches._steps.ranges[2].samples.starts(40, 100)  # type: ignore[attr-defined]
    between = batches._steps.ranges[1].samples.starts(15, 40)  # type: ignore[attr-defined]
    assert sorted([*starts, *between, *later]) == list(range(0, 1000, 10))


@pytest.mark.parametrize(
    ("sizes", "lengths", "options", "problem"),
    [
        ({1: 4}, 8, {}, "batch_size by step must start at step 0, got steps \\[1\\]"),
        ({}, 8, {}, "batch_size by step must start at step 0"),
        ({0: 4, 2: 0}, 8, {}, "batch_size must be an integer >= 1, got 0"),
        ({0: 4, 1.5: 8}, 8, {}, "a step of batch_size must be an integer, got 1.5"),
        (4, {0: 8, -1: 4}, {}, "a step of length must be an integer >= 0"),
        ({0: 4, 9: 1}, 8, {"rank": 0, "world_size": 2}, "got 1 for 2 ranks"),
        (4, {0: 8, 9: 16}, {"order": "packed"}, "order 'packed' has one length for all steps"),
        (4, {0: 8, 9: 16}, {"order": "blocks"}, "order 'blocks' has one length for all steps"),
        (4, {0: 97, 9: 101}, {}, "common multiple of at most 64 times the longest"),
        (4, {0: 8, 9: 600}, {}, "too few for one block of 600"),
    ],
)
def test_invalid_schedule_raises(
    tmp_path: Path, sizes: Any, lengths: Any, options: dict[str, Any], problem: str
) -> None:
    (np.arange(500) % 10).astype("<u2").tofile(tmp_path / "train.bin")
    with pytest.raises(ArgumentError, match=problem):
        lowtide.corpus(tmp_path, eos=9).batches(sizes, lengths, **options)


def test_state_loads_only_if_past_schedule_is_same(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 1000)
    state = {**corpus.batches(4, 8).state_dict(), "step": 10}
    for sizes in ({0: 4, 10: 8}, {0: 4, 11: 2}, {0: 4, 500: 8}):
        batches = corpus.batches(sizes, 8)
        batches.load_state_dict(state)
        assert batches.step == 10
        batches.load_state_dict(json.loads(json.dumps(batches.state_dict())))
    for sizes in ({0: 4, 9: 8}, {0: 8, 10: 4}):
        with pytest.raises(StateError, match="batch_size was 4 and is"):
            corpus.batches(sizes, 8).load_state_dict(state)
    changed = {**corpus.batches({0: 4, 10: 8}, 8).state_dict(), "step": 20}
    with pytest.raises(StateError, match=r"pass batch_size=\{0: 4, 10: 8, 20: 4\}"):
        corpus.batches(4, 8).load_state_dict(changed)
    lengths = {**corpus.batches(4, {0: 8, 10: 16}).state_dict(), "step": 5}
    with pytest.raises(StateError, match="length was"):
        corpus.batches(4, 8).load_state_dict(lengths)


def test_single_windows_raise_if_length_changes(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 1000)
    with pytest.raises(ArgumentError, match="pass one length"):
        corpus.batches(4, {0: 8, 10: 16}).read_samples(np.array([0]))
    with pytest.raises(ArgumentError, match="pass one length"):
        corpus.batches(4, {0: 8, 10: 16}, order="random").when(5)
    assert corpus.batches({0: 4, 10: 8}, 8).read_samples(np.array([0])).shape == (1, 9)


@examples(1)
@given(sizes=SIZES, lengths=ANY_LENGTHS, change=st.integers(1, 30), seed=st.integers(0, 9))
def test_mixture_keeps_shares_and_token_counts_under_schedule(
    corpora: dict[int, lowtide.Corpus], sizes: Any, lengths: Any, change: int, seed: int
) -> None:
    parts = {"a": corpora[240], "b": corpora[1009]}
    weights = {0: {"a": 1, "b": 3}, change: {"a": 1, "b": 1}}
    batches = lowtide.mix(parts, weights).batches(sizes, lengths, seed=seed)
    schedule = Schedule(sizes, lengths)
    seen: dict[str, Counter[int]] = {"a": Counter(), "b": Counter()}
    due = {"a": 0.0, "b": 0.0}
    got: Counter[str] = Counter()
    ranked = [
        lowtide.mix(parts, weights).batches(sizes, lengths, seed=seed, rank=rank, world_size=2)
        for rank in range(2)
    ]
    for step in range(40):
        x = batches[step][0]
        assert np.array_equal(x, np.concatenate([one[step][0] for one in ranked]))
        size = schedule.at(step).batch_size
        assert x.shape == (size, schedule.at(step).length)
        shares = batches.shares(step)
        assert sum(shares.values()) == size
        got.update(shares)
        share = 0.25 if step < change else 0.5
        due["a"] += share * size
        due["b"] += (1 - share) * size
        assert all(abs(got[name] - due[name]) < 2 for name in due)
        which = batches._stretches[schedule.at(step).stretch][0]
        first = schedule.at(step).sample(step)
        numbers = which.assign(first, first + size)[0]  # type: ignore[attr-defined]
        for nth, name in enumerate("ab"):
            seen[name].update(x[numbers == nth].ravel().tolist())
    block = int(np.lcm.reduce(list(schedule.lengths.values())))
    for name, corpus in parts.items():
        used = sum(seen[name].values()) + block * len(schedule.stretches)
        assert max(seen[name].values(), default=0) <= used // (len(corpus) // block * block) + 1
