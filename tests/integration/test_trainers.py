"""Lightning and the Hugging Face Trainer, each on a tiny model, fed from a corpus."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lowtide
from lowtide.torch import IterableDataset, MapDataset

LENGTH = 8


def need(*packages: str) -> pytest.MarkDecorator:
    """Skip where a trainer is not installed, but not in CI: there its absence must show."""
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing) and not os.environ.get("CI"), reason=f"not installed: {', '.join(missing)}"
    )


@pytest.fixture
def corpus(tmp_path: Path) -> lowtide.Corpus:
    np.random.default_rng(0).integers(0, 64, 2000, np.uint16).tofile(tmp_path / "train.bin")
    return lowtide.corpus(tmp_path)


def tiny() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64))


def items(dataset: MapDataset) -> list[Any]:
    return [dataset[number] for number in range(len(dataset))]


forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@need("lightning")
@forks
# Lightning 2.6 makes a LeafSpec, which PyTorch 2.13 calls deprecated.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
# It advises to use more workers, on any machine with more cores than workers.
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["iterable", "map"])
def test_lightning_fits_batches_in_step_order(corpus: lowtide.Corpus, num_workers: int, kind: str) -> None:
    lightning: Any = import_module("lightning")

    seen: list[torch.Tensor] = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            x, y = batch
            seen.append(x.clone())
            return torch.nn.functional.cross_entropy(self.net(x).view(-1, 64), y.view(-1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = corpus.batches(4, LENGTH, seed=1)
    loader: DataLoader[Any]
    if kind == "iterable":
        loader = DataLoader(IterableDataset(batches), batch_size=None, num_workers=num_workers)
    else:
        loader = DataLoader(MapDataset(batches), batch_size=4, num_workers=num_workers)
    trainer = lightning.Trainer(
        max_steps=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader)
    assert trainer.global_step == 5
    for step, x in enumerate(seen):
        assert (x.numpy() == batches[step][0]).all()


@need("lightning", "torchdata")
@forks
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined:UserWarning")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stop", [3, 5, 7], ids=["mid-epoch", "at the end of an epoch", "in a later epoch"])
def test_lightning_resumes_exactly(
    corpus: lowtide.Corpus, tmp_path: Path, num_workers: int, stop: int
) -> None:
    """Epochs of five steps: what is trained before and after a checkpoint is what one run trains."""
    lightning: Any = import_module("lightning")
    stateful: Any = import_module("torchdata.stateful_dataloader")
    batches = corpus.batches(4, LENGTH, seed=1)
    seen: list[torch.Tensor] = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()

        def on_train_epoch_start(self) -> None:
            # Not current_epoch: Lightning 2.6 counts one too many when it resumes at the end of an epoch.
            self.trainer.train_dataloader.dataset.set_epoch(self.global_step // 5)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            x, y = batch
            seen.append(x.clone())
            return torch.nn.functional.cross_entropy(self.net(x).view(-1, 64), y.view(-1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(steps: int, checkpoint: Any = None) -> None:
        dataset = IterableDataset(batches, steps=5)
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path, filename="{step}", every_n_train_steps=stop, save_top_k=-1
        )
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            callbacks=[saving],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)
        trainer.fit(Model(), loader, ckpt_path=checkpoint)

    fit(stop + 1)  # one more than is saved, as when a run is killed
    del seen[stop:]
    fit(12, tmp_path / f"step={stop}.ckpt")
    assert len(seen) == 12
    for step, x in enumerate(seen):
        assert (x.numpy() == batches[step][0]).all(), step


def trained_by_hugging_face(dataset: Any, folder: Path, **settings: Any) -> tuple[Any, list[torch.Tensor]]:
    """Train a small GPT-2 with the Trainer; what it returns, and the inputs of each step."""
    transformers: Any = import_module("transformers")
    seen: list[torch.Tensor] = []

    class Model(transformers.GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
            assert torch.equal(input_ids, labels)
            seen.append(input_ids.clone())
            return super().forward(input_ids=input_ids, labels=labels, **more)

    config = transformers.GPT2Config(
        vocab_size=64, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        **settings,
    )
    trainer = transformers.Trainer(model=Model(config), args=arguments, train_dataset=dataset)
    return trainer.train(), seen


@need("transformers", "accelerate")
@forks
@pytest.mark.parametrize("kind", ["iterable", "map"])
def test_hugging_face_trains_with_persistent_workers(
    corpus: lowtide.Corpus, tmp_path: Path, kind: str
) -> None:
    """Inputs of the usual shape from whole batches too, and other windows in the next epoch."""
    batches = corpus.batches(8, LENGTH, seed=1)
    dataset: Any = (
        IterableDataset(batches, steps=4, as_dict=True)
        if kind == "iterable"
        else MapDataset(batches, as_dict=True)
    )
    _, seen = trained_by_hugging_face(
        dataset,
        tmp_path,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
    )
    assert {tuple(x.shape[1:]) for x in seen} == {(LENGTH,)}
    if kind == "iterable":
        assert len(seen) == 8
        assert all((x.numpy() == batches[step][0]).all() for step, x in enumerate(seen))
        return
    half = len(seen) // 2
    for epoch, part in enumerate((seen[:half], seen[half:])):
        windows = [item[0].tolist() for item in items(MapDataset(batches, epoch=epoch))]
        assert sorted(torch.cat(part).tolist()) == sorted(windows)


@need("transformers", "accelerate")
@forks
@pytest.mark.parametrize("num_workers", [0, 2])
def test_hugging_face_trains_a_gpt2(corpus: lowtide.Corpus, tmp_path: Path, num_workers: int) -> None:
    dataset = MapDataset(corpus.batches(1, LENGTH, seed=1), as_dict=True)
    trained, seen = trained_by_hugging_face(
        dataset, tmp_path, max_steps=3, per_device_train_batch_size=4, dataloader_num_workers=num_workers
    )
    assert trained.global_step == 3
    assert np.isfinite(trained.training_loss)
    assert [tuple(x.shape) for x in seen] == [(4, LENGTH)] * 3
    windows = {tuple(item["input_ids"].tolist()) for item in items(dataset)}
    assert all(tuple(row) in windows for x in seen for row in x.tolist())


@need("transformers", "accelerate")
def test_accelerate_sets_epoch_of_data_set(corpus: lowtide.Corpus, tmp_path: Path) -> None:
    """Accelerate sets the epoch of the data set, and each epoch has other windows."""
    accelerate: Any = import_module("accelerate")

    dataset = MapDataset(corpus.batches(1, LENGTH, seed=1))
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(dataset, batch_size=50))
    for epoch in range(2):
        tokens = torch.cat([x for x, _ in loader])
        expected = MapDataset(corpus.batches(1, LENGTH, seed=1), epoch=epoch)
        assert torch.equal(tokens, torch.stack([x for x, _ in items(expected)]))
