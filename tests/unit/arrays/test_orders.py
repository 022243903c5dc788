"""An order of arrays that is added with one class and one line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._arrays import orders
from lowtide._arrays.orders import RowOrder, order_kind
from lowtide._permutation import Ints
from lowtide.errors import ArgumentError


class Reversed:
    """The last row first."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, start: int, stop: int) -> Ints:
        return self.n - 1 - np.arange(start, stop)

    def places(self, rows: Ints) -> Ints:
        return self.n - 1 - rows


class ReversedOrder(RowOrder):
    name = "reversed"

    def __init__(self, array: lowtide.Array, seed: int) -> None:
        super().__init__(array, seed)
        self.permutation = Reversed(len(array))


@pytest.fixture
def array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lowtide.Array:
    monkeypatch.setattr(orders, "ORDERS", [*orders.ORDERS, ReversedOrder])
    np.save(tmp_path / "a.npy", np.arange(20).reshape(10, 2))
    return lowtide.open(tmp_path / "a.npy")


def test_registered_order_works_everywhere(array: lowtide.Array) -> None:
    name: Any = "reversed"
    with array.chunks(4, order=name) as chunks:
        assert [chunk[:, 0].tolist() for chunk in chunks] == [[18, 16, 14, 12], [10, 8, 6, 4], [2, 0]]
    with array.chunks(4, order=name) as chunks:
        next(chunks)
        state = chunks.state_dict()
        assert next(pickle.loads(pickle.dumps(chunks)))[0, 0] == 10
    with array.chunks(4, order=name) as chunks:
        chunks.load_state_dict(state)
        assert next(chunks)[0, 0] == 10
    with array.chunks(4) as chunks, pytest.raises(lowtide.errors.StateError, match="reversed"):
        chunks.load_state_dict(state)


def test_unknown_order_error_lists_known_orders(array: lowtide.Array) -> None:
    with pytest.raises(ArgumentError, match="'blocks', 'reversed', got 'sorted'"):
        array.chunks(4, order="sorted")  # type: ignore[arg-type]


def test_names_of_orders_are_unique() -> None:
    names = [kind.name for kind in orders.ORDERS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("shuffle", [None, False, 0, np.False_])
def test_false_shuffle_means_sequential_order(shuffle: object) -> None:
    assert order_kind(None, shuffle) is order_kind("sequential", None)


def test_order_and_shuffle_together_are_refused() -> None:
    with pytest.raises(ArgumentError, match="pass one of them"):
        order_kind("blocks", True)
