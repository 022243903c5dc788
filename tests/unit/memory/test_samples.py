"""Thinning: bounded, in order, with the peak and the end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._memory.samples import Samples, thin


@given(st.lists(st.integers(), min_size=1, max_size=500), st.integers(2, 50))
def test_thinned_samples_keep_order_peak_and_end(values: list[int], most: int) -> None:
    samples = list(enumerate(values))
    kept = thin(samples, most, lambda sample: sample[1])
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert max(value for _, value in kept) == max(values)
    assert kept[-1] == samples[-1]


def test_few_samples_are_unchanged() -> None:
    assert thin([3, 1, 2], 3, float) == [3, 1, 2]


@pytest.mark.parametrize("most", [8, 9, 512])
def test_samples_added_one_by_one_stay_bounded_and_even(most: int) -> None:
    samples = Samples(most, lambda sample: sample[1])
    for index in range(5000):
        samples.add((index, 10**6 if index == 777 else index % 10))
        assert len(samples) <= most
        assert samples[-1][0] == index
    assert (777, 10**6) in samples
    gaps = [right[0] - left[0] for left, right in itertools.pairwise(samples)]
    assert min(gaps) > 0
    assert max(gaps) <= 4 * 5000 / most, "old samples are as close as new ones"
