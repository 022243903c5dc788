"""Arrays in PyTorch's DataLoader and torchdata's StatefulDataLoader, with real workers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import lowtide
from lowtide import _datasets
from lowtide.errors import ArgumentError, StateError
from lowtide.torch import ArrayDataset, ChunkDataset

pytestmark = [
    # torchdata 0.11 calls what PyTorch 2.13 asks not to call.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
WORKERS = [(0, None), (2, "fork"), (2, "spawn")]


@pytest.fixture
def arrays(tmp_path: Path) -> Iterator[tuple[lowtide.Array, lowtide.Array]]:
    np.save(tmp_path / "x.npy", np.repeat(np.arange(100, dtype=">f4")[:, None], 3, axis=1))
    np.save(tmp_path / "y.npy", np.arange(100))
    with lowtide.open(tmp_path / "x.npy") as x, lowtide.open(tmp_path / "y.npy") as y:
        yield x, y


def rows(batches: Any) -> list[int]:
    numbers: list[int] = []
    for x, y in batches:
        assert (x[:, 0] == y).all()
        numbers += y.tolist()
    return numbers


@pytest.mark.parametrize(("workers", "start"), WORKERS)
def test_loader_gives_every_row_once(arrays: Any, workers: int, start: Any) -> None:
    train, _ = lowtide.zip(*arrays).split(0.8, seed=1)
    expected = sorted(train[:][1].tolist())
    loader = DataLoader(
        ArrayDataset(train), 7, shuffle=True, num_workers=workers, multiprocessing_context=start
    )
    assert sorted(rows(loader)) == expected
    dataset = ChunkDataset(train, 7, shuffle=True, seed=3)
    chunks = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=start)
    reference = rows(train.chunks(7, shuffle=True, seed=3))
    assert rows(chunks) == reference
    assert sorted(reference) == expected


def test_batch_is_one_read_per_array(arrays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_datasets, "_TINY", 0)
    dataset = ArrayDataset(x=arrays[0], y=arrays[1])
    with mock.patch.object(lowtide.Array, "take", autospec=True, side_effect=lowtide.Array.take) as take:
        items = dataset.__getitems__([5, 3, 9])
    assert take.call_count == 2
    assert [int(item["y"]) for item in items] == [5, 3, 9]
    assert dataset[7]["x"].tolist() == [7.0] * 3
    assert isinstance(ArrayDataset(arrays[1])[0], tuple)


@pytest.mark.parametrize("tiny", [0, 2**20])
@pytest.mark.parametrize("named", [False, True])
def test_batches_match_tensor_dataset(
    arrays: Any, monkeypatch: pytest.MonkeyPatch, named: bool, tiny: int
) -> None:
    monkeypatch.setattr(_datasets, "_TINY", tiny)
    x, y = arrays
    dataset = ArrayDataset(x=x, y=y) if named else ArrayDataset(x, y)
    tensors = TensorDataset(torch.arange(100.0)[:, None].repeat(1, 3), torch.arange(100))
    parts: list[tuple[Any, Any]] = [
        (dataset, tensors),
        (Subset(dataset, [5, 5, 98]), Subset(tensors, [5, 5, 98])),
        (ConcatDataset([dataset, dataset]), ConcatDataset([tensors, tensors])),  # one item at a time
    ]
    for one, other in parts:
        for batch, expected in zip(DataLoader(one, 40), DataLoader(other, 40), strict=True):
            assert type(batch) is (dict if named else list)
            values = batch.values() if isinstance(batch, dict) else batch
            for part, tensor in zip(values, expected, strict=True):
                assert part.dtype == tensor.dtype
                assert torch.equal(part, tensor)


def test_collate_function_receives_items(arrays: Any) -> None:
    def longest(items: Any) -> list[int]:
        first, *others = items
        assert len(items) == 4
        assert [int(label) for _, label in items[1:]] == [int(label) for _, label in others]
        return [int(first[1]), *(int(label) for _, label in others)]

    assert list(DataLoader(ArrayDataset(*arrays), 4, collate_fn=longest))[1] == [4, 5, 6, 7]


def test_in_memory_labels_are_accepted_and_other_dtypes_raise(arrays: Any) -> None:
    dataset = ArrayDataset(arrays[0], np.arange(100))
    assert sorted(rows(DataLoader(dataset, 7, shuffle=True))) == list(range(100))
    records = np.zeros(100, [("time", "M8[s]"), ("price", "f4")])
    for make in (ArrayDataset, lambda array: ChunkDataset(lowtide.zip(array), 10)):
        with pytest.raises(ArgumentError, match=r"PyTorch has no dtype .* select a field"):
            make(records)
        with pytest.raises(ArgumentError, match=r"datetime64\[s\]; convert it"):
            make(records["time"])


def test_cached_labels_detect_changed_file(arrays: Any) -> None:
    dataset = ArrayDataset(*arrays)
    assert [int(y) for _, y in dataset.__getitems__([3, -1])] == [3, 99]
    assert len(pickle.dumps(dataset)) < 2000
    with pytest.raises(IndexError, match=r"y\.npy"):
        ArrayDataset(arrays[1]).__getitems__([100])
    np.save(arrays[1].path, np.zeros(100, int))
    with pytest.raises(lowtide.FileChangedError):
        dataset.__getitems__([3])
    arrays[1].close()
    with pytest.raises(lowtide.errors.ClosedError):
        dataset.__getitems__([3])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 5])
def test_stateful_loader_resumes_exactly(arrays: Any, workers: int, stop: int) -> None:
    def loader() -> Any:
        dataset = ChunkDataset(lowtide.zip(*arrays), 7, shuffle="blocks", seed=2, epoch=1)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    expected = rows(loader())
    first = loader()
    batches = iter(first)
    seen = rows(next(batches) for _ in range(stop))
    second = loader()
    second.load_state_dict(first.state_dict())
    assert seen + rows(second) == expected


def test_persistent_workers_follow_set_epoch(arrays: Any) -> None:
    zipped = lowtide.zip(*arrays)
    dataset = ChunkDataset(zipped, 7, shuffle=True, seed=3)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 1, 3):
        dataset.set_epoch(epoch)
        assert rows(loader) == rows(zipped.chunks(7, shuffle=True, seed=3, epoch=epoch))


@pytest.mark.parametrize("kind", ["array", "chunk"])
@pytest.mark.filterwarnings(
    "ignore:The 'train_dataloader' does not have many workers",
    "ignore:Your `IterableDataset` has `__len__` defined",
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning",
)
def test_lightning_sees_every_row_once_per_epoch(arrays: Any, kind: str) -> None:
    lightning: Any = import_module("lightning")
    epochs: list[list[int]] = []

    class Counting(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def on_train_epoch_start(self) -> None:
            epochs.append([])
            dataset = self.trainer.train_dataloader.dataset
            if kind == "chunk":
                dataset.set_epoch(self.current_epoch)

        def training_step(self, batch: Any, number: int) -> Any:
            epochs[-1].extend(rows([batch]))
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loaders: dict[str, Any] = {
        "array": lambda: DataLoader(ArrayDataset(*arrays), 16, shuffle=True),
        "chunk": lambda: DataLoader(ChunkDataset(lowtide.zip(*arrays), 16, shuffle=True), batch_size=None),
    }
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **options)
    trainer.fit(Counting(), loaders[kind]())
    assert [sorted(epoch) for epoch in epochs] == [list(range(100))] * 2
    assert epochs[0] != epochs[1]


def test_chunk_dataset_state_and_epochs(arrays: Any) -> None:
    dataset = ChunkDataset(arrays[1], 10, shuffle=True)
    first = torch.cat(list(dataset)).tolist()
    dataset.set_epoch(1)
    assert torch.cat(list(dataset)).tolist() != first
    assert dataset.state_dict()["position"] == len(dataset) == 10
    other = ChunkDataset(arrays[1], 10, shuffle=True, rank=1, world_size=2)
    other.load_state_dict({**dataset.state_dict(), "position": 8})
    assert [len(batch) for batch in other] == [5, 5]
    for wrong in ({}, {**dataset.state_dict(), "seed": 9}):
        with pytest.raises(StateError):
            other.load_state_dict(wrong)
    with pytest.raises(ArgumentError, match="takes an array or"):
        ChunkDataset(np.zeros(3), 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_budget_does_not_change_batches(arrays: Any, workers: int) -> None:
    zipped = lowtide.zip(*arrays)
    dataset = ChunkDataset(zipped, 7, shuffle=True, seed=3, budget="40 MiB")
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    assert rows(loader) == rows(zipped.chunks(7, shuffle=True, seed=3))
    with pytest.raises(lowtide.BudgetError, match="smallest that works"):
        ChunkDataset(zipped, 7, budget=100)


def test_auto_rank_is_resolved_when_iterating(arrays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ChunkDataset(arrays[1], 10, rank="auto")
    assert torch.cat(list(dataset)).tolist() == list(range(100))
    monkeypatch.setenv("WORLD_SIZE", "2")  # as a launcher sets them in the processes that it starts
    monkeypatch.setenv("RANK", "1")
    expected = [10 * chunk + row for chunk in range(10) for row in range(5, 10)]
    assert torch.cat(list(dataset)).tolist() == expected
    assert torch.cat(list(pickle.loads(pickle.dumps(dataset)))).tolist() == expected


def test_spawned_worker_inherits_process_group_rank(arrays: Any, tmp_path: Path) -> None:
    dataset = ChunkDataset(arrays[1], 10, rank="auto")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        with mock.patch.multiple(torch.distributed, get_rank=lambda: 2, get_world_size=lambda: 3):
            sent = pickle.dumps(dataset)  # as DataLoader sends it to a worker
    finally:
        torch.distributed.destroy_process_group()
    assert [len(batch) for batch in pickle.loads(sent)] == [4] * 10
    assert [len(batch) for batch in pickle.loads(pickle.dumps(dataset))] == [10] * 10
