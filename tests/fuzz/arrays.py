"""Array files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lowtide
from tests.fuzz.harness import Target


def _make_npy(folder: Path) -> None:
    np.save(folder / "x.npy", np.arange(12, dtype="<f4").reshape(4, 3))


def _open(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        with lowtide.open(path) as array:
            repr(array)
            if array.nbytes < 2**20:
                array[...]


TARGETS = [Target("npy", _make_npy, _open)]
