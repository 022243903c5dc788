"""Histograms beside NumPy's, by each way to count."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import histograms, reducer


@given(
    bins=st.one_of(st.integers(1, 9), st.just([-1.0, 0.0, 0.5, 3.0])),
    limits=st.sampled_from([None, (-1.0, 2.0)]),
    rows=st.integers(0, 50),
    dtype=st.sampled_from(["f8", "f4", "f2", ">f4", "g", "i1", "u1", "<i4", "u2", "i8", "u8"]),
    way=st.integers(0, 1),
)
def test_histograms_match_numpy(
    tmp_path_factory: pytest.TempPathFactory, bins: Any, limits: Any, rows: int, dtype: str, way: int
) -> None:
    array = np.random.default_rng(rows).normal(size=(rows, 3)).round(1)  # some are on an edge
    if dtype[-2:-1] == "f" and limits is not None:
        array[: rows // 3, 0], array[: rows // 4, 1] = np.nan, np.inf
    array = (abs(array) if "u" in dtype else array).astype(dtype)
    path = tmp_path_factory.mktemp("histogram") / "x.npy"
    np.save(path, array)
    with (
        lowtide.open(path) as a,
        mock.patch.object(reducer, "_PIECE", 7),
        mock.patch.object(histograms, "_BLOCK", 5),
        mock.patch.object(histograms, "_fastest", lambda ways, sample: ways[: way + 1][-1]),
    ):
        for got, expected in zip(a.histogram(bins, limits), np.histogram(array, bins, limits), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_fastest_histogram_method_is_chosen() -> None:
    ways: list[Any] = [lambda sample: time.sleep(0.02), len, lambda sample: time.sleep(0.01)]
    assert ways.index(histograms._fastest(ways, np.zeros(3))) == 1
