"""Metrics of each step: ``metrics.jsonl``, one line per step and no step twice, and Weights & Biases."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import takewhile
from types import NoneType
from typing import Any

from lowtide import errors
from lowtide._extras import library
from lowtide._gpt.config import Settings
from lowtide.errors import LowtideError

_MAX_LINE = 2**16  # bytes; usual lines have about 250
_OPTIONAL = ("val_loss", "val_bpb")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one step. Losses are not rounded."""

    step: int
    """Number of updates; ``train_loss`` is before the last of them, ``val_loss`` after it."""
    train_loss: float
    val_loss: float | None
    """None if this step was not evaluated."""
    lr: float
    tokens: int
    """Since the start of the run, over all ranks."""
    tokens_per_s: float
    loader_ms: float
    """Time that this rank waited for its batch."""
    step_ms: float
    """Time of the step, without evaluation and saving."""
    rss_mib: float
    """Resident memory of this rank."""
    muon_dtype: str | None = None
    """The dtype of Muon's products; None without Muon, and in lines of 0.1."""
    val_bpb: float | None = None
    """``val_loss`` in bits per byte of text; None if the bytes of the tokens are not known."""


class Log:
    """``metrics.jsonl``, open for appending. Lines after ``step``, where the run resumes, are removed."""

    def __init__(self, path: str, step: int) -> None:
        self.path = path
        with errors.write_errors(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            kept = takewhile(lambda one: one[0]["step"] <= step, _lines(path))
            self._file.truncate(max((end for _, end in kept), default=0))

    def add(self, metrics: Metrics) -> None:
        """Append a line in one write: after a kill it is complete or absent."""
        line = memoryview((json.dumps(asdict(metrics)) + "\n").encode())
        with errors.write_errors(self.path):
            while len(line):
                line = line[self._file.write(line) :]

    def sync(self) -> None:
        """Put the lines on disk, before a checkpoint that relies on them."""
        with errors.write_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


class Tracking:
    """A run of Weights & Biases; with ``WANDB_MODE=offline`` in the run folder, for ``wandb sync`` later."""

    def __init__(self, settings: Settings, out: str) -> None:
        wandb = library("wandb", "tracking a run", "wandb")
        try:
            name = os.path.basename(os.path.abspath(out))
            self._run: Any = wandb.init(project="lowtide", name=name, dir=out, config=settings.to_json())
        except wandb.Error as error:
            raise LowtideError(
                f"wandb cannot start a run ({error}); run `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def add(self, metrics: Metrics) -> None:
        """Log a step."""
        values = {name: value for name, value in asdict(metrics).items() if value is not None}
        self._run.log(values, step=metrics.step)

    def sync(self) -> None:
        """Nothing to do: wandb writes in the background."""

    def close(self) -> None:
        """Wait until everything is written or sent."""
        self._run.finish()


def read(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file, except truncated and damaged ones."""
    path = os.fspath(path)
    with errors.read_errors(path):
        for line, _ in _lines(path):
            yield line


def _lines(path: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Each complete line and the offset of its end."""
    end = 0
    with open(path, "rb") as file:
        while data := file.readline(_MAX_LINE):
            end += len(data)
            line = _parse(data)
            if line is not None:
                yield line, end


def _parse(data: bytes) -> dict[str, Any] | None:
    """The metrics of a line, or None if it is damaged."""
    try:
        line = json.loads(data) if data.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] < 2**32:
        return None
    if not isinstance(line.get("muon_dtype"), str | NoneType):
        return None
    line.setdefault("val_bpb", None)  # not in 0.1
    for name in (field.name for field in fields(Metrics) if field.name != "muon_dtype"):
        value = line.get(name, "missing")
        number = type(value) is float or (type(value) is int and abs(value) < 2**63)
        if not number and (value is not None or name not in _OPTIONAL):
            return None
    return line
