"""Reductions beside NumPy's, in its dtypes and to more digits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lowtide
from lowtide._arrays import array as array_module
from lowtide._arrays import reducer
from lowtide.errors import ArgumentError, BudgetError

NAMES = ["sum", "mean", "var", "std", "min", "max"]


@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=8),
    dtype=st.sampled_from(["i2", "u8", "f2", "f4", ">f8", "c8", "?"]),
    name=st.sampled_from(NAMES),
    keepdims=st.booleans(),
    piece=st.sampled_from([1, 5, 2**18]),
    data=st.data(),
)
def test_reductions_match_numpy(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    dtype: str,
    name: str,
    keepdims: bool,
    piece: int,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(0)
    array = (rng.normal(size=shape) * 100).astype(dtype)
    others = st.sets(st.integers(1, max(1, len(shape) - 1))) if len(shape) > 1 else st.just(set())
    axis = data.draw(st.one_of(st.none(), st.just(0), others.map(lambda axes: (0, *sorted(axes)))))
    path = tmp_path_factory.mktemp("reductions") / "x.npy"
    np.save(path, array)
    wide = array.astype({"f": "f8", "c": "c16"}.get(array.dtype.kind, array.dtype))
    with lowtide.open(path) as a, mock.patch.object(reducer, "_PIECE", piece), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of means of nothing
        try:
            exact = getattr(np, name)(wide, axis=axis, keepdims=keepdims)
            kind = getattr(np, name)(array, axis=axis, keepdims=keepdims).dtype
        except ValueError:
            with pytest.raises(ValueError, match="no minimum"):
                getattr(a, name)(axis=axis, keepdims=keepdims)
            return
        got = getattr(np, name)(a, axis=axis, keepdims=keepdims)
        assert type(got) is type(exact.astype(kind)[()])
        assert (got.shape, got.dtype) == (exact.shape, kind.newbyteorder("="))
        tolerance = {"f2": 1e-3, "f4": 1e-6, "c8": 1e-6}.get(dtype, 1e-12)
        np.testing.assert_allclose(got, exact.astype(kind), rtol=tolerance, atol=tolerance)


def test_std_of_small_spread_on_large_mean_is_accurate(tmp_path: Path) -> None:
    array = 1e8 + np.random.default_rng(0).normal(size=(20_000, 2))
    np.save(tmp_path / "x.npy", array)
    with lowtide.open(tmp_path / "x.npy") as a, mock.patch.object(reducer, "_PIECE", 100):
        np.testing.assert_allclose(a.std(axis=0), array.std(axis=0), rtol=1e-9)
        np.testing.assert_allclose(a.var(ddof=1), array.var(ddof=1), rtol=1e-9)


def test_infinities_and_mixed_magnitudes_match_numpy(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(1000, 4))
    array[3, 0], array[900, 1], array[500, 2] = np.inf, -np.inf, np.nan
    array[:10, 3] += 1e9  # the first pieces are far from the rest
    np.save(tmp_path / "x.npy", array)
    with lowtide.open(tmp_path / "x.npy") as a, mock.patch.object(reducer, "_PIECE", 20):
        for name in NAMES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = getattr(array, name)(axis=0)
            np.testing.assert_allclose(getattr(a, name)(axis=0), expected, rtol=1e-12, err_msg=name)


def test_long_doubles_keep_precision(tmp_path: Path) -> None:
    array = np.full((100, 2), np.longdouble(1) + np.finfo("g").eps * 4)
    np.save(tmp_path / "x.npy", array)
    with lowtide.open(tmp_path / "x.npy") as a:
        assert (a.mean(axis=0) == array.mean(axis=0)).all()
        assert a.var() == 0


def test_equal_rows_have_zero_variance(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((1000, 7), 0.1))
    with lowtide.open(tmp_path / "x.npy") as a, mock.patch.object(reducer, "_PIECE", 70):
        assert a.std() == 0
        assert (a.var(axis=0) == 0).all()


def test_float32_sums_are_more_accurate_than_numpy(tmp_path: Path) -> None:
    array = np.full((2**20, 1), 0.1, "f4")
    np.save(tmp_path / "x.npy", array)
    with lowtide.open(tmp_path / "x.npy") as a:
        exact = float(array[0, 0]) * 2**20
        assert float(a.sum(axis=0)[0]) == pytest.approx(exact, rel=1e-7)
        assert a.sum(axis=0, dtype="f8")[0] == pytest.approx(exact, rel=1e-12)


def test_numpy_reductions_work_beyond_implicit_load_limit(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(4, 3))
    with (
        lowtide.open(tmp_path / "x.npy") as a,
        mock.patch.object(array_module, "IMPLICIT_LOAD_LIMIT", 10),
    ):
        assert np.mean(a) == 5.5
        assert np.max(a.rows(0, 2).columns[1]) == 4
        with pytest.raises(BudgetError, match=r"array.mean\(\)"):
            np.median(a)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda a: a.mean(axis=1), r"axis must be None, 0 .*chunk.mean\(axis=1\)"),
        (lambda a: np.sum(a, axis=(1,)), "axis must be None"),
        (lambda a: a.max(axis=5), "axis must be None"),
        (lambda a: a.sum(out=np.zeros(())), "has no out="),
        (lambda a: a.histogram(0), "bins must be"),
        (lambda a: a.mean(progress=3), "progress must be True or a function"),
        (lambda a: a.rows(1, 1).max(), "has no minimum and no maximum"),
    ],
)
def test_bad_reductions_raise(tmp_path: Path, use: Any, message: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with lowtide.open(tmp_path / "x.npy") as a, pytest.raises(ArgumentError, match=message):
        use(a)


def test_reductions_of_records_and_text_raise(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3, [("x", "f4")]))
    np.save(tmp_path / "s.npy", np.array(["a", "b"]))
    with lowtide.open(tmp_path / "x.npy") as a, pytest.raises(ArgumentError, match="select a field"):
        a.mean()
    with lowtide.open(tmp_path / "s.npy") as a, pytest.raises(ArgumentError, match="not defined"):
        a.max()


@pytest.mark.parametrize("shape", [(1024, 3), (1000, 64), (4096, 64), (4097, 8, 2), (512, 600), (64, 1)])
def test_reductions_are_accurate_for_any_row_width(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Short rows are added several at a time, if their number allows it."""
    data = np.random.default_rng(1).normal(3, 2, shape).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    array = lowtide.open(tmp_path / "x.npy")
    for name in ("sum", "mean", "var"):
        expected = getattr(data.astype(np.float64), name)(axis=0)
        np.testing.assert_allclose(getattr(array, name)(axis=0), expected, rtol=1e-6)
