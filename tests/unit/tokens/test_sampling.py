"""lowtide._tokens.sampling: orders of samples, each one class in a list."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io.extents import Ints
from lowtide._tokens import batches, sampling
from lowtide._tokens.sampling import Order, Windows
from lowtide.errors import ArgumentError
from tests.support.corpora import numbered


class Backwards(Windows):
    """From the last window to the first: what a new order has to write."""

    name = "backwards"

    def starts_at(self, numbers: Ints) -> Ints:
        return (self.epoch_samples - 1 - numbers % self.epoch_samples) * self._length

    def containing(self, token: int, epoch: int) -> list[int]:
        window, within = divmod(token, self._length)
        windows = [window - 1, window] if within == 0 else [window]
        return [(epoch + 1) * self.epoch_samples - 1 - one for one in windows if one < self.epoch_samples]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lowtide.Corpus:
    monkeypatch.setattr(batches, "ORDERS", [*batches.ORDERS, Backwards])
    return numbered(tmp_path, 1000, shards=3)


def test_registered_order_works(corpus: lowtide.Corpus) -> None:
    backwards = corpus.batches(2, 10, order="backwards")
    assert [next(backwards)[0][:, 0].tolist() for _ in range(2)] == [[990, 980], [970, 960]]
    assert backwards.epoch_samples == 100
    assert backwards.read_samples(np.array([99, 0]))[:, 0].tolist() == [0, 990]
    assert backwards.when(985) == [0]
    assert backwards.state_dict()["settings"]["order"] == "backwards"
    assert (pickle.loads(pickle.dumps(backwards))[7][0] == backwards[7][0]).all()
    mixed = lowtide.mix({"a": corpus, "b": corpus}, {"a": 1, "b": 1}).batches(4, 10, order="backwards")
    assert sorted(mixed[0][0][:, 0].tolist()) == [980, 980, 990, 990]


def test_unknown_order_raises_with_list_of_orders(corpus: lowtide.Corpus) -> None:
    known = "shuffle, random, blocks, sequential, documents, packed or backwards"
    with pytest.raises(ArgumentError, match=f"order must be {known}, got 'sorted'"):
        corpus.batches(2, 10, order="sorted")


def test_order_names_are_unique() -> None:
    names = [kind.name for kind in batches.ORDERS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("order", ["shuffle", "random", "blocks", "sequential"])
def test_copies_have_their_own_caches(corpus: lowtide.Corpus, order: str) -> None:
    one = corpus.batches(2, 10, order=order, seed=5)
    other = copy.deepcopy(one)
    assert other._samples is not one._samples
    assert (other[3][0] == one[3][0]).all()


@pytest.mark.parametrize("order", [kind.name for kind in batches.ORDERS])
def test_order_over_another_corpus_reads_same_positions(tmp_path: Path, order: Any) -> None:
    """In files of other sizes, and after the places in the first ones were computed."""
    tokens = np.arange(1, 1001, dtype=np.uint16)
    tokens[::7] = 0
    tokens.tofile(tmp_path / "train.bin")
    first = lowtide.corpus(tmp_path, eos=0)
    samples = batches.samples_of(first, 8, order, 1)
    expected = np.empty((6, 9), np.uint16)
    samples.submit(3, expected).wait()
    folder = tmp_path / "other"
    folder.mkdir()
    for number, part in enumerate(np.split(tokens.astype(np.uint32) + 5000, [123, 600])):
        np.save(folder / f"{number}.npy", part)
    assert isinstance(samples, Order)
    other = samples.over(lowtide.corpus(folder))
    result = np.empty((6, 9), other.dtype)
    other.submit(3, result).wait()
    assert (result == expected.astype(np.uint32) + 5000).all()
    assert samples.dtype == np.uint16


@pytest.mark.parametrize("order", ["shuffle", "random", "sequential"])
@pytest.mark.parametrize("windows", [100, sampling._PLANNED + 700])
def test_positions_planned_together_match_single_samples(tmp_path: Path, windows: int, order: Any) -> None:
    """Across the borders of what is planned at once, and of epochs."""
    batches = numbered(tmp_path, 2 * windows, shards=2).batches(48, 2, order=order, seed=3)
    for number in (sampling._FEW_PLANNED, sampling._PLANNED, 2 * sampling._PLANNED, windows):
        for step in range(number // 48 - 1, number // 48 + 2):
            numbers = np.random.default_rng(step).permutation(np.arange(48 * step, 48 * (step + 1)))
            expected = batches.read_samples(numbers)[np.argsort(numbers)]
            assert (batches.read(step) == expected).all()
