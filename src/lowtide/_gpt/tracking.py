"""Weights & Biases, for those who keep their curves there."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from lowtide._gpt.metrics import Metrics
from lowtide._gpt.settings import Settings
from lowtide.errors import LowtideError, MissingExtraError


class Tracking:
    """A run there; with ``WANDB_MODE=offline`` in a folder of the run, for ``wandb sync`` later."""

    def __init__(self, settings: Settings, out: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb is not installed; pip install 'lowtide[wandb]'") from error
        try:
            self._run: Any = wandb.init(
                project="lowtide",
                name=os.path.basename(os.path.abspath(out)),
                dir=out,
                config=settings.to_json(),
            )
        except wandb.Error as error:
            raise LowtideError(
                f"wandb cannot begin a run: {error}; run `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def add(self, metrics: Metrics) -> None:
        """One step."""
        values = {name: value for name, value in asdict(metrics).items() if value is not None}
        self._run.log(values, step=metrics.step)

    def close(self) -> None:
        """Wait until everything is written or sent."""
        self._run.finish()
