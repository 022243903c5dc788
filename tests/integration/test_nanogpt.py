"""lowtide.nanogpt: nanoGPT's own batches, bit for bit."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lowtide
from lowtide.errors import ArgumentError, NotFoundError
from lowtide.nanogpt import get_batch_for

Pair = tuple[torch.Tensor, torch.Tensor]


def oracle(folder: Path, block: int, batch: int) -> Callable[[str], Pair]:
    """What nanoGPT does, by its description: offsets from PyTorch's generator, windows of a mapped file."""

    def get_batch(split: str) -> Pair:
        tokens = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="r")
        offsets = torch.randint(len(tokens) - block, (batch,)).tolist()
        x = np.stack([tokens[at : at + block].astype(np.int64) for at in offsets])
        y = np.stack([tokens[at + 1 : at + block + 1].astype(np.int64) for at in offsets])
        return torch.from_numpy(x), torch.from_numpy(y)

    return get_batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    rng.integers(0, 65536, 30_011, np.uint16).tofile(tmp_path / "train.bin")
    rng.integers(0, 65536, 3_007, np.uint16).tofile(tmp_path / "val.bin")
    return tmp_path


def same(one: Pair, other: Pair) -> bool:
    return all(
        a.dtype == b.dtype and a.is_contiguous() and torch.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("splits", [["train"] * 20, ["val"] * 20, ["train", "val", "val"] * 10], ids=len)
@pytest.mark.parametrize(("block", "batch"), [(64, 12), (1, 1), (3006, 3)])
def test_same_seed_matches_nanogpt_batches(folder: Path, splits: list[str], block: int, batch: int) -> None:
    theirs, ours = oracle(folder, block, batch), get_batch_for(folder, block, batch)
    torch.manual_seed(1337)
    expected = [theirs(split) for split in splits]
    after = torch.get_rng_state()
    torch.manual_seed(1337)
    for pair, split in zip(expected, splits, strict=True):
        assert same(ours(split), pair)
    assert torch.equal(torch.get_rng_state(), after)  # so dropout and weights come out the same too


def test_construction_does_not_advance_rng(folder: Path) -> None:
    before = torch.get_rng_state()
    get_batch_for(folder, 8, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_last_window_is_drawn(tmp_path: Path) -> None:
    """One place is left, and its target is the last token."""
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "train.bin")
    x, y = get_batch_for(tmp_path, 8, 3)("train")
    assert x.tolist() == [list(range(8))] * 3
    assert y.tolist() == [list(range(1, 9))] * 3


def test_other_files_in_folder_are_ignored(folder: Path) -> None:
    """nanoGPT reads train.bin; a folder as a corpus would take train_old.bin with it, and refuse the .npy."""
    np.zeros(500, np.uint16).tofile(folder / "train_old.bin")
    np.save(folder / "embeddings.npy", np.zeros(4))
    (folder / "input.txt").write_text("To be, or not to be")
    (folder / "meta.pkl").write_bytes(b"not a pickle")
    torch.manual_seed(2)
    expected = oracle(folder, 32, 4)("train")
    torch.manual_seed(2)
    assert same(get_batch_for(str(folder), 32, 4)("train"), expected)


def test_other_corpus_format_is_accepted(tmp_path: Path) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 1000
    with open(tmp_path / "fineweb_train_000001.bin", "wb") as file:
        file.write(header.tobytes() + np.arange(1000, dtype=np.uint16).tobytes())
    x, y = get_batch_for(tmp_path, 16, 4)("train")
    assert (y == x + 1).all()


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=repr)
def test_device_accepts_name_or_object(folder: Path, device: Any) -> None:
    assert get_batch_for(folder, 8, 4, device)("train")[0].device.type == "cpu"


# In a shuffled order


def test_shuffle_gives_every_token_once_per_epoch(folder: Path) -> None:
    np.arange(6400, dtype=np.uint16).tofile(folder / "train.bin")
    get_batch = get_batch_for(folder, 16, 4, order="shuffle", seed=3)
    seen = torch.cat([get_batch("train")[0] for _ in range(100)]).view(-1)
    assert seen.sort().values.tolist() == list(range(6400))


def test_shuffled_splits_advance_independently(folder: Path) -> None:
    get_batch = get_batch_for(folder, 16, 4, order="shuffle", seed=3)
    train, val = (
        lowtide.corpus(folder, split=split).batches(4, 16, seed=3).torch() for split in ("train", "val")
    )
    for step in range(9):
        torch.manual_seed(step)
        assert same(get_batch("train"), train[step])
        if step % 3 == 0:
            assert same(get_batch("val"), val[step // 3])


def test_split_with_other_name_is_opened_on_demand(folder: Path) -> None:
    """It is opened when it is first asked for, and only then."""
    (folder / "val.bin").rename(folder / "test.bin")
    get_batch = get_batch_for(folder, 16, 4, order="shuffle", seed=3)
    expected = lowtide.corpus(folder, split="test").batches(4, 16, seed=3).torch()
    for step in range(3):
        assert same(get_batch("test"), expected[step])


# What can be wrong


def test_missing_val_raises_on_first_use(folder: Path) -> None:
    (folder / "val.bin").unlink()
    get_batch = get_batch_for(folder, 8, 4)
    get_batch("train")
    with pytest.raises(NotFoundError, match=r"split 'val' \(train: train\.bin\)") as caught:
        get_batch("val")
    assert caught.value.errno == errno.ENOENT
    np.arange(100, dtype=np.uint16).tofile(folder / "val.bin")
    get_batch("val")


def test_missing_train_raises_at_once(folder: Path) -> None:
    (folder / "train.bin").unlink()
    with pytest.raises(NotFoundError, match="split 'train'"):
        get_batch_for(folder, 8, 4)


def test_missing_folder_raises_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        get_batch_for(tmp_path / "nowhere", 8, 4)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("order", ["random", "shuffle"])
def test_split_too_short_raises_before_training(folder: Path, split: str, order: Any) -> None:
    np.arange(64, dtype=np.uint16).tofile(folder / f"{split}.bin")
    message = (
        rf"{split}\.bin: has 64 tokens, too few for a block_size of 64 and its target; use .* at most 63"
    )
    with pytest.raises(ArgumentError, match=message):
        get_batch_for(folder, 64, 4, order=order)
    get_batch_for(folder, 63, 4, order=order)(split)


def test_partial_token_raises_before_training(folder: Path) -> None:
    (folder / "val.bin").write_bytes(bytes(1001))
    with pytest.raises(lowtide.LowtideError, match=r"val\.bin.*1001 bytes"):
        get_batch_for(folder, 8, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "sequential"}, "order must be 'random' or 'shuffle', got 'sequential'"),
        ({"device": "gpu"}, "cannot use device 'gpu'"),
        ({"block_size": 0}, "block_size must be an integer >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ],
)
@pytest.mark.parametrize("order", ["random", "shuffle"])
def test_invalid_settings_raise(folder: Path, arguments: dict[str, Any], message: str, order: Any) -> None:
    with pytest.raises(ArgumentError, match=message):
        get_batch_for(folder, **{"block_size": 8, "batch_size": 4, "order": order, **arguments})


def test_shuffle_gives_each_rank_its_own_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        parts.append(get_batch_for(folder, 16, 4, order="shuffle", seed=3)("train")[0])
    expected = lowtide.corpus(folder / "train.bin").batches(8, 16, seed=3, rank=0)[0][0]
    assert (torch.cat(parts).numpy() == expected).all()


def test_shuffle_resumes_at_start(folder: Path) -> None:
    whole = get_batch_for(folder, 16, 4, order="shuffle")
    expected = [whole("train") for _ in range(6)]
    resumed = get_batch_for(folder, 16, 4, order="shuffle", start=4)
    assert all(same(resumed("train"), pair) for pair in expected[4:])


def test_evaluation_does_not_advance_training_batches(folder: Path) -> None:
    alone, evaluated = (get_batch_for(folder, 16, 4, order="shuffle") for _ in range(2))
    for _ in range(4):
        with torch.no_grad():  # as nanoGPT's estimate_loss
            draws = [evaluated("train"), evaluated("train"), evaluated("val")]
        batch = alone("train")
        assert same(evaluated("train"), batch)
        assert not same(draws[0], batch)
        assert not same(draws[0], draws[1])
