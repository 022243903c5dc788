"""The loaders that benchmarks/rows.py compares all do the same work: every row once per epoch, labelled."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from benchmarks.row_loaders import BATCH, COLUMNS, LOADERS, check

BATCHES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows")
    labels = np.arange(BATCHES * BATCH)
    features = np.random.default_rng(0).random((len(labels), COLUMNS), dtype=np.float32)
    features[:, 0] = labels
    np.save(path / "x.npy", features)
    np.save(path / "y.npy", labels)
    return path


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_loader_gives_every_row_once_per_epoch(folder: Path, name: str) -> None:
    loader = LOADERS[name]
    if loader.convert is not None:
        loader.convert(str(folder))
    batches = loader.make(str(folder))
    epochs = []
    for _ in range(2):
        labels: list[int] = []
        for x, y in islice(batches, BATCHES):
            check(x, y)
            labels += y.tolist()
        assert sorted(labels) == list(range(BATCHES * BATCH))
        epochs.append(labels)
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
