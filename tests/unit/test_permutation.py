"""Orders: permutations without memory, and as random as the tests below can tell.

The statistical tests use fixed seeds, so that each either always passes or always fails; their thresholds lie
where a good permutation passes nearly surely and a poor one, with fewer rounds say, does not.
"""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import _permutation as orders
from lowtide._permutation import BlockShuffled, Kept, Order, Sequential, Shuffled
from tests.support.examples import EXAMPLES

LARGE = [2**16, 10**6 + 3, 2**32 - 1, 2**32, 2**32 + 1, 10**12, 2**53 + 1, 2**62, 2**63 - 1]
seeds = st.integers(-(2**70), 2**70)


@lru_cache(maxsize=200)
def _shuffled(n: int, seed: int, rounds: int) -> np.ndarray:
    rows = Shuffled(n, seed)(0, n)
    rows.flags.writeable = False
    return rows


def shuffled(n: int, seed: int) -> np.ndarray:
    """All rows of an order, which several tests look at."""
    return _shuffled(n, seed, orders._ROUNDS)


def assert_permutation(order: Order, n: int) -> None:
    rows = order(0, n)
    assert rows.dtype == np.int64
    assert (np.bincount(rows, minlength=n) == 1).all() if n else not len(rows)
    assert (order.places(rows) == np.arange(n)).all()


@pytest.mark.parametrize("start", range(0, 3000, 500))
def test_every_small_n_is_permuted(start: int) -> None:
    for n in range(start, start + 500, 7 if start else 1):
        assert_permutation(Shuffled(n, seed=n), n)


@pytest.mark.parametrize("n", [4095, 4096, 4097, 4098, 5000, 6561, 2**14, 99_991, 300_000])
def test_permutations_around_table_limit_are_valid(n: int) -> None:
    for seed in range(3):
        assert_permutation(Shuffled(n, seed), n)


@given(n=st.integers(0, 9000), seed=seeds, data=st.data())
def test_part_of_order_matches_full_order(n: int, seed: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    for order in (Sequential(n), Shuffled(n, seed), BlockShuffled(n, 7, 5, seed)):
        whole = order(0, n)
        assert (order(start, stop) == whole[start:stop]).all()
        assert (order.places(whole[start:stop]) == np.arange(start, stop)).all()
        kept = whole.copy()
        whole[:] = 0  # what is handed out is the caller's own
        assert (order(0, n) == kept).all()


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize("seed", [0, 1, -1, 2**64])
def test_large_permutations_are_valid_in_samples(n: int, seed: int) -> None:
    order = Shuffled(n, seed)
    for start in {0, n // 3, n // 2, n - 2000}:
        rows = order(start, start + 2000)
        assert 0 <= rows.min() <= rows.max() < n
        assert len(np.unique(rows)) == 2000
        assert (order.places(rows) == np.arange(start, start + 2000)).all()
        # Spread over the whole range: the mean of 2,000 uniform numbers, to 5 standard deviations.
        assert abs(rows.astype(float).mean() / n - 0.5) < 5 / math.sqrt(12 * 2000)


def test_memory_does_not_depend_on_the_number_of_rows() -> None:
    tracemalloc.start()
    try:
        for n in LARGE:
            Shuffled(n, 0)(n - 1000, n)
            order = BlockShuffled(n, 1000, 16, 0)
            order(n - 1000, n)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_golden_values_never_change() -> None:
    """A saved position means the same rows in every version; changing these breaks every saved state."""
    golden = {
        (10, 0): [7, 8, 0, 6, 4, 9, 5, 1],
        (1000, 1): [625, 395, 429, 916, 758, 207, 185, 684],
        (4097, 7): [3681, 3828, 3038, 3012, 1292, 2257, 1462, 2857],
        (10**6, 0): [430591, 928485, 689489, 130141, 665917, 163662, 652984, 576377],
        (10**6, -5): [711853, 233140, 252898, 460880, 914856, 361161, 893994, 419281],
        (10**12, 1337): [
            108546925414,
            262850331070,
            682924461922,
            966591658446,
            687761163186,
            394248450583,
            827316622696,
            127458252184,
        ],
        (2**62, 2**100): [
            251470342614285255,
            3286533534558495858,
            206823340821832121,
            3619216820535207366,
            4204278441731081447,
            3482249195272635953,
            2563987917701141454,
            552417082895843345,
        ],
    }
    for (n, seed), rows in golden.items():
        assert Shuffled(n, seed)(0, 8).tolist() == rows, (n, seed)
    assert BlockShuffled(10**6, 100, 16, 3)(0, 8).tolist() == [
        738088,
        10213,
        705464,
        254696,
        604078,
        687329,
        443661,
        775053,
    ]


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64])
def test_numpy_integer_seeds_match_python_integers(kind: type) -> None:
    assert (Shuffled(5000, kind(5))(0, 100) == Shuffled(5000, 5)(0, 100)).all()


def test_seeds_of_any_size_and_sign_give_different_orders() -> None:
    some = [0, 1, -1, 2, -2, 2**63, 2**64, 2**64 + 1, -(2**64), 2**128, 10**30, 3 * 2**64]
    for n in (100, 10**6):
        firsts = {tuple(Shuffled(n, seed)(0, 10).tolist()) for seed in some}
        assert len(firsts) == len(some)


# How random it looks


def chi_square(counts: np.ndarray, expected: float) -> float:
    """In standard deviations from its mean: beyond 5 is not by chance."""
    free = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_permutation_of_few_rows_is_equally_likely(n: int) -> None:
    trials = min(6 * EXAMPLES * math.factorial(n), 600 * EXAMPLES)
    seen = Counter(tuple(Shuffled(n, seed)(0, n).tolist()) for seed in range(trials))
    counts = np.array(list(seen.values()) + [0] * (math.factorial(n) - len(seen)))
    assert abs(chi_square(counts, counts.sum() / math.factorial(n))) < 5


# One below, one above the border, and sizes with much and with little cycle walking.
SIZES = [1000, 4097, 10_000, 65_537]


def positions(n: int, seed_count: int, cells: int) -> np.ndarray:
    """How often a row of the i-th part of the file came in the j-th part of the order."""
    counts = np.zeros((cells, cells))
    for seed in range(seed_count):
        rows = shuffled(n, seed)
        np.add.at(counts, (rows * cells // n, np.arange(n) * cells // n), 1)
    return counts


@pytest.mark.parametrize("n", SIZES)
def test_place_in_order_is_independent_of_row(n: int) -> None:
    counts = positions(n, 40, 20)
    rows = np.diff(np.ceil(np.arange(21) * n / 20))
    expected = 40 * rows[:, None] * rows[None, :] / n
    # Row and column sums are fixed, so that 19 x 19 are free; each varies a little less than a Poisson count.
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 19 * 19) / math.sqrt(2 * 19 * 19) < 5


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("lag", [1, 2, 3, 64, 101])
def test_rows_at_fixed_lag_are_uncorrelated(n: int, lag: int) -> None:
    correlations = []
    for seed in range(20):
        rows = shuffled(n, seed).astype(float)
        correlations.append(np.corrcoef(rows[:-lag], rows[lag:])[0, 1] * math.sqrt(n))
    assert abs(np.mean(correlations)) * math.sqrt(20) < 5
    assert np.std(correlations) < 2


@pytest.mark.parametrize("n", SIZES)
def test_low_and_high_digits_are_independent(n: int) -> None:
    """Feistel networks with too few rounds leak one half of the place into one half of the row."""
    side = math.isqrt(n - 1) + 1
    worst = 0.0
    for seed in range(10):
        rows = shuffled(n, seed)
        places = np.arange(n)
        for a in (places % side, places // side):
            for b in (rows % side, rows // side):
                cells = np.zeros((16, 16))
                np.add.at(cells, (a * 16 // side, b * 16 // side), 1)
                expected = cells.sum(1, keepdims=True) * cells.sum(0, keepdims=True) / n
                statistic = ((cells - expected) ** 2 / expected).sum()
                worst = max(worst, abs(statistic - 225) / math.sqrt(450))
    assert worst < 6


@pytest.mark.parametrize("n", SIZES)
def test_differences_of_neighbours_do_not_repeat(n: int) -> None:
    """Two rows that are side by side in a poor order often lie equally far apart in the file."""
    repeats = 0
    for seed in range(20):
        rows = shuffled(n, seed)
        steps = np.diff(rows)
        repeats += len(steps) - len(np.unique(steps))
        side = math.isqrt(n - 1) + 1
        steps = rows[:-side] - rows[side:]
        assert len(np.unique(steps)) > 0.55 * len(steps)
    # Differences are spread over 2n values in a triangle, of which chance hits 2n/e.
    assert abs(repeats / (20 * n) - (1 - 2 / math.e)) < 0.01


@pytest.mark.parametrize("n", SIZES)
def test_fixed_points_and_kept_neighbours_match_chance(n: int) -> None:
    fixed = kept = 0
    for seed in range(60):
        rows = Shuffled(n, seed)(0, n)
        fixed += int((rows == np.arange(n)).sum())
        kept += int((np.diff(rows) == 1).sum())
    # Both are Poisson with mean 1 for each seed.
    for count in (fixed, kept):
        assert abs(count - 60) < 5 * math.sqrt(60)


@pytest.mark.parametrize("n", SIZES)
def test_number_of_runs_matches_chance(n: int) -> None:
    """Wald and Wolfowitz: how often the order crosses the middle of the file."""
    deviations = []
    for seed in range(20):
        high = shuffled(n, seed) >= n // 2
        ones, zeros = int(high.sum()), int((~high).sum())
        runs = 1 + int((high[1:] != high[:-1]).sum())
        mean = 1 + 2 * ones * zeros / n
        variance = (mean - 1) * (mean - 2) / (n - 1)
        deviations.append((runs - mean) / math.sqrt(variance))
    assert abs(np.mean(deviations)) * math.sqrt(20) < 5
    assert max(map(abs, deviations)) < 5


@pytest.mark.parametrize("n", SIZES)
def test_row_distances_match_chance(n: int) -> None:
    distances = [np.abs(shuffled(n, seed) - np.arange(n)).mean() / n for seed in range(30)]
    # Mean 1/3; the standard deviation of the mean of one permutation is sqrt(2/45 / n).
    assert abs(np.mean(distances) - 1 / 3) < 5 * math.sqrt(2 / 45 / n / 30)


@pytest.mark.parametrize("n", SIZES)
def test_orders_of_different_seeds_are_uncorrelated(n: int) -> None:
    some = [shuffled(n, seed) for seed in [*range(12), -1, 2**64, 2**64 + 1]]
    agree = sum(int((a == b).sum()) for i, a in enumerate(some) for b in some[:i])
    pairs = len(some) * (len(some) - 1) // 2
    assert abs(agree - pairs) < 5 * math.sqrt(pairs)
    for a, b in pairwise(some):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(n)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_statistical_tests_detect_too_few_rounds(rounds: int) -> None:
    noticed = []
    with mock.patch.object(orders, "_ROUNDS", rounds):
        for test in (
            test_place_in_order_is_independent_of_row,
            test_low_and_high_digits_are_independent,
            test_differences_of_neighbours_do_not_repeat,
        ):
            try:
                test(10_000)
            except AssertionError:
                noticed.append(test.__name__)
    assert noticed


# Blocks


@given(n=st.integers(0, 3000), block=st.integers(1, 200), window=st.integers(1, 20), seed=seeds)
def test_blocks_give_every_row_once(n: int, block: int, window: int, seed: int) -> None:
    assert_permutation(BlockShuffled(n, block, window, seed), n)


@given(n=st.integers(1, 9000), block=st.integers(1, 200), window=st.integers(1, 20), seed=seeds)
def test_at_matches_full_order(n: int, block: int, window: int, seed: int) -> None:
    places = np.random.default_rng(n).integers(0, n, 50)
    for order in (Shuffled(n, seed), BlockShuffled(n, block, window, seed)):
        assert (order.at(places) == order(0, n)[places]).all()


@given(n=st.integers(1, 3000), block=st.integers(1, 200), window=st.integers(1, 20), seed=seeds)
def test_window_runs_cover_rows_of_window(n: int, block: int, window: int, seed: int) -> None:
    order = BlockShuffled(n, block, window, seed)
    place = number = 0
    while place < n:
        first, last = order.window_bounds(number)
        assert first == place < last <= first + order.window_rows
        assert order.window_at(first) == order.window_at(last - 1) == number
        runs = order.window_runs(number)
        read = np.concatenate([(starts[:, None] + np.arange(run)).ravel() for starts, run in runs])
        assert sorted(read.tolist()) == sorted(order(first, last).tolist())
        assert all(run <= block for _, run in runs)
        assert all((starts % block == 0).all() for starts, _ in runs)
        place, number = last, number + 1


def test_blocks_are_mixed_within_windows_and_across_file() -> None:
    n, block, window = 100_000, 100, 16
    order = BlockShuffled(n, block, window, 1)
    rows = order(0, n)
    assert ((np.diff(rows) == 1).mean()) < 0.01  # in order it would be 0.99
    first = rows[: block * window]
    assert len(np.unique(first // block)) == window
    # The blocks of a window come from all over the file.
    assert abs(np.corrcoef(rows, np.arange(n))[0, 1]) < 0.2
    assert not (order(0, n) == BlockShuffled(n, block, window, 2)(0, n)).all()


@given(
    n=st.integers(0, 30_000),
    block=st.integers(1, 300),
    places=st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 500)), max_size=8),
)
def test_kept_order_matches_order(n: int, block: int, places: list[tuple[int, int]]) -> None:
    order = Shuffled(n, 3)
    kept = Kept(order, block)
    for start, count in places:
        start, stop = min(start, n), min(start + count, n)
        assert (kept(start, stop) == order(start, stop)).all()
        assert (kept.places(kept(start, stop)) == np.arange(start, stop)).all()


def test_kept_order_is_computed_once_for_many_small_parts() -> None:
    order = mock.Mock(wraps=Shuffled(10**6, 1), n=10**6)
    kept = Kept(order)
    for start in range(0, 8192, 32):
        kept(start, start + 32)
    assert order.call_count == 1


@given(st.integers(0, 2**66))
def test_mix_one_matches_mix_of_array(value: int) -> None:
    assert orders.mix_one(value) == int(orders.mix(np.array([value % 2**64], np.uint64))[0])
