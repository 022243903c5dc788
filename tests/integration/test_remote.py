"""PyTorch reads from a bucket: workers that were forked or spawned get the batches that files give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
import lowtide.torch
from tests.support import training
from tests.support.buckets import upload
from tests.support.command import lowtide as lowtide_command
from tests.support.servers import ObjectServer

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_remote_batches_in_workers_match_files(
    start: str, object_server: ObjectServer, tmp_path: Path
) -> None:
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


def test_training_from_bucket_matches_file(object_server: ObjectServer, tmp_path: Path) -> None:
    """Blocks are the default of an address; the losses are those of the file in the same order."""
    data = training.corpus(tmp_path / "data")
    prefix = upload(object_server, data, "training")
    losses = []
    for name, source, more in (("bucket", prefix, {}), ("file", data, {"order": "blocks"})):
        words = training.arguments(tmp_path / name, data=source, **training.TINY, **more)
        done = lowtide_command(*words, **object_server.environment())
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([record["train_loss"] for record in map(json.loads, lines) if "train_loss" in record])
    assert losses[0] == losses[1]
    assert len(losses[0]) >= 12
    assert json.loads((tmp_path / "bucket" / "settings.json").read_text())["order"] == "blocks"
    assert (tmp_path / "bucket" / "tokenizer.json").exists()
