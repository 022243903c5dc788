"""Checkpoints: files of a run's state, complete or absent.

They are PyTorch files, which ``archive.py`` verifies and reads without running anything. They hold no random
state: weights come from the seed once, and dropout is seeded at every step from the seed, the step and the
rank, as the batch of a step is. So a run resumes exactly, on any number of ranks.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import NoneType
from typing import Any

from lowtide import errors
from lowtide._gpt import archive
from lowtide._gpt.aliases import upgrade, without_alias
from lowtide._gpt.config import Settings
from lowtide._gpt.model import ModelConfig, skeleton, torch
from lowtide._gpt.optim import Optimiser
from lowtide._io.atomic import Partial
from lowtide._io.pace import Pace
from lowtide._io.system import write_at
from lowtide._printable import brief
from lowtide.errors import FormatError, LowtideError, StateError, missing

LAST, BEST = "checkpoint.pt", "best.pt"
FORMAT, VERSION = "lowtide checkpoint", 2
_MOST_VALUES = 10_000  # per level of a state
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_REMEDY = "restore another copy of the file, or start the run again"


@dataclass(frozen=True)
class Checkpoint:
    """State of a run, on the CPU. ``best.pt`` has no optimiser, no scaler and no position in the data."""

    step: int
    settings: Settings
    config: ModelConfig
    model: Mapping[str, Any]
    best_val_loss: float | None = None
    optimiser: Mapping[str, Any] | None = None
    scaler: Mapping[str, Any] | None = None
    batches: Mapping[str, Any] | None = None

    def save(self, path: str) -> None:
        """Write a temporary file, sync and rename: a kill in between leaves the old one."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content["settings"] = self.settings.to_json()
        content["config"] = dataclasses.asdict(self.config)
        with Partial(path) as partial:
            file = _File(partial.fd)
            try:
                torch.save({"format": FORMAT, "version": VERSION, **content}, file)  # type: ignore[arg-type]
            except BaseException as error:
                if file.error is not None:  # PyTorch's writer raises a RuntimeError in its place
                    raise errors.writing(path, file.error) from error
                raise


class _File:
    """A file for ``torch.save``: unbuffered, with few dirty bytes, and it keeps the system's error."""

    def __init__(self, fd: int) -> None:
        self._fd, self._end, self._pace = fd, 0, Pace(fd)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            write_at(self._fd, view, self._end)
        except OSError as error:
            self.error = error
            raise
        self._end += len(view)
        self._pace.wrote(self._end)
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered."""


def load(path: str) -> Checkpoint:
    """Load and verify a checkpoint."""
    try:
        content = archive.load(path)
        size = os.path.getsize(path)
    except FileNotFoundError:
        raise missing(path, "no checkpoint there; pass the folder of a run that was started") from None
    checkpoint = _parse(path, content)
    _check_weights(path, checkpoint, size)
    return checkpoint


def _parse(path: str, content: Any) -> Checkpoint:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(
            f"{path}: is a PyTorch file, but not a checkpoint of lowtide train; pass the folder of a run"
        )
    version = content.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise FormatError(
            f"{path}: the version of the checkpoint is not known ({brief(version)}, expected 1 to "
            f"{VERSION}); update lowtide"
        )
    try:
        parts = {name: content[name] for name in Checkpoint.__dataclass_fields__}
        _check_parts(parts)
        parts["settings"] = Settings(**upgrade(parts["settings"]))
        parts["config"] = ModelConfig(**without_alias(parts["config"]))
        return Checkpoint(**parts)
    except (KeyError, TypeError, LowtideError) as error:
        raise FormatError(
            f"{path}: its contents are not those of a checkpoint ({type(error).__name__}: "
            f"{brief(str(error), 500)[1:-1]}); load it with the version of lowtide that wrote it, or start "
            "the run again"
        ) from error


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse values whose types ``save`` does not write."""
    step, best = parts["step"], parts["best_val_loss"]
    if type(step) is not int or not 0 <= step < 2**32:
        raise TypeError(f"step is {brief(step)}, expected an integer >= 0")
    if type(best) not in (int, float, NoneType):
        raise TypeError(f"best_val_loss is {brief(best)}, expected a number")
    for name, depth in (("settings", 2), ("config", 1), ("scaler", 1), ("batches", 10)):
        if not (_is_plain(parts[name], depth) or (parts[name] is None and name in ("scaler", "batches"))):
            raise TypeError(f"{name} is {brief(parts[name])}, expected a dict of plain values")
    scaler = parts["scaler"] or dict.fromkeys(_SCALER, 1.0)  # empty where it was not in use
    if not all(type(scaler.get(name)) in (int, float) for name in _SCALER):
        raise TypeError(f"scaler is {brief(scaler)}, expected numbers for {', '.join(_SCALER)}")
    if not isinstance(parts["optimiser"], dict | NoneType):
        raise TypeError(f"optimiser is {brief(parts['optimiser'])}, expected a dict")
    weights = parts["model"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        for name, tensor in weights.items()
    ):
        raise TypeError("model must be a dict of tensors")


def _is_plain(value: Any, depth: int) -> bool:
    """Whether it is a dict of plain values, ``depth`` levels deep: a pickle can contain itself."""
    if not isinstance(value, dict):
        return False
    level: list[Any] = [value]
    for _ in range(depth + 1):
        if not all(isinstance(one, dict | list | tuple | str | int | float | NoneType) for one in level):
            return False
        holders = (one for one in level if isinstance(one, dict | list | tuple))
        inside = (one.values() if isinstance(one, dict) else one for one in holders)
        level = list(islice(chain.from_iterable(inside), _MOST_VALUES + 1))
        if len(level) > _MOST_VALUES:
            return False
    return not level


def _check_weights(path: str, saved: Checkpoint, size: int) -> None:
    """Refuse weights whose shapes are not the architecture's, before memory is allocated for a model."""
    numbers = size // 2  # at most: tensors may share their bytes
    model = skeleton(saved.config, len(saved.model), numbers, path)
    expected = model.state_dict()
    for name in sorted({*expected, *saved.model}):
        shape, right = (tuple(one[name].shape) if name in one else None for one in (saved.model, expected))
        if shape != right:
            raise FormatError(
                f"{path}: its weights do not fit its own architecture ({brief(name)} has the shape {shape}, "
                f"expected {right}); {_REMEDY}"
            )
    if (count := sum(one.numel() for one in model.parameters())) > numbers:
        raise FormatError(
            f"{path}: is damaged ({count} weights, expected at most {numbers} in {size} bytes); {_REMEDY}"
        )


def restore(optimiser: Optimiser, saved: Checkpoint, path: str) -> None:
    """Load a checkpoint's state into an optimiser of the same kind."""
    if saved.optimiser is None or saved.batches is None:
        raise FormatError(
            f"{path}: holds weights only, as {BEST} does, and not the state of a run; restore {LAST}, or "
            "start another run"
        )
    try:
        optimiser.load_state_dict(saved.optimiser)
    except StateError as error:
        raise FormatError(f"{path}: {error}; {_REMEDY}") from error
