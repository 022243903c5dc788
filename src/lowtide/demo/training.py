"""A small GPT, trained on the demo's corpus by `lowtide train`, and a sample of its text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from lowtide._printable import printable
from lowtide.errors import MissingExtraError

SETTINGS: dict[str, Any] = {
    # Small enough for 700 steps per minute on two cores, after which it knows words and indentation.
    "n_layer": 4, "n_head": 4, "n_embd": 128, "length": 128, "batch_size": 8,
    "learning_rate": 3e-3,
    "max_iters": 700, "max_minutes": 1.0,
    "eval_interval": 100, "eval_iters": 10, "checkpoint_interval": 1000, "log_interval": 100,
}  # fmt: skip
SAMPLE: dict[str, Any] = {"prompt": "def __init__(self", "max_new_tokens": 300, "temperature": 0.7}


@dataclass(frozen=True, slots=True)
class Training:
    """A run that has ended."""

    metrics: list[dict[str, Any]]
    """One line per step."""
    seconds: float


def require() -> None:
    """Raise at once if a package that training needs is missing."""
    missing = [name for name in ("torch", "tokenizers") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the demo trains a small GPT, and {' and '.join(missing)} cannot be imported; run "
            "pip install 'lowtide[gpt]', or `lowtide demo --quick`, which does not train"
        )


def train(corpus: str, run: str, settings: Mapping[str, Any]) -> Training:
    """Train as ``lowtide train`` does, with its progress on the screen.

    Ctrl-C and SIGTERM, which end such a run early, end the demo.
    """
    # Read when PyTorch is first imported. Threads that spin while they wait take the cores from those that
    # they wait for: on a machine with other work a step took seven times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from lowtide._gpt import folder, metrics
    from lowtide.gpt import train as train_gpt

    start = time.monotonic()
    outcome = train_gpt(run, data=corpus, **settings)
    if outcome.end == "signal":
        raise KeyboardInterrupt
    lines = list(metrics.read(os.path.join(run, folder.METRICS)))
    return Training(lines, time.monotonic() - start)


def sample(run: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield text of the trained model, as ``lowtide sample`` does."""
    from lowtide.gpt import sample as text_of

    # A barely trained model writes control characters too.
    return (printable(part, keep="\n\t") for part in text_of(run, **settings))
