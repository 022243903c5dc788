"""Windows of shuffled rows, read in the order of the file."""

from __future__ import annotations

import pickle
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import lookahead
from lowtide._arrays.lookahead import Costs, Lookahead
from lowtide._arrays.orders import ShuffledOrder
from lowtide._io.pending import Outcome
from lowtide._permutation import Shuffled

ROWS, WIDTH = 5000, 24


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lookahead") / "x.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (ROWS, WIDTH), np.uint8))
    return path


@given(
    memory=st.integers(2_000, 200_000),
    gap=st.sampled_from([0, 1, 24, 100, 1000, 10**6]),
    places=st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)), min_size=1, max_size=5),
)
def test_rows_are_those_of_the_order(
    matrix: Path, memory: int, gap: int, places: list[tuple[int, int]]
) -> None:
    array, order = lowtide.open(matrix), Shuffled(ROWS, 7)
    window = Lookahead(array, order, memory)
    window.costs.per_read, window.costs.per_byte = gap * 1e-9, 1e-9
    data = np.load(matrix)
    for place in places:
        start, stop = sorted(place)
        out = np.zeros((stop - start, WIDTH), np.uint8)
        window.read(start, stop, out)
        assert (out == data[order(start, stop)]).all()


@pytest.mark.parametrize("budget", [100_000, 200_000, 10**7])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_pass_that_is_not_cached_gives_every_row_in_the_same_order(
    matrix: Path, budget: int, prefetch: int
) -> None:
    array = lowtide.open(matrix)
    expected = np.concatenate([*array.chunks(100, shuffle=True, seed=3)])
    with (
        mock.patch("lowtide._arrays.orders._SHORTEST", 1),
        mock.patch.object(Outcome, "cached", False),
    ):
        chunks = array.chunks(100, shuffle=True, seed=3, budget=budget, prefetch=prefetch)
        assert chunks.nbytes_in_flight <= budget
        first = [next(chunks) for _ in range(17)]
        state, copy = chunks.state_dict(), pickle.loads(pickle.dumps(chunks))
        rest = [*chunks]
        assert (np.concatenate(first + rest) == expected).all()
        again = array.chunks(100, shuffle=True, seed=3, budget=budget)
        again.load_state_dict(state)
        assert (np.concatenate([*again]) == np.concatenate(rest)).all()
        assert (np.concatenate([*copy]) == np.concatenate(rest)).all()


def test_longer_windows_need_fewer_reads(matrix: Path) -> None:
    reads = {}
    for memory in (20_000, 60_000):
        array = lowtide.open(matrix)
        window = Lookahead(array, Shuffled(ROWS, 7), memory)
        window.costs.per_read, window.costs.per_byte = 1e-3, 1e-9
        with mock.patch.object(array._reader, "submit", wraps=array._reader.submit) as submit:
            window.read(0, ROWS, np.empty((ROWS, WIDTH), np.uint8))
        reads[memory] = sum(len(call.args[0]) for call in submit.call_args_list)
    assert 2 * reads[60_000] < reads[20_000] < ROWS / 2


def test_file_that_fits_is_read_once(matrix: Path) -> None:
    array = lowtide.open(matrix)
    with mock.patch.object(array._reader, "read", wraps=array._reader.read) as read:
        for epoch_chunk in array.chunks(100, shuffle=True, seed=1, budget="16 MiB"):
            assert len(epoch_chunk)
    assert sum(len(call.args[1]) for call in read.call_args_list) == ROWS * WIDTH


def test_no_memory_is_used_without_a_budget(matrix: Path) -> None:
    chunks = lowtide.open(matrix).chunks(100, shuffle=True)
    order = chunks._plan._order
    assert isinstance(order, ShuffledOrder)
    assert order._lookahead is None


def test_closing_releases_the_window(matrix: Path) -> None:
    chunks = lowtide.open(matrix).chunks(100, shuffle=True, budget="16 MiB")
    next(chunks)
    order = chunks._plan._order
    assert isinstance(order, ShuffledOrder)
    assert order._lookahead is not None
    assert order._lookahead.holds(0, ROWS)
    chunks.close()
    assert not order._lookahead.holds(0, 1)


def test_failure_leaves_no_half_read_window(matrix: Path) -> None:
    array, order = lowtide.open(matrix), Shuffled(ROWS, 7)
    window = Lookahead(array, order, 30_000)
    out = np.empty((10, WIDTH), np.uint8)
    window.read(0, 10, out)
    with (
        mock.patch.object(array._reader, "submit", side_effect=OSError("no")),
        pytest.raises(OSError, match="no"),
    ):
        window.read(4000, 4010, out)
    assert not window.holds(0, 10)
    window.read(0, 10, out)
    assert (out == np.load(matrix)[order(0, 10)]).all()


def test_arrays_in_columns_are_not_read_by_runs(tmp_path: Path) -> None:
    data = np.asfortranarray(np.arange(6000).reshape(2000, 3))
    np.save(tmp_path / "f.npy", data)
    array = lowtide.open(tmp_path / "f.npy")
    for budget in (30_000, 10**6):
        chunks = [*array.chunks(10, shuffle=True, budget=budget, with_rows=True)]
        assert all((chunk == data[rows]).all() for rows, chunk in chunks)


class TestCosts:
    def test_short_reads_say_what_a_read_costs(self) -> None:
        costs = Costs()
        costs.learn(reads=100, nbytes=100 * 1024, seconds=0.5)
        assert costs.per_read == pytest.approx(0.005)

    def test_long_reads_say_what_a_byte_costs(self) -> None:
        costs = Costs()
        costs.learn(reads=4, nbytes=4 * 2**20, seconds=4 * 2**20 / 1e8)
        assert costs.per_byte == pytest.approx(1e-8)

    def test_one_slow_moment_counts_for_half(self) -> None:
        costs = Costs()
        for seconds in (0.1, 10.0):
            costs.learn(reads=100, nbytes=100, seconds=seconds)
        assert costs.per_read == pytest.approx(0.01)

    def test_reads_between_say_nothing(self) -> None:
        costs = Costs()
        before = costs.gap
        costs.learn(reads=1, nbytes=(lookahead._SHORT + lookahead._LONG) // 2, seconds=9.0)
        assert costs.gap == before
