"""Passes over arrays: pairs of rows, row numbers, epochs, and the end of a pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import orders
from lowtide._permutation import BlockShuffled, Shuffled, key_of
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError, BusyError, ClosedError, StateError

Shuffle = bool | Literal["blocks"]
SHUFFLES: tuple[Shuffle, ...] = (False, True, "blocks")
any_shuffle = pytest.mark.parametrize("shuffle", SHUFFLES, ids=["in_order", "shuffled", "blocks"])


def save(path: Path, rows: int, width: int, dtype: str = "i4") -> lowtide.Array:
    """Rows that hold their own number."""
    np.save(path, np.repeat(np.arange(rows, dtype=dtype)[:, None], width, axis=1))
    return lowtide.open(path)


def holds_window(chunks: lowtide.Chunks) -> bool:
    order = chunks._plan._order
    return isinstance(order, orders.BlockOrder) and order._holds_window


@pytest.fixture
def array(tmp_path: Path) -> Iterator[lowtide.Array]:
    with save(tmp_path / "a.npy", 1000, 3) as opened:
        yield opened


# Features and labels


@any_shuffle
@pytest.mark.parametrize("options", [{}, {"budget": "40 MiB"}], ids=["rows", "budget too"])
@pytest.mark.parametrize("width", [100, 2000], ids=["window held", "window too wide"])
def test_arrays_of_different_widths_are_paired_row_by_row(
    tmp_path: Path, shuffle: Shuffle, options: dict[str, Any], width: int
) -> None:
    settings: dict[str, Any] = {"rows": 300, "shuffle": shuffle, "seed": 3, **options}
    with save(tmp_path / "x.npy", 10_000, width) as x, save(tmp_path / "y.npy", 10_000, 1, "i8") as y:
        assert holds_window(x.chunks(**settings)) == (shuffle == "blocks" and width == 100)
        pairs = zip(x.chunks(**settings), y.chunks(**settings), strict=True)
        assert sum(int((one[:, 0] == other[:, 0]).sum()) for one, other in pairs) == 10_000


@given(
    rows=st.integers(0, 3000),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
    widths=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    chunk=st.integers(1, 500),
    shuffle=st.sampled_from(SHUFFLES),
    window=st.integers(1, 4096),
    block=st.integers(1, 40),
    prefetch=st.integers(0, 2),
)
def test_order_does_not_depend_on_row_width(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    seed: int,
    epoch: int,
    widths: tuple[int, int],
    chunk: int,
    shuffle: Shuffle,
    window: int,
    block: int,
    prefetch: int,
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "epoch": epoch, "prefetch": prefetch}
    with (
        save(folder / "x.npy", rows, widths[0]) as x,
        save(folder / "y.npy", rows, widths[1], "i2") as y,
        mock.patch.multiple(orders, _WINDOW=window, _BLOCK=block),
    ):
        pairs = list(zip(x.chunks(chunk, **options), y.chunks(chunk, **options), strict=True))
    seen = [number for one, _ in pairs for number in one[:, 0].tolist()]
    assert seen == [number for _, other in pairs for number in other[:, 0].tolist()]
    assert sorted(seen) == list(range(rows))


def test_block_shuffled_chunks_follow_permutation(tmp_path: Path) -> None:
    for width in (1, 2000):
        with save(tmp_path / "x.npy", 10_000, width) as x:
            for options in ({"rows": 512}, {"budget": "1 MiB"}, {"rows": 7, "budget": "1 MiB"}):
                got = [chunk[:, 0].copy() for chunk in x.chunks(shuffle="blocks", seed=5, **options)]
                assert (np.concatenate(got) == BlockShuffled(10_000, 256, 16, 5)(0, 10_000)).all()


@pytest.mark.parametrize("width", [1, 1024, 1025])
def test_window_is_held_only_within_its_share_of_budget(tmp_path: Path, width: int) -> None:
    with save(tmp_path / "x.npy", 5000, width) as x:
        assert holds_window(x.chunks(10, shuffle="blocks")) == (
            width <= 1024
        )  # 4,096 rows of 4 KiB are 16 MiB
        small = x.chunks(10, shuffle="blocks", budget=40 * 4 * width)
        assert not holds_window(small)
        assert small.nbytes_in_flight <= 40 * 4 * width


def test_window_is_derived_once_not_per_chunk(tmp_path: Path) -> None:
    for width in (1, 1025):
        with save(tmp_path / "x.npy", 5000, width) as x:
            with mock.patch.object(BlockShuffled, "window_shuffle", autospec=True) as derive:
                derive.side_effect = lambda order, window: Shuffled(
                    order.window_bounds(window)[1] - order.window_bounds(window)[0], window
                )
                for _ in x.chunks(10, shuffle="blocks", prefetch=0):
                    pass
            assert derive.call_count == 2


def test_state_with_blocks_in_bytes_is_rejected(array: lowtide.Array) -> None:
    """Version 0.1 chose blocks by their bytes: its positions mean other rows."""
    chunks = array.chunks(100, shuffle="blocks")
    old = chunks.state_dict() | {"block": 87381, "window": 16, "position": 3}
    del old["epoch"]
    with pytest.raises(StateError, match="block was 87381 and is 256"):
        chunks.load_state_dict(old)


# Row numbers


@any_shuffle
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("reuse", [False, True], ids=["own", "reuse"])
@pytest.mark.parametrize("options", [{"rows": 90}, {"budget": 20_000}], ids=str)
def test_with_rows_yields_row_numbers_of_chunks(
    array: lowtide.Array, shuffle: Shuffle, prefetch: int, reuse: bool, options: dict[str, Any]
) -> None:
    options = {"shuffle": shuffle, "seed": 2, "prefetch": prefetch, "reuse": reuse, **options}
    seen = []
    for rows, chunk in array.chunks(with_rows=True, **options):
        assert rows.dtype == np.int64
        assert (chunk == array[rows]).all()
        assert (chunk[:, 0] == rows).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(1000))


def test_row_numbers_count_towards_budget(tmp_path: Path) -> None:
    with save(tmp_path / "tiny.npy", 100_000, 1, "i4") as array:
        plain, numbered = array.chunks(budget="1 MiB"), array.chunks(budget="1 MiB", with_rows=True)
        assert numbered.nbytes_in_flight <= 2**20
        assert 0.3 < numbered.rows / plain.rows < 0.34  # 12 bytes instead of 4
        fixed = array.chunks(1000, with_rows=True).nbytes_in_flight
        assert fixed == array.chunks(1000).nbytes_in_flight + 3 * 8 * 1000


def test_state_does_not_depend_on_with_rows(array: lowtide.Array) -> None:
    one, other = array.chunks(90, shuffle=True), array.chunks(90, shuffle=True, with_rows=True)
    next(one)
    other.load_state_dict(one.state_dict())
    rows, chunk = next(other)
    assert (chunk[:, 0] == rows).all()
    assert (chunk == next(one)).all()


# Epochs


def numbers(array: lowtide.Array, **options: Any) -> list[int]:
    return [int(row) for chunk in array.chunks(64, **options) for row in chunk[:, 0]]


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_each_epoch_has_its_own_order(array: lowtide.Array, shuffle: Shuffle) -> None:
    orders = [tuple(numbers(array, shuffle=shuffle, seed=9, epoch=epoch)) for epoch in range(4)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert orders[0] == tuple(numbers(array, shuffle=shuffle, seed=9))
    assert orders[2] == tuple(numbers(array, shuffle=shuffle, seed=np.int64(9), epoch=np.int64(2)))
    assert orders[1] != tuple(numbers(array, shuffle=shuffle, seed=10))


def test_epoch_0_uses_order_of_seed(array: lowtide.Array) -> None:
    assert numbers(array, shuffle=True, seed=4, epoch=0) == Shuffled(1000, 4)(0, 1000).tolist()
    assert numbers(array, shuffle=True, seed=4, epoch=3) == Shuffled(1000, key_of(4, 3))(0, 1000).tolist()


def test_sequential_epoch_is_in_file_order(array: lowtide.Array) -> None:
    assert numbers(array, epoch=5) == list(range(1000))


@pytest.mark.parametrize("epoch", [-1, 1.0, None, "1"])
def test_invalid_epoch_raises(array: lowtide.Array, epoch: Any) -> None:
    with pytest.raises(ArgumentError, match="epoch must be"):
        array.chunks(10, shuffle=True, epoch=epoch)


def test_state_without_epoch_is_loaded_as_epoch_0(array: lowtide.Array) -> None:
    """As version 0.1 saved them."""
    state = array.chunks(90, shuffle=True).state_dict() | {"position": 2, "shuffle": True}
    del state["epoch"], state["order"]
    chunks = array.chunks(90, shuffle=True)
    chunks.load_state_dict(state)
    assert (next(chunks)[:, 0] == Shuffled(1000)(180, 270)).all()
    with pytest.raises(StateError, match="epoch was 0 and is 1"):
        array.chunks(90, shuffle=True, epoch=1).load_state_dict(state)


@pytest.mark.parametrize("true", [True, np.True_, 1, np.int64(1)])
@pytest.mark.parametrize("false", [False, np.False_, 0])
def test_shuffle_accepts_numpy_booleans(array: lowtide.Array, true: Any, false: Any) -> None:
    assert numbers(array, shuffle=true) == numbers(array, shuffle=True)
    assert numbers(array, shuffle=false) == list(range(1000))
    assert array.chunks(5, shuffle=true).state_dict()["order"] == "shuffle"


@pytest.mark.parametrize("shuffle", ["rows", 2, -1, 1.0, b"blocks", np.array([True]), []])
def test_invalid_shuffle_raises(array: lowtide.Array, shuffle: Any) -> None:
    with pytest.raises(ArgumentError, match="shuffle must be False, True or 'blocks'"):
        array.chunks(10, shuffle=shuffle)


# The end


@any_shuffle
def test_second_loop_over_chunks_raises(array: lowtide.Array, shuffle: Shuffle) -> None:
    chunks = array.chunks(300, shuffle=shuffle, epoch=4)
    assert sum(map(len, chunks)) == 1000
    for loop in (iter, list, lambda chunks: list(zip(chunks, [1], strict=False))):
        with pytest.raises(ClosedError, match=r"a\.npy: .* exhausted .*array\.chunks\(\.\.\., epoch=5\)"):
            loop(chunks)
    for _ in range(3):
        assert next(chunks, None) is None
        with pytest.raises(StopIteration):
            next(chunks)
    assert len(chunks) == 0


def test_taking_chunks_with_islice_ends(array: lowtide.Array) -> None:
    chunks, groups = array.chunks(100), []
    while group := list(islice(chunks, 4)):
        groups.append(len(group))
    assert groups == [4, 4, 2]


def test_loop_can_continue_after_break(array: lowtide.Array) -> None:
    chunks = array.chunks(100)
    first = list(itertools.islice(chunks, 3))
    assert len(first) == 3
    assert iter(chunks) is chunks
    assert len(list(chunks)) == 7


def test_exhausted_chunks_restart_from_state(array: lowtide.Array) -> None:
    chunks = array.chunks(100)
    start = chunks.state_dict()
    assert len(list(chunks)) == 10
    end = chunks.state_dict()
    chunks.load_state_dict(start)
    assert len(list(chunks)) == 10
    resumed = array.chunks(100)
    resumed.load_state_dict(end)
    assert list(resumed) == []  # a run that was saved at the end of an epoch


def test_empty_array_gives_no_chunks(tmp_path: Path) -> None:
    with save(tmp_path / "empty.npy", 0, 3) as array:
        for shuffle in SHUFFLES:
            assert list(array.chunks(5, shuffle=shuffle)) == []


def test_repr_shows_position_of_pass(array: lowtide.Array) -> None:
    chunks = array.chunks(300, shuffle="blocks", seed=7, epoch=2)
    about = f"<lowtide.Chunks of {array.path!r}, rows=300, order='blocks', seed=7, epoch=2, "
    about += f"at most {format_size(chunks.nbytes_in_flight)} in flight, "
    assert repr(chunks) == about + "next 0 of 4>"
    next(chunks)
    assert repr(chunks) == about + "next 1 of 4>"
    list(chunks)
    assert repr(chunks) == about + "next 4 of 4, exhausted>"
    chunks.close()
    assert repr(chunks) == about + "next 4 of 4, closed>"


@pytest.mark.parametrize("prefetch", [0, 1])
def test_reused_chunks_in_second_thread_raise(array: lowtide.Array, prefetch: int) -> None:
    with array.chunks(2, reuse=True, prefetch=prefetch) as chunks, ThreadPoolExecutor(1) as other:
        chunk = next(chunks)
        before = chunk.copy()
        with pytest.raises(BusyError, match="reuse=False"):
            other.submit(next, chunks).result(30)
        assert (chunk == before).all()
        assert len(list(chunks)) == -(-len(array) // 2) - 1, "the first continues"


def test_unstarted_chunks_with_reuse_work_in_another_thread(array: lowtide.Array) -> None:
    with array.chunks(2, reuse=True) as chunks, ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: sum(1 for _ in chunks)).result(30) == -(-len(array) // 2)
