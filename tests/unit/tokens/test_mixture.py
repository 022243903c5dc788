"""lowtide._tokens.mixture: shares to within one sample, still a pure function of the step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import ArgumentError, StateError
from tests.support.corpora import numbered
from tests.support.examples import examples


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lowtide.Corpus]:
    folder = tmp_path_factory.mktemp("corpora")
    return {name: numbered(folder / name, 3000 + 100 * i) for i, name in enumerate("abcde")}


@given(
    weights=st.lists(st.sampled_from([0, 1, 2.5, 0.1, 0.333, 7, 1 / 3]), min_size=1, max_size=5),
    batch_size=st.integers(1, 16),
)
@examples(0.6)
def test_shares_deviate_by_at_most_one_sample(
    corpora: dict[str, lowtide.Corpus], weights: list[float], batch_size: int
) -> None:
    if not sum(weights):
        return
    names = list(corpora)[: len(weights)]
    mixed = lowtide.mix({name: corpora[name] for name in names}, dict(zip(names, weights, strict=True)))
    source: Any = mixed.batches(batch_size, 16)._samples
    which, numbers = source.assign(0, 3000)
    shares = mixed.weights[0]
    assert abs(float(sum(shares.values())) - 1) < 1e-12
    for nth, name in enumerate(names):
        count = np.cumsum(which == nth)
        assert np.abs(count - np.arange(1, 3001) * float(shares[name])).max() <= 1
        assert (
            numbers[which == nth] == np.arange(count[-1])
        ).all()  # each corpus in its own order, none left out


def test_rows_come_from_their_corpus(corpora: dict[str, lowtide.Corpus], tmp_path: Path) -> None:
    low, high = numbered(tmp_path, 5000), tmp_path / "high.bin"
    np.arange(100_000, 105_000, dtype="<u4").tofile(high)
    mixed = lowtide.mix({"low": low, "high": lowtide.corpus(high, dtype="<u4")}, {"low": 3, "high": 1})
    batches = mixed.batches(8, 16, seed=2)
    for step in range(20):
        x, y = batches[step]
        assert int((x[:, 0] >= 100_000).sum()) == batches.shares(step)["high"] == 2
        assert ((y - x) % 5000 == 1).all() or (y == x + 1).mean() > 0.99
    assert (next(batches)[0] == batches[0][0]).all()
    batches.close()


def test_rows_do_not_depend_on_number_of_ranks(corpora: dict[str, lowtide.Corpus]) -> None:
    mixed = lowtide.mix(corpora, {"a": 0.5, "b": 0.2, "c": 0.15, "d": 0.1, "e": 0.05})
    alone = mixed.batches(12, 16, seed=7)
    for world_size in (2, 3, 4):
        ranks = [
            mixed.batches(12, 16, seed=7, rank=rank, world_size=world_size) for rank in range(world_size)
        ]
        for step in (0, 5, 10**7):
            assert (np.concatenate([rank[step][0] for rank in ranks]) == alone[step][0]).all()


def test_weights_change_at_scheduled_steps(corpora: dict[str, lowtide.Corpus]) -> None:
    two = {name: corpora[name] for name in "ab"}
    mixed = lowtide.mix(two, {0: {"a": 1, "b": 0}, 10: {"a": 1, "b": 3}, 25: {"a": 0, "b": 1}})
    batches = mixed.batches(8, 16)
    assert [batches.shares(step) for step in (0, 9, 10, 24, 25)] == [
        {"a": 8, "b": 0},
        {"a": 8, "b": 0},
        {"a": 2, "b": 6},
        {"a": 2, "b": 6},
        {"a": 0, "b": 8},
    ]
    source: Any = batches._samples
    which, numbers = source.assign(0, 8 * 40)
    for nth in range(2):  # no sample of a corpus is left out or comes twice where the weights change
        assert (numbers[which == nth] == np.arange(int((which == nth).sum()))).all()
    whole = source.assign(70, 300)
    assert (whole[0] == which[70:300]).all()
    assert (whole[1] == numbers[70:300]).all()


def test_two_copies_of_corpus_are_shuffled_differently(corpora: dict[str, lowtide.Corpus]) -> None:
    batches = lowtide.mix({"one": corpora["a"], "two": corpora["a"]}, {"one": 1, "two": 1}).batches(64, 16)
    x = batches[0][0][:, 0]
    source: Any = batches._samples
    which = source.assign(0, 64)[0]
    assert set(x[which == 0].tolist()) != set(x[which == 1].tolist())


def test_state_of_other_corpora_raises_with_name_of_corpus(corpora: dict[str, lowtide.Corpus]) -> None:
    two = {name: corpora[name] for name in "ab"}
    state = lowtide.mix(two, {"a": 1, "b": 1}).batches(8, 16).state_dict()
    other = lowtide.mix({"a": corpora["a"], "b": corpora["c"]}, {"a": 1, "b": 1}).batches(8, 16)
    with pytest.raises(StateError, match=r"b\.corpus_tokens was 3100 and is 3200"):
        other.load_state_dict(state)


def test_state_of_a_mixture_survives_json(corpora: dict[str, lowtide.Corpus]) -> None:
    two = {name: corpora[name] for name in "ab"}
    batches = lowtide.mix(two, {0: {"a": 1, "b": 1}, 10: {"a": 1, "b": 3}}).batches(8, 16)
    state = {**batches.state_dict(), "step": 7}
    batches.load_state_dict(json.loads(json.dumps(state)))
    assert batches.step == 7
    weights = {0: {"a": "1/2", "b": "1/2"}, 10: {"a": "1/4", "b": "3/4"}}  # as version 0.1 saved them
    batches.load_state_dict({**state, "settings": {**state["settings"], "weights": weights}})


def own(folder: Path, tokenizer: dict[str, Any]) -> lowtide.Corpus:
    """A corpus that records its tokenizer."""
    (folder.parent / f"{folder.name}.txt").write_text("some text " * 50)
    lowtide.prepare([folder.parent / f"{folder.name}.txt"], folder, holdout="contiguous", **tokenizer)
    return lowtide.corpus(folder)


def test_corpora_with_different_tokenizers_raise(tmp_path: Path) -> None:
    chars, octets = own(tmp_path / "a", {"tokenizer": "char"}), own(tmp_path / "b", {"tokenizer": "byte"})
    with pytest.raises(
        ArgumentError, match=r"different tokenizers \('a': char, sha256 .*; 'b': byte, sha256"
    ):
        lowtide.mix({"a": chars, "b": octets}, {"a": 1, "b": 1})
    again = own(tmp_path / "c", {"tokenizer": str(tmp_path / "a" / "tokenizer.json")})
    lowtide.mix({"a": chars, "again": again}, {"a": 1, "again": 1})  # under another name


@pytest.mark.parametrize("wrong", [{"a": "path"}, ["a"]])
def test_mixture_of_invalid_type_raises(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="takes a dict of corpora by name"):
        lowtide.mix(wrong, {"a": 1})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        pytest.param({"a": 1, "b": -0.1}, "weight of 'b' must be a number >= 0, got -0.1", id="negative"),
        pytest.param({"a": 1, "b": float("nan")}, "must be a number >= 0, got nan", id="nan"),
        pytest.param({"a": 0, "b": 0}, "all weights are 0", id="nothing"),
        pytest.param({"a": 1}, r"weights are for \['a'\], and the corpora are \['a', 'b'\]", id="missing"),
        pytest.param({5: {"a": 1, "b": 1}}, "must start at step 0", id="late"),
    ],
)
def test_invalid_weights_raise(corpora: dict[str, lowtide.Corpus], weights: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        lowtide.mix({name: corpora[name] for name in "ab"}, weights)
