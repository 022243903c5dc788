"""Passes in worker processes and after a fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._arrays import orders
from tests.support.process import in_child
from tests.support.rows import save


@pytest.fixture
def array(tmp_path: Path) -> Iterator[lowtide.Array]:
    save(tmp_path / "a.npy", 1000)
    with lowtide.open(tmp_path / "a.npy") as opened:
        yield opened


def _are_the_rest(chunks: Any, expected: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, chunks, expected)) and not len(chunks)


@pytest.mark.parametrize("shuffle", [False, True, "blocks"], ids=["in_order", "shuffled", "blocks"])
@pytest.mark.parametrize("reuse", [False, True])
def test_parent_and_child_continue_after_fork(tmp_path: Path, shuffle: Any, reuse: bool) -> None:
    save(tmp_path / "a.npy", 60_000)
    with lowtide.open(tmp_path / "a.npy") as array:
        options: dict[str, Any] = {"shuffle": shuffle, "budget": "2 MiB", "reuse": reuse, "prefetch": 2}
        want = [chunk.copy() for chunk in array.chunks(2000, **options)]
        chunks = array.chunks(2000, **options)
        got = []
        for i, chunk in enumerate(chunks):
            got.append(chunk.copy())
            if i in (0, 3, 20):
                assert in_child(partial(_are_the_rest, chunks, want[i + 1 :]))
        assert all(map(np.array_equal, got, want))


def test_child_does_not_write_into_parents_window(array: lowtide.Array) -> None:
    chunks = array.chunks(10, shuffle="blocks", prefetch=0)
    next(chunks)
    order = chunks._plan._order
    assert isinstance(order, orders.BlockOrder)
    assert order._held is not None
    window = order._held.rows
    before = window.copy()

    def overwrite() -> bool:
        window[:] = -1
        return True

    assert in_child(overwrite)
    assert (window == before).all()


def _sum(chunks_of: tuple[lowtide.Array, int]) -> int:
    array, seed = chunks_of
    return int(sum(chunk.sum() for chunk in array.chunks(100, shuffle=True, seed=seed)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_chunks_work_in_worker_processes(array: lowtide.Array, method: str) -> None:
    with array.chunks(10, prefetch=2) as chunks:
        next(chunks)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_sum, [(array, seed) for seed in range(4)]) == [3000 * 2999 // 2] * 4
