"""What every peer is asked to do, and the two files that it is asked to do it with.

*tokens*: batches of 64 random windows of 1,024 tokens, as pairs of int64 tensors, from ``train.bin``.
*rows*: 4,096 rows of 1 KiB at a time, in a globally shuffled order, as a float32 array, from ``matrix.npy``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import lowtide
from benchmarks.loaders import BATCH, LENGTH, streaming

Work = Literal["tokens", "rows"]
ROWS, COLUMNS = 4096, 256
USEFUL: dict[Work, int] = {"tokens": BATCH * LENGTH * 2, "rows": ROWS * COLUMNS * 4}
"""Bytes of one batch as they lie on disk: the measure of speed, whatever a peer makes of them in memory."""


@dataclass(frozen=True)
class Place:
    """Where a peer stands: the folder with its data, its rank, and where it continues from."""

    folder: str
    rank: int = 0
    ranks: int = 1
    resumable: bool = False
    """Whether the state will be asked for; some have another class for that."""
    state: Any = None
    """What ``Stream.state`` gave, in a process that has ended; None to start at the beginning."""

    @property
    def batch(self) -> int:
        """Windows of this rank in each batch of all ranks."""
        return BATCH // self.ranks

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)


@dataclass(frozen=True)
class Stream:
    """Batches without end: pairs of tensors, or arrays of rows."""

    batches: Iterator[Any]
    state: Callable[[], Any] = lambda: None
    """The peer's own way to save where it is, to be pickled."""


@dataclass(frozen=True)
class Peer:
    """A row of a table."""

    name: str
    """``tokens/litdata``: what ``--only`` takes."""
    title: str
    how: str
    """How it is used here, in a line."""
    open: Callable[[Place], Stream]
    modules: tuple[str, ...] = ()
    """Imported before anything is measured."""
    package: str = ""
    """The distribution whose version is reported."""
    convert: Callable[[str], None] | None = None
    reads: str = ""
    """The file or folder that it reads."""
    in_order: Callable[[str], Iterable[Any]] | None = None
    """One pass from beginning to end, for the peers of rows."""
    ranks: bool = False
    """Whether it has its own way to share batches among ranks."""
    state: bool = False
    """Whether it has its own way to save where it is."""
    state_of: str = ""
    """The class that has the state, where it is not the one whose speed is measured."""

    @property
    def work(self) -> Work:
        return "tokens" if self.name.startswith("tokens/") else "rows"

    def load(self) -> None:
        """Import what it needs."""
        for module in self.modules:
            if module == "streaming":
                streaming()  # not all of it imports everywhere
            else:
                importlib.import_module(module)

    def files(self, folder: str) -> list[str]:
        """What it reads, to be put out of the page cache or into it."""
        where = Path(folder, self.reads)
        result = [where] if where.is_file() else sorted(where.rglob("*"))
        return [str(path) for path in result if path.is_file()]


def endless(passes: Callable[[int], Iterable[Any]]) -> Iterator[Any]:
    """One pass after the other."""
    epoch = 0
    while True:
        yield from passes(epoch)
        epoch += 1


def shuffled(total: int, size: int, epoch: int = 0) -> Iterator[Any]:
    """Numbers below ``total`` in a shuffled order, ``size`` at a time.

    For peers without a shuffled order: a permutation in memory, as one would write it.
    """
    order = np.random.default_rng(epoch).permutation(total)
    for start in range(0, total - size + 1, size):
        yield order[start : start + size]


def write_matrix(path: str, nbytes: int) -> None:
    """A float32 matrix whose first column is the number of the row: no two rows are the same."""
    block = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)
    with lowtide.create(path, "float32", row_shape=COLUMNS) as out:
        for start in range(0, nbytes // (4 * COLUMNS) // ROWS * ROWS, ROWS):
            block[:, 0] = np.arange(start, start + ROWS)
            out.append(block)


def write_tokens(path: str, nbytes: int) -> None:
    """Random tokens, really written: a hole in a file would be read without the device."""
    block = np.random.default_rng(0).integers(0, 50257, 2**22, dtype=np.uint16)
    with open(path, "wb") as file:
        for left in range(nbytes, 0, -block.nbytes):
            file.write(block.data.cast("B")[:left])
            block += 1
        file.flush()
        os.fsync(file.fileno())
