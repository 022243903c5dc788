"""A small GPT, trained on the corpus of the demo as `lowtide train` does, and a sample of its text."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lowtide._printable import printable
from lowtide.errors import MissingExtraError

if TYPE_CHECKING:
    from lowtide._gpt.config import Settings

SETTINGS: dict[str, Any] = {
    # 700 steps per minute on two fast cores, after which it knows words and indentation; see ``fit``.
    "n_layer": 4, "n_head": 4, "n_embd": 128, "length": 128, "batch_size": 8,
    "learning_rate": 3e-3,
    "max_iters": 700, "max_minutes": 1.0,
    "eval_interval": 100, "eval_iters": 10, "checkpoint_interval": 1000, "log_interval": 100,
}  # fmt: skip
SMALLER: list[dict[str, Any]] = [
    {},
    {"batch_size": 4},
    {"batch_size": 4, "n_layer": 3, "n_embd": 96},
    {"batch_size": 4, "n_layer": 2, "n_embd": 96, "length": 64},
    {"batch_size": 4, "n_layer": 2, "n_head": 2, "n_embd": 64, "length": 64},
]
"""Changes to the settings for slower machines, from the largest model to the smallest."""
_VOCABULARY = 1024
_TRIAL = 0.5  # seconds
_SHARE = 0.8  # of the time limit for steps; evaluations take the rest
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


def fit(
    settings: Mapping[str, Any], step_seconds: Callable[[Settings], float] | None = None
) -> dict[str, Any]:
    """The settings with the largest model of ``SMALLER`` whose steps fit into ``max_minutes`` here."""
    from lowtide._gpt.config import resolve

    _prepare_torch()
    limit = _SHARE * 60 * settings["max_minutes"] / settings["max_iters"]
    for change in SMALLER:
        candidate = {**settings, **change}
        resolved = resolve({"data": "-", "device": "cpu", **candidate, "vocab_size": _VOCABULARY})
        if (step_seconds or _step_seconds)(resolved) <= limit:
            break
    return candidate


def _step_seconds(settings: Settings) -> float:
    """Time per step of training, measured for a fraction of a second."""
    from lowtide._gpt import optim
    from lowtide._gpt.loop import model_config
    from lowtide._gpt.model import GPT, torch
    from lowtide._gpt.train import keep_heap

    keep_heap()  # as training does
    model = GPT(model_config(settings))
    optimiser = optim.make(model, settings)
    ids = torch.zeros((settings.batch_size, settings.length), dtype=torch.int64)
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < _TRIAL:
        start = time.perf_counter()
        model(ids, ids)[1].backward()
        optimiser.step()
        optimiser.zero_grad()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])  # the first one allocates memory


def _prepare_torch() -> None:
    # Read when PyTorch is first imported. Threads that spin while they wait take cores from the threads that
    # compute: on a machine with other work a step took seven times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def train(corpus: str, run: str, settings: Mapping[str, Any]) -> Training:
    """Train as ``lowtide train`` does, with its progress on the screen.

    Ctrl-C and SIGTERM, which end such a run early, end the demo.
    """
    _prepare_torch()
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
