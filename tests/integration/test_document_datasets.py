"""Data sets of batches with documents: the same as the batches, and what Hugging Face's models make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lowtide
from lowtide.errors import ArgumentError
from lowtide.torch import IterableDataset, MapDataset

LENGTH = 16
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture
def corpus(tmp_path: Path) -> lowtide.Corpus:
    np.random.default_rng(0).integers(0, 9, 4000, np.uint16).tofile(tmp_path / "train.bin")
    return lowtide.corpus(tmp_path, eos=0)


@forks
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffle", "packed"])
@pytest.mark.parametrize("kind", ["ids", "cu_seqlens"])
def test_loader_batches_match_batches_with_documents(
    corpus: lowtide.Corpus, num_workers: int, kind: Any, order: Any
) -> None:
    batches = corpus.batches(4, LENGTH, seed=1, order=order).with_documents(kind)
    loader: Any = DataLoader(IterableDataset(batches, steps=5), batch_size=None, num_workers=num_workers)
    seen = list(loader)
    assert len(seen) == 5
    for step, result in enumerate(seen):
        expected = batches[step]
        x, y, documents = expected
        assert (result["x"].numpy() == x).all()
        assert (result["y"].numpy() == y).all()
        name = "document_ids" if kind == "ids" else "cu_seqlens"
        assert (result[name].numpy() == documents).all()
        assert (result["position_ids"].numpy() == expected.position_ids).all()
        assert (result["loss_mask"].numpy() == expected.loss_mask).all()
        assert result["max_seqlen"] == expected.max_seqlen


@forks
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffle", "documents", "packed"])
def test_sampled_windows_have_their_documents(corpus: lowtide.Corpus, num_workers: int, order: Any) -> None:
    """Collated in any order, each with its documents, in a later epoch too."""
    plain = corpus.batches(1, LENGTH, seed=1, order=order)
    windows = MapDataset(plain.with_documents(), epoch=1)
    chosen = [9, 3, 4, 5, 17, 0]
    loader: Any = DataLoader(windows, batch_size=3, sampler=chosen, num_workers=num_workers)
    batches = list(loader)
    assert [tuple(batch["document_ids"].shape) for batch in batches] == [(3, LENGTH), (3, LENGTH)]
    for row, number in enumerate(chosen):
        expected = plain.with_documents()[number + len(windows)]
        batch, nth = batches[row // 3], row % 3
        assert batch["x"][nth].tolist() == expected[0][0].tolist()
        assert batch["document_ids"][nth].tolist() == expected[2][0].tolist()
        assert batch["position_ids"][nth].tolist() == expected.position_ids[0].tolist()
        assert batch["loss_mask"][nth].tolist() == expected.loss_mask[0].tolist()


@pytest.mark.parametrize("make", [MapDataset, IterableDataset])
def test_labels_of_first_tokens_are_ignored(corpus: lowtide.Corpus, make: Any) -> None:
    dataset = make(corpus.batches(4, LENGTH, seed=1).with_documents(), as_dict=True)
    item = dataset[0] if make is MapDataset else next(iter(dataset))
    assert item.keys() == {"input_ids", "labels", "position_ids"}
    first = torch.ones(LENGTH, dtype=torch.bool)
    first[1:] = item["input_ids"][:-1] == 0
    assert torch.equal(item["labels"] == -100, first)
    assert torch.equal(item["labels"][~first], item["input_ids"][~first])
    assert torch.equal(item["position_ids"] == 0, first)


def test_hugging_face_model_attends_within_documents(corpus: lowtide.Corpus) -> None:
    """By the position ids, without a cache: logits of each document are those of the document alone."""
    import transformers

    llama: Any = transformers.LlamaForCausalLM
    make: Any = transformers.LlamaConfig
    config = make(
        vocab_size=9, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=LENGTH, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = llama(config).eval()
    dataset = MapDataset(corpus.batches(1, LENGTH, seed=1).with_documents(), as_dict=True)
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    with torch.no_grad():
        logits = model(**{name: batch[name] for name in ("input_ids", "position_ids")}).logits
        for row in range(4):
            starts = torch.nonzero(batch["position_ids"][row] == 0)[:, 0].tolist()
            assert len(starts) > 1 or row
            for start, stop in zip(starts, [*starts[1:], LENGTH], strict=True):
                alone = model(batch["input_ids"][row : row + 1, start:stop]).logits[0]
                torch.testing.assert_close(logits[row, start:stop], alone, atol=1e-5, rtol=1e-5)


def test_state_of_single_windows_resumes_exactly(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = IterableDataset(batches.with_documents(), steps=10, single=True)
    running = iter(dataset)
    seen = [next(running)["x"] for _ in range(6)]
    again = IterableDataset(batches.with_documents(), steps=10, single=True)
    again.load_state_dict(dataset.state_dict())
    seen += [item["x"] for item in again]
    assert torch.stack(seen).numpy().tolist() == [row for s in range(10) for row in batches[s][0].tolist()]


def test_cu_seqlens_for_single_windows_raises(corpus: lowtide.Corpus) -> None:
    marked = corpus.batches(4, LENGTH).with_documents("cu_seqlens")
    for make in (lambda: MapDataset(marked), lambda: IterableDataset(marked, single=True)):
        with pytest.raises(ArgumentError, match=r"use with_documents\('ids'\)"):
            make()


def test_repr_shows_batch_or_window_shape(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH)
    assert repr(batches.torch()) == "<TorchBatches of 4 x 16 tokens on cpu, at step 0>"
    assert repr(MapDataset(batches)) == "<MapDataset of 250 windows of 16 tokens, epoch 0>"
    assert (
        repr(IterableDataset(batches, steps=3)) == "<IterableDataset of 3 batches of 4 x 16 tokens, epoch 0>"
    )
    assert "batches without end" in repr(IterableDataset(batches))
