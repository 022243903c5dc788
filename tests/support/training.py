"""Tiny runs of ``lowtide train``: a corpus of a few thousand tokens, a model of a few thousand weights."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lowtide._gpt import metrics
from lowtide._gpt.config import Settings, resolve

ALPHABET = " !,.?abcdefghijklmnopqrstuvwxyz"
TINY: dict[str, Any] = {
    "device": "cpu", "n_layer": 1, "n_head": 2, "n_embd": 16, "length": 8, "batch_size": 4,
    "max_iters": 12, "eval_interval": 5, "eval_iters": 3, "checkpoint_interval": 4,
}  # fmt: skip


def corpus(folder: Path, tokens: int = 5000, *, vocabulary: int = len(ALPHABET), meta: bool = True) -> Path:
    """A folder as nanoGPT's prepare.py leaves it: a pattern that can be learnt, and characters for ids."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", tokens), ("val", max(64, tokens // 10))):
        steps = rng.choice(3, count, p=[0.8, 0.1, 0.1]) + 1
        (np.cumsum(steps) % vocabulary).astype(np.uint16).tofile(folder / f"{name}.bin")
    if meta:
        names = ALPHABET[:vocabulary]
        content = {
            "vocab_size": vocabulary,
            "stoi": {c: i for i, c in enumerate(names)},
            "itos": dict(enumerate(names)),
        }
        (folder / "meta.pkl").write_bytes(pickle.dumps(content))
    return folder


def tiny(data: Path | str, **changes: Any) -> Settings:
    """Settings of a run that takes well under a second."""
    return resolve({"data": str(data), **TINY, **changes})


def arguments(out: Path, **options: Any) -> list[str]:
    """What follows ``lowtide``."""
    words = ["train", "--out", str(out)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return words


def environment(**more: str) -> dict[str, str]:
    """One thread, so that tests beside each other do not wait for each other's."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run(out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """``lowtide train`` in its own process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "lowtide.cli", *arguments(out, **options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )


def torchrun(out: Path, processes: int, **options: Any) -> subprocess.CompletedProcess[str]:
    """The same under torchrun."""
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            "-m", "lowtide.cli", *arguments(out, **options),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment(),
    )  # fmt: skip


def lines(out: Path) -> list[dict[str, Any]]:
    """The metrics of a run."""
    return list(metrics.read(out / "metrics.jsonl"))


def losses(out: Path) -> list[float]:
    """The training loss of each step, with all its digits."""
    records = lines(out)
    assert [line["step"] for line in records] == list(range(1, len(records) + 1))
    return [line["train_loss"] for line in records]
