"""nanochat's loader over a corpus: its parameters, its loop, exact resume, the tokens that are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.cropping import best_fit_cropping, lengths_like_web

import lowtide
from lowtide.errors import ArgumentError, StateError
from lowtide.nanochat import data_loader_for

BOS = 0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of different lengths, each ended by 0."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for split, count in (("train", 300), ("val", 30)):
        documents = [np.append(rng.integers(1, 90, length), BOS) for length in rng.integers(3, 60, count)]
        np.concatenate(documents).astype(np.uint16).tofile(folder / f"{split}.bin")
    return folder


class Tokenizer:
    """What nanochat's has, as far as a loader may ask."""

    def __init__(self, size: int = 257) -> None:
        self.size = size

    def get_vocab_size(self) -> int:
        return self.size

    def get_bos_token_id(self) -> int:
        return BOS


def train(loader: Any, steps: int, state: Any = None) -> tuple[list[Any], Any]:
    """nanochat's loop: a batch is fetched ahead, and the state of the fetched one is saved, as JSON."""
    batches = loader(Tokenizer(), 4, 16, split="train", device="cpu", resume_state_dict=state)
    x, y, state = next(batches)
    trained = []
    for _ in range(steps):
        trained.append((x.clone(), y.clone()))
        x, y, state = next(batches)
    return trained, json.loads(json.dumps(state))


@pytest.mark.parametrize("order", ["packed", "shuffle"])
def test_resume_is_exact(corpus: Path, tmp_path: Path, order: Any) -> None:
    path = prepared(tmp_path) if order == "packed" else corpus
    loader = data_loader_for(path, order=order)
    whole, _ = train(loader, 12)
    first, state = train(loader, 5)
    rest, _ = train(loader, 7, state)
    assert len(first + rest) == len(whole)
    for (x, y), (expected_x, expected_y) in zip(first + rest, whole, strict=True):
        assert torch.equal(x, expected_x)
        assert torch.equal(y, expected_y)
        assert torch.equal(x[:, 1:], y[:, :-1])


def prepared(tmp_path: Path) -> Path:
    """A corpus of lowtide with documents and a validation split."""
    lines = (json.dumps({"text": f"{number} " * (number % 23 + 1)}) for number in range(400))
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    lowtide.prepare(tmp_path / "text.jsonl", tmp_path / "prepared", val_fraction=0.2)
    return tmp_path / "prepared"


def test_resume_with_other_ranks_and_batch_size(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = data_loader_for(corpus, order="shuffle")
    tokens = lowtide.corpus(corpus)
    _, state = train(loader, 6)  # 24 windows

    def rows(rank: int, world_size: int, size: int) -> list[torch.Tensor]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        running = loader(None, size, 16, "train", device="cpu", resume_state_dict=state)
        return [next(running)[0] for _ in range(4)]

    ranks = [rows(rank, 2, 3) for rank in range(2)]
    together = [torch.cat(parts) for parts in zip(*ranks, strict=True)]
    expected = tokens.batches(6, 16, seed=1337, rank=0)
    for step, x in enumerate(together, 4):
        assert (x.numpy() == expected[step][0]).all()
    with pytest.raises(StateError, match="24 windows before this state are not a multiple of the 10"):
        rows(0, 2, 5)


def test_validation_split_without_state(corpus: Path) -> None:
    loader = data_loader_for(corpus, with_state=False, order="shuffle")
    x, y = next(loader(None, 2, 8, split="val", device="cpu", tokenizer_threads=8, buffer_size=10))
    assert (x.numpy() == lowtide.corpus(corpus, split="val").batches(2, 8, seed=1337)[0][0]).all()
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_tokenizer_with_fewer_ids_raises(corpus: Path) -> None:
    loader = data_loader_for(corpus, order="shuffle")
    with pytest.raises(ArgumentError, match="holds a token that the tokenizer does not know"):
        loader(Tokenizer(80), 4, 16, "train", device="cpu")


def test_state_of_other_data_is_rejected(corpus: Path) -> None:
    _, state = train(data_loader_for(corpus, order="shuffle"), 1)
    with pytest.raises(StateError, match="seed was 1337 and is 7"):
        train(data_loader_for(corpus, order="shuffle", seed=7), 1, state)
    with pytest.raises(StateError, match="not a state of this loader"):
        train(data_loader_for(corpus, order="shuffle"), 1, {"pq_idx": 0, "rg_idx": 3, "epoch": 1})


def test_packing_drops_fewer_tokens_than_cropping(tmp_path: Path) -> None:
    """Documents as on the web, in rows of 2,048: what nanochat says of its loader, and ours beside it."""
    assert 0.3 < best_fit_cropping(lengths_like_web(100_000, seed=0), capacity=2049) < 0.4
    lengths = lengths_like_web(2_000, seed=0)
    tokens = np.ones(int(lengths.sum()), np.uint16)
    tokens[np.cumsum(lengths) - 1] = BOS
    tokens.tofile(tmp_path / "train.bin")
    batches = lowtide.corpus(tmp_path / "train.bin", eos=BOS, dtype="uint16").batches(8, 2048, order="packed")
    assert batches.dropped_tokens / len(tokens) < 0.05
