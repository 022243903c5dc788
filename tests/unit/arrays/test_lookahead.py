"""Shuffled rows, read in the order of the file."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import chunks as chunks_module
from lowtide._arrays import lookahead
from lowtide._arrays.lookahead import Lookahead, RowCosts
from lowtide._arrays.orders import ShuffledOrder
from lowtide._io.extents import AHEAD
from lowtide._io.pending import Outcome
from lowtide._permutation import Shuffled

ROWS, WIDTH = 5000, 24


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lookahead") / "x.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (ROWS, WIDTH), np.uint8))
    return path


@example(memory=200_000, gap=0, places=[(10, 777), (0, ROWS)], parts=2)
@given(
    memory=st.integers(2_000, 200_000),
    gap=st.sampled_from([0, 1, 24, 100, 1000, 10**6]),
    places=st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)), min_size=1, max_size=5),
    parts=st.integers(1, 3),
)
def test_rows_match_shuffled_order(
    matrix: Path, memory: int, gap: int, places: list[tuple[int, int]], parts: int
) -> None:
    """With memory for some rows and for all of them, by one thread and by several."""
    array, order = lowtide.open(matrix), Shuffled(ROWS, 7)
    with (
        mock.patch.object(lookahead, "workers_for", return_value=parts),
        mock.patch.object(lookahead, "_SHARED", 1000),
    ):
        _check_rows(matrix, Lookahead(array, order, memory), gap, places)


def _check_rows(matrix: Path, window: Lookahead, gap: int, places: list[tuple[int, int]]) -> None:
    order = Shuffled(ROWS, 7)
    for costs in (window.device, window.cache):
        costs.per_read, costs.per_byte = gap * 1e-9, 1e-9
    data = np.load(matrix)
    for place in places:
        start, stop = sorted(place)
        out = np.zeros((stop - start, WIDTH), np.uint8)
        window.read(start, stop, out)
        assert (out == data[order(start, stop)]).all()


@pytest.mark.parametrize("budget", [100_000, 200_000, 10**7])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_uncached_pass_has_same_order_as_cached(matrix: Path, budget: int, prefetch: int) -> None:
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
        with (
            mock.patch.object(RowCosts, "gap", 10**6),
            mock.patch.object(array._reader, "submit", wraps=array._reader.submit) as submit,
        ):
            window.read(0, ROWS, np.empty((ROWS, WIDTH), np.uint8))
        reads[memory] = sum(len(call.args[0]) for call in submit.call_args_list)
    assert 2 * reads[60_000] < reads[20_000] < ROWS / 2


def test_file_that_fits_is_read_once(matrix: Path) -> None:
    array = lowtide.open(matrix)
    with mock.patch.object(array._reader, "read", wraps=array._reader.read) as read:
        for epoch_chunk in array.chunks(100, shuffle=True, seed=1, budget="16 MiB"):
            assert len(epoch_chunk)
    assert sum(len(call.args[1]) for call in read.call_args_list) == ROWS * WIDTH


def lookahead_of(chunks: lowtide.Chunks) -> Lookahead | None:
    order = chunks._plan._order
    assert isinstance(order, ShuffledOrder)
    return order._lookahead


def test_plain_pass_looks_ahead_within_64_mib(matrix: Path, tmp_path: Path) -> None:
    small = lowtide.open(matrix).chunks(100, shuffle=True)
    window = lookahead_of(small)
    assert window is not None
    assert window.whole
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**30)
    large = lowtide.open(tmp_path / "sparse", dtype="u1", shape=(-1, 1024))
    chunks = large.chunks(100, shuffle=True)
    assert 60 * 2**20 < chunks.nbytes_in_flight <= 64 * 2**20
    # Chunks that are larger than that are what was asked for: they get no lookahead.
    chunks = large.chunks(2**15, shuffle=True)
    assert lookahead_of(chunks) is None
    assert chunks.nbytes_in_flight == 3 * 2**25 + AHEAD


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("faster", [True, False])
def test_sweeps_are_used_only_if_faster(tmp_path: Path, cached: bool, faster: bool) -> None:
    data = np.random.default_rng(0).integers(0, 255, (2**16, 128), np.uint8)
    np.save(tmp_path / "x.npy", data)
    array = lowtide.open(tmp_path / "x.npy")
    measured = 0.0 if faster else 1.0
    with (
        mock.patch("lowtide._arrays.orders._SHORTEST", 1),
        mock.patch.object(Outcome, "cached", cached),
        mock.patch.object(RowCosts, "per_row", return_value=measured),
        mock.patch.object(Lookahead, "_sweep", autospec=True, side_effect=Lookahead._sweep) as sweep,
    ):
        chunks = array.chunks(64, shuffle=True, budget="3 MiB", with_rows=True)
        for rows, chunk in islice(chunks, 50):
            assert (chunk == data[rows]).all()
    assert bool(sweep.call_count) is faster


def test_rows_are_read_once_and_planned_two_windows_ahead(matrix: Path) -> None:
    array, order = lowtide.open(matrix), Shuffled(ROWS, 7)
    window = Lookahead(array, order, 40_000)
    with (
        mock.patch.object(RowCosts, "gap", 0),
        mock.patch.object(array._reader, "submit", wraps=array._reader.submit) as submit,
    ):
        for start in range(0, ROWS, 50):
            window.read(start, start + 50, np.empty((50, WIDTH), np.uint8))
            assert window._idle == np.sum(window._slots < 0) - len(window._slots) + window.rows
            if 2 * window.rows < start < ROWS - 2 * window.rows:
                assert window._idle <= window.rows // 16 + 50
                assert window._known - window._next > 1.7 * window.rows
    assert sum(call.args[0].nbytes for call in submit.call_args_list) == ROWS * WIDTH


def test_sweep_leaves_few_single_row_reads(matrix: Path) -> None:
    window = Lookahead(lowtide.open(matrix), Shuffled(ROWS, 7), 40_000)
    alone: list[Outcome] = []
    deal = window._deal

    def counted(*arguments: Any) -> Outcome:
        alone.append(deal(*arguments))
        return alone[-1]

    with mock.patch.object(window, "_deal", counted):
        for start in range(0, ROWS, 50):
            window.read(start, start + 50, np.empty((50, WIDTH), np.uint8))
    assert sum(outcome.total for outcome in alone) < ROWS / 20


def test_zero_patience_reads_row_by_row(matrix: Path) -> None:
    window = Lookahead(lowtide.open(matrix), order := Shuffled(ROWS, 7), 40_000)
    data = np.load(matrix)
    with mock.patch.object(window, "_sweep", side_effect=AssertionError):
        for start in range(0, ROWS, 500):
            out = np.empty((500, WIDTH), np.uint8)
            window.read(start, start + 500, out, patience=0)
            assert (out == data[order(start, start + 500)]).all()
    assert not len(window._pending)


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
    assert not window.holds(10, 20)
    window.read(0, 10, out)
    assert (out == np.load(matrix)[order(0, 10)]).all()


def test_fortran_order_array_is_shuffled_correctly(tmp_path: Path) -> None:
    data = np.asfortranarray(np.arange(6000).reshape(2000, 3))
    np.save(tmp_path / "f.npy", data)
    array = lowtide.open(tmp_path / "f.npy")
    for budget in (30_000, 10**6):
        chunks = [*array.chunks(10, shuffle=True, budget=budget, with_rows=True)]
        assert all((chunk == data[rows]).all() for rows, chunk in chunks)


def test_windows_are_cheaper_where_reads_are_expensive() -> None:
    cloud, cache = RowCosts(1 / 3000, 1 / 125e6), RowCosts(1e-6, 2e-10)
    assert cloud.per_row(1024, spacing=8) < cloud.per_read / 4
    assert cloud.per_row(1024, spacing=2) < cloud.per_read / 12
    assert cache.per_row(1024, spacing=64) > cache.per_read
    assert cache.per_row(4, spacing=8) < cache.per_read
    cache.measured = 5.0
    assert cache.per_row(4, spacing=8) == 5.0


@pytest.mark.parametrize(
    ("width", "nanoseconds", "pays"),
    [(8, 350, True), (16, 350, True), (128, 350, True), (512, 450, False), (1024, 700, False)],
)
def test_sweep_pays_for_cached_rows_only_if_they_are_tiny(
    tmp_path: Path, width: int, nanoseconds: float, pays: bool
) -> None:
    """256 MiB with the default budget; the times of reads are those of a fast processor with two cores."""
    path = tmp_path / "x.bin"
    with open(path, "wb") as file:
        file.truncate(256 * 2**20)
    array = lowtide.open(path, dtype=np.dtype((np.void, width)))
    window = Lookahead(array, Shuffled(len(array), 7), 60 * 2**20)
    assert window.pays(1e-9 * nanoseconds, cached=True) is pays


def test_chunks_dealt_together_stay_within_budget(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((4096, 64))
    np.save(tmp_path / "x.npy", array)
    with lowtide.open(tmp_path / "x.npy") as a:
        order = np.concatenate([rows for rows, _ in a.chunks(100, shuffle=True, seed=3, with_rows=True)])
        seen = set()
        for budget in range(a.nbytes, 4 * a.nbytes, a.nbytes // 16):
            chunks = a.chunks(100, shuffle=True, seed=3, budget=budget)
            seen.add(chunks._plan.together)
            with mock.patch.object(chunks_module, "_TOGETHER", 1):
                alone = a.chunks(100, shuffle=True, seed=3, budget=budget).nbytes_in_flight
            more = (chunks._plan.together - 1) * 100 * a.row_nbytes
            assert chunks.nbytes_in_flight == alone + more <= budget
            got = list(chunks)
            np.testing.assert_array_equal(np.concatenate(got), array[order])
            assert len({chunk.ctypes.data for chunk in got}) == len(got)  # each has its own memory
        assert (min(seen), max(seen)) == (1, 8)
        assert len(seen) > 3
        assert a.chunks(100, shuffle=True, budget=4 * a.nbytes, reuse=True)._plan.together == 1
        pair = lowtide.zip(a, a)
        assert pair.chunks(100, shuffle=True, budget=8 * a.nbytes).nbytes_in_flight < 3 * a.nbytes + 2**24
