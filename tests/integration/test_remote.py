"""PyTorch reads from a bucket: workers that were forked or spawned get the batches that files give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
import lowtide.torch
from tests.support.buckets import upload
from tests.support.servers import ObjectServer

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_give_the_batches_of_files(start: str, object_server: ObjectServer, tmp_path: Path) -> None:
    np.random.default_rng(0).integers(0, 50000, 400_000).astype("<u2").tofile(tmp_path / "train.bin")
    prefix = upload(object_server, tmp_path, "torch")
    file = lowtide.corpus(tmp_path)
    remote = lowtide.corpus(prefix, storage_options=object_server.options)
    remote[:10]  # the runtime of this process has started
    expected = file.batches(8, 64, seed=3, order="blocks")
    data = lowtide.torch.IterableDataset(remote.batches(8, 64, seed=3, order="blocks"))
    loader: Any = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=start, timeout=60
    )
    for step, (x, y) in zip(range(12), loader, strict=False):
        want_x, want_y = expected[step]
        np.testing.assert_array_equal(x.numpy(), want_x)
        np.testing.assert_array_equal(y.numpy(), want_y)
    assert step == 11
