"""lowtide._tokens.batches: batches[step] is a pure function of seed, step and corpus."""

from __future__ import annotations

import ast
import gc
import json
import os
import pickle
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import ArgumentError, ClosedError, StateError
from tests.support.corpora import numbered
from tests.support.examples import examples

ORDERS = ["shuffle", "random", "blocks", "sequential"]
any_order = pytest.mark.parametrize("order", ORDERS)


@pytest.fixture(scope="module", params=[1, 7], ids=["one shard", "seven shards"])
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> lowtide.Corpus:
    return numbered(tmp_path_factory.mktemp("corpus"), 10_007, shards=request.param)


@any_order
def test_x_and_y_share_buffer_and_y_is_shifted_by_one(corpus: lowtide.Corpus, order: str) -> None:
    x, y = corpus.batches(6, 32, order=order, seed=3)[5]
    assert x.shape == y.shape == (6, 32)
    assert x.dtype == corpus.dtype
    assert (x[:, 1:] == y[:, :-1]).all()
    assert (y == (x + 1) % len(corpus)).all()
    assert np.shares_memory(x, y)


@pytest.mark.parametrize("order", ["shuffle", "blocks"])
@pytest.mark.parametrize(("tokens", "length"), [(3007, 32), (1024, 32), (33, 32), (500, 7)])
def test_every_token_occurs_once_per_epoch(tmp_path: Path, order: str, tokens: int, length: int) -> None:
    """All but the fewer than `length` that are left over, in each of several epochs."""
    batches = numbered(tmp_path, tokens, shards=3).batches(1, length, order=order, seed=1, prefetch=0)
    windows = tokens // length
    assert batches.epoch_samples == windows
    phases = set()
    for epoch in range(4):
        x = np.concatenate([batches[epoch * windows + i][0] for i in range(windows)])
        assert len(np.unique(x)) == x.size == windows * length
        phases.add(int(x[0, 0]) % length)
    assert len(phases) > 1


@any_order
def test_iteration_matches_indexing(corpus: lowtide.Corpus, order: str) -> None:
    with corpus.batches(4, 16, order=order, seed=9, start=3) as batches:
        for step in range(3, 40):
            assert batches.step == step
            x, y = next(batches)
            assert (x == batches[step][0]).all()
            assert (y == batches[step][1]).all()


@any_order
@given(
    batch_size=st.integers(4, 13),
    stops=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4),
)
@examples(0.3)
def test_global_batch_does_not_depend_on_number_of_ranks(
    corpus: lowtide.Corpus, order: str, batch_size: int, stops: list[tuple[int, int]]
) -> None:
    """Train on some ranks, stop, resume on another number, and compare every batch with one rank's."""
    alone = corpus.batches(batch_size, 16, order=order, seed=4, prefetch=0)
    state = alone.state_dict()
    step = 0
    for world_size, steps in stops:
        ranks = [
            corpus.batches(
                batch_size, 16, order=order, seed=4, rank=rank, world_size=world_size, prefetch=rank
            )
            for rank in range(world_size)
        ]
        for rank in ranks:
            rank.load_state_dict(pickle.loads(pickle.dumps(state)))
        for _ in range(steps):
            together = np.concatenate([next(rank)[0] for rank in ranks])
            assert (together == alone[step][0]).all()
            step += 1
        state = ranks[-1].state_dict()
        for rank in ranks:
            rank.close()
    assert state["step"] == step


def test_shuffles_differ_by_seed_and_epoch(corpus: lowtide.Corpus) -> None:
    one, other = corpus.batches(100, 32, seed=0), corpus.batches(100, 32, seed=1)
    assert (one[0][0] != other[0][0]).any()
    windows = [set(one[step * 4][0][:, 0].tolist()) for step in range(3)]
    assert windows[0] != windows[1]


def test_random_offsets_are_uniform_and_reach_both_ends(tmp_path: Path) -> None:
    """Chi-square over 16 cells; the 99.99 % quantile with 15 degrees of freedom is 44.3."""
    corpus = numbered(tmp_path, 1000)
    batches = corpus.batches(512, 100, order="random", seed=2)
    starts = np.concatenate([batches[step][0][:, 0] for step in range(60)]).astype(int)
    assert starts.min() == 0
    assert starts.max() == 899
    counts = np.histogram(starts, bins=np.linspace(0, 900, 17))[0]
    expected = len(starts) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 44.3


def test_sequential_order_reads_in_order(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, 32, order="sequential", prefetch=0)
    assert (batches[0][0].ravel() == np.arange(128)).all()
    last = batches.epoch_samples - 1
    assert int(batches.read_samples(np.array([last]))[0, -1]) == (last + 1) * 32


@any_order
def test_resuming_at_distant_step_replays_nothing(corpus: lowtide.Corpus, order: str) -> None:
    """Nothing is replayed: the samples of step 10**9 are the only ones that are computed."""
    batches = corpus.batches(4, 16, order=order, seed=1)
    state = {**batches.state_dict(), "step": 10**9}
    asked: list[int] = []
    samples: Any = batches._samples
    starts = samples.starts

    def counted(first: int, last: int) -> Any:
        asked.append(last - first)
        return starts(first, last)

    samples.starts = counted
    batches.load_state_dict(state)
    assert (next(batches)[0] == batches[10**9][0]).all()
    assert sum(asked) <= 8 * 4096
    batches.close()


@pytest.mark.parametrize("order", ["shuffle", "random", "blocks", "sequential"])
@pytest.mark.parametrize("token", [0, 1, 31, 32, 5000, 10_005])
def test_when_lists_exactly_the_steps_with_token(corpus: lowtide.Corpus, order: str, token: int) -> None:
    batches = corpus.batches(3, 32, order=order, seed=6, prefetch=0)
    for epoch in (0, 2):
        first, last = epoch * batches.epoch_samples, (epoch + 1) * batches.epoch_samples
        windows = batches.read_samples(np.arange(first, last))
        expected = {(first + i) // 3 for i in np.flatnonzero((windows == token).any(axis=1)).tolist()}
        assert batches.when(token, epoch) == sorted(expected)


@pytest.mark.parametrize("seed", range(8))
def test_when_is_exact_at_wraparound(tmp_path: Path, seed: int) -> None:
    """Every token of a corpus that is not a multiple of the length, so that the ring has a gap."""
    batches = numbered(tmp_path, 503).batches(4, 16, seed=seed, prefetch=0)
    windows = batches.read_samples(np.arange(batches.epoch_samples))
    for token in range(503):
        expected = {i // 4 for i in np.flatnonzero((windows == token).any(axis=1)).tolist()}
        assert batches.when(token) == sorted(expected)


# State


def test_state_converts_numpy_integers_to_int(corpus: lowtide.Corpus) -> None:
    state = corpus.batches(np.int64(4), np.int64(16), seed=np.int64(3)).state_dict()  # type: ignore[arg-type]
    assert all(type(value) in (int, str) for value in state["settings"].values())
    assert json.loads(json.dumps(state)) == state == corpus.batches(4, 16, seed=3).state_dict()


@pytest.mark.parametrize("seed", [None, 1.5, "abc"])
def test_seed_that_is_not_an_integer_raises(corpus: lowtide.Corpus, seed: Any, tmp_path: Path) -> None:
    message = f"seed must be an integer, got {seed!r}"
    with pytest.raises(ArgumentError, match=message):
        corpus.batches(2, 8, seed=seed)
    with pytest.raises(ArgumentError, match=message):
        lowtide.mix({"a": corpus}, {"a": 1}).batches(2, 8, seed=seed)
    np.save(tmp_path / "rows.npy", np.arange(12))
    array = lowtide.open(tmp_path / "rows.npy")
    with pytest.raises(ArgumentError, match=message):
        array.chunks(3, shuffle=True, seed=seed)
    with pytest.raises(ArgumentError, match=message):
        lowtide.shuffle(array, tmp_path / "out.npy", seed=seed)


def test_state_of_other_corpus_or_settings_raises_with_differences(
    corpus: lowtide.Corpus, tmp_path: Path
) -> None:
    state = corpus.batches(4, 16, seed=1).state_dict()
    with pytest.raises(StateError, match=r"length was 16 and is 17; seed was 1 and is 2"):
        corpus.batches(4, 17, seed=2).load_state_dict(state)
    other = numbered(tmp_path / "other", 10_007)
    np.zeros(10_007, "<u4").tofile(tmp_path / "zeros.bin")
    with pytest.raises(StateError, match="corpus_content was"):
        lowtide.corpus(tmp_path / "zeros.bin", dtype="<u4").batches(4, 16, seed=1).load_state_dict(state)
    with pytest.raises(StateError, match="corpus_tokens was 10007 and is 500"):
        numbered(tmp_path / "short", 500).batches(4, 16, seed=1).load_state_dict(state)
    other.batches(4, 16, seed=1).load_state_dict(state)  # the same tokens in other shards are the same corpus
    with pytest.raises(StateError, match="expected 'step' and 'settings'"):
        other.batches(4, 16).load_state_dict({"epoch": 3})


@pytest.mark.parametrize("size", [8, 2, 3])
def test_state_of_other_batch_size_raises_with_remedy(corpus: lowtide.Corpus, size: int) -> None:
    old = corpus.batches(4, 16, seed=1)
    state = {**old.state_dict(), "step": 10}
    message = f"batch_size was 4 and is {size}; to continue with the next window pass batch_size="
    with pytest.raises(StateError, match=message) as caught:
        corpus.batches(size, 16, seed=1).load_state_dict(state)
    sizes = ast.literal_eval(str(caught.value).partition("batch_size=")[2])
    continued = corpus.batches(sizes, 16, seed=1)
    continued.load_state_dict(state)
    windows = np.concatenate([old[step][0] for step in range(10, 14)])
    assert (next(continued)[0] == windows[:size]).all()


def test_repr_has_the_settings(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches({0: 4, 10: 8}, 16, seed=1, rank=1, world_size=2, start=3)
    assert repr(batches) == (
        "<lowtide.Batches batch_size={'0': 4, '10': 8}, length=16, order='shuffle', seed=1, rank=1, "
        "world_size=2, step=3>"
    )
    mixed = lowtide.mix({"a": corpus, "b": corpus}, {"a": 3, "b": 1})
    assert repr(mixed) == "<lowtide.Mixture of 'a', 'b', weights={0: {'a': 0.75, 'b': 0.25}}>"
    assert repr(mixed.batches(4, 16)).startswith("<lowtide.MixedBatches batch_size=4, length=16")


# Prefetching


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lowtide-prefetch")]


def test_prefetch_error_reaches_caller_with_its_traceback(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 5000)
    batches = corpus.batches(4, 16)
    next(batches)
    os.truncate(tmp_path / "part-000.bin", 100)
    with pytest.raises(lowtide.LowtideError, match=r"part-000\.bin.*was truncated") as caught:
        for _ in range(10):
            next(batches)
    assert "_check" in [frame.name for frame in traceback.extract_tb(caught.tb)]
    batches.close()


def test_closed_or_deleted_batches_leave_no_thread(corpus: lowtide.Corpus) -> None:
    before = len(threads())
    batches = corpus.batches(4, 16, order="blocks")
    next(batches)
    assert len(threads()) == before + 1
    batches.close()
    assert len(threads()) == before
    with pytest.raises(ClosedError):
        next(batches)
    batches = corpus.batches(4, 16, order="blocks")
    next(batches)
    del batches
    gc.collect()
    for _ in range(200):
        if len(threads()) == before:
            break
        time.sleep(0.01)
    assert len(threads()) == before


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"length": 0}, "length must be an integer >= 1, got 0", id="length 0"),
        pytest.param({"length": 10_007}, "10007 tokens, too few for one window of 10007", id="too short"),
        pytest.param({"batch_size": 0}, "batch_size must be an integer >= 1", id="no batch"),
        pytest.param({"rank": 2, "world_size": 2}, "rank must be below world_size", id="rank"),
        pytest.param({"world_size": 5}, "must hold a row for each rank", id="more ranks than rows"),
        pytest.param({"order": "sorted"}, "order must be shuffle, random, blocks", id="order"),
        pytest.param({"order": "documents"}, "does not record where its documents end", id="no documents"),
        pytest.param({"batch_size": 2.5}, "batch_size must be an integer, got 2.5", id="float"),
    ],
)
def test_invalid_settings_raise(corpus: lowtide.Corpus, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        corpus.batches(**{"batch_size": 4, "length": 16, **arguments})
