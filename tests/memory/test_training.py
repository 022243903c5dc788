"""Memory of training: a real run inside a real limit. The long version is benchmarks/training.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.training import arguments, environment, lines

STEPS, SETTLED = 400, 50
GIB = 2**30


def test_training_memory_is_flat_on_corpus_larger_than_container(tmp_path: Path, limited: Any) -> None:
    """A corpus of 2 GiB, most of it a hole, in a container of 1 GiB: windows come from all of it."""
    rng = np.random.default_rng(0)
    for name, size in (("train", 2 * GIB), ("val", 2**16)):
        with open(tmp_path / f"{name}.bin", "wb") as file:
            rng.integers(0, 64, 2**15, np.uint16).tofile(file)
            file.truncate(size)
    words = arguments(
        tmp_path / "run", data=tmp_path, device="cpu", vocab_size=64, n_layer=2, n_head=2, n_embd=32,
        length=64, batch_size=8, max_iters=STEPS, eval_interval=100, eval_iters=4, checkpoint_interval=50,
    )  # fmt: skip
    with limited("1 GiB") as group:
        done = group.run([sys.executable, "-W", "error", "-m", "lowtide.cli", *words], env=environment())
        assert done.returncode == 0, done.stderr
        assert group.oom_kills() == 0
    resident = [line["rss_mib"] for line in lines(tmp_path / "run")]
    assert len(resident) == STEPS
    assert max(resident[SETTLED:]) - resident[SETTLED - 1] <= 16
