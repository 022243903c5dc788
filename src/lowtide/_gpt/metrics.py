"""``metrics.jsonl``: one line a step, and no step twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from lowtide import errors

_MAX_LINE = 2**16  # bytes; those that are written have some 250


@dataclass(frozen=True, slots=True)
class Metrics:
    """What is known of one step. Losses have all their digits."""

    step: int
    """Updates done; ``train_loss`` is of the weights before the last of them, ``val_loss`` of those after."""
    train_loss: float
    val_loss: float | None
    """Where it was evaluated."""
    lr: float
    tokens: int
    """Trained on since the run began, by all ranks."""
    tokens_per_s: float
    loader_ms: float
    """That this rank waited for its batch."""
    step_ms: float
    """Of the whole step, without evaluating and saving."""
    rss_mib: float
    """Resident memory of this rank."""


class Log:
    """The file, open for adding lines. ``step`` is where the run goes on: later lines are cut off."""

    def __init__(self, path: str, step: int) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
            self._end = _end_of(path, step)
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            raise errors.writing(path, error) from error

    def add(self, metrics: Metrics) -> None:
        """One line, in one write: a kill leaves it whole or not there."""
        line = memoryview((json.dumps(asdict(metrics)) + "\n").encode())
        try:
            while len(line):
                written = os.pwrite(self._fd, line, self._end)
                line, self._end = line[written:], self._end + written
        except OSError as error:
            raise errors.writing(self.path, error) from error

    def sync(self) -> None:
        """Put the lines on disk, before a checkpoint that says they are there."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise errors.writing(self.path, error) from error

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines of a file, without those that a kill left in part or a disk damaged."""
    path = os.fspath(path)
    try:
        for line, _ in _lines(path):
            yield line
    except OSError as error:
        raise errors.reading(path, error) from error


def _end_of(path: str, step: int) -> int:
    """Where the lines of the first ``step`` steps end."""
    end = 0
    for line, behind in _lines(path):
        if line["step"] > step:
            break
        end = behind
    return end


def _lines(path: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Each whole line, and where it ends."""
    end = 0
    with open(path, "rb") as file:
        while data := file.readline(_MAX_LINE):
            end += len(data)
            line = _parsed(data)
            if line is not None:
                yield line, end


def _parsed(data: bytes) -> dict[str, Any] | None:
    """The metrics in a line, or None where it is damaged."""
    if not data.endswith(b"\n"):
        return None
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] < 2**32:
        return None
    for name in (field.name for field in fields(Metrics)):
        value = line.get(name, "missing")
        if not (
            type(value) is float
            or (type(value) is int and abs(value) < 2**63)
            or (value is None and name == "val_loss")
        ):
            return None
    return line
