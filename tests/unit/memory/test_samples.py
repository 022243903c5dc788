"""Thinning: bounded, in order, with the peak and the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._memory.samples import keep, thin


@given(st.lists(st.integers(), min_size=1, max_size=500), st.integers(2, 50))
def test_thinned_samples_keep_order_peak_and_end(values: list[int], most: int) -> None:
    samples = list(enumerate(values))
    kept = thin(samples, most, lambda sample: sample[1])
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert max(value for _, value in kept) == max(values)
    assert kept[-1] == samples[-1]


def test_few_samples_stay_as_they_are() -> None:
    assert thin([3, 1, 2], 3, float) == [3, 1, 2]


@pytest.mark.parametrize("most", [8, 9, 512])
def test_kept_samples_stay_bounded(most: int) -> None:
    samples: list[int] = []
    for value in range(5000):
        keep(samples, 10**6 if value == 777 else value, most, float)
        assert len(samples) <= most
    assert max(samples) == 10**6
    assert samples[-1] == 4999
    assert len(samples) >= most // 2 - 1
