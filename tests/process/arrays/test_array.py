"""Arrays in other processes."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from tests.support.process import in_child

any_reader = pytest.mark.parametrize("reader", ["pread", "remap", "advise", "memmap"])
EXPECTED = np.arange(300 * 4, dtype="i4").reshape(300, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", EXPECTED)
    return tmp_path / "a.npy"


def _check(array: lowtide.Array) -> bool:
    rows = np.random.default_rng(os.getpid()).integers(0, 300, 500)
    return bool((array[rows] == EXPECTED[rows]).all() and (array.take(rows) == EXPECTED[rows]).all())


@any_reader
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_same_rows(path: Path, reader: Any, method: str) -> None:
    with lowtide.open(path, reader=reader) as array:
        assert _check(array)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_check, [array] * 4) == [True] * 4


@any_reader
def test_forked_child_reads_without_pickling(path: Path, reader: Any) -> None:
    with lowtide.open(path, reader=reader) as array:
        assert _check(array)  # helpers and contexts exist in the parent
        assert in_child(lambda: _check(array) and array.close() is None)  # type: ignore[func-returns-value]
        assert _check(array)
