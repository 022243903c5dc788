"""Operators and ufuncs of an array on disk: what NumPy gives, or a refusal, and never identity."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
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
from lowtide.errors import BudgetError

EXPECTED = np.arange(-4, 8, dtype="i4").reshape(4, 3)

COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod,
    operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.pow,
]  # fmt: skip
UNARY = [operator.neg, operator.pos, operator.invert, abs]
IN_PLACE = [
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
    operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.ipow,
    operator.imatmul,
]  # fmt: skip


@pytest.fixture
def array(tmp_path: Path) -> Iterator[lowtide.Array]:
    np.save(tmp_path / "a.npy", EXPECTED)
    with lowtide.open(tmp_path / "a.npy") as opened:
        yield opened


def assert_same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, tuple):
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
        return
    if not isinstance(want, np.ndarray | np.generic):  # such as the text of "x" % array
        assert got == want
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


def same_as_numpy(function: Callable[..., Any], *on_disk: Any, in_memory: tuple[Any, ...]) -> None:
    """The same value or the same kind of error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            want = function(*in_memory)
        except Exception as error:
            with pytest.raises(type(error)):
                function(*on_disk)
            return
        assert_same(function(*on_disk), want)


@pytest.mark.parametrize("function", [*COMPARISONS, *ARITHMETIC], ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    "other", [2, 1.5, np.float32(3), [1, 2, 3], np.arange(1, 5)[:, None], None, "x", [1, 2]], ids=str
)
def test_binary_operators_match_numpy(array: lowtide.Array, function: Callable[..., Any], other: Any) -> None:
    same_as_numpy(function, array, other, in_memory=(EXPECTED, other))
    same_as_numpy(function, other, array, in_memory=(other, EXPECTED))


@pytest.mark.parametrize("function", [*COMPARISONS, *ARITHMETIC], ids=lambda function: function.__name__)
def test_operators_of_two_arrays_on_disk_match_numpy(
    array: lowtide.Array, function: Callable[..., Any]
) -> None:
    same_as_numpy(function, array, array, in_memory=(EXPECTED, EXPECTED))


@pytest.mark.parametrize("function", UNARY, ids=lambda function: function.__name__)
def test_unary_operators_match_numpy(array: lowtide.Array, function: Callable[[Any], Any]) -> None:
    assert_same(function(array), function(EXPECTED))


def test_matrix_products_match_numpy(array: lowtide.Array) -> None:
    assert_same(array @ [1, 2, 3], EXPECTED @ [1, 2, 3])
    assert_same([1, 2, 3, 4] @ array, [1, 2, 3, 4] @ EXPECTED)


@given(
    expected=hnp.arrays(
        st.sampled_from([np.dtype(kind) for kind in ("u1", "i8", ">f4", "?", "U2", "M8[s]")]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    number=st.integers(-5, 300) | st.floats(width=32),
)
def test_comparisons_of_any_array_match_numpy(
    tmp_path_factory: pytest.TempPathFactory, expected: np.ndarray, number: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npy"
    path.unlink(missing_ok=True)
    np.save(path, expected)
    with lowtide.open(path) as array:
        for function in COMPARISONS:
            same_as_numpy(function, array, number, in_memory=(expected, number))
            same_as_numpy(function, array, expected, in_memory=(expected, expected))


def test_records_are_compared(tmp_path: Path) -> None:
    records = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    np.save(tmp_path / "r.npy", records)
    with lowtide.open(tmp_path / "r.npy") as array:
        assert (array == records[0]).tolist() == [True, False]
        assert (array != array).tolist() == [False, False]


def test_masks_count_and_select(array: lowtide.Array) -> None:
    assert np.sum(array == 1) == 1
    assert np.mean(array > 0) == np.mean(EXPECTED > 0)
    assert_same(array[array > 2], EXPECTED[EXPECTED > 2])


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda function: function.__name__)
def test_in_place_operators_raise(array: lowtide.Array, function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"a\.npy: .*read-only; load it first, as in array\[:\]"):
        function(array, 1)
    assert_same(array[:], EXPECTED)


@pytest.mark.parametrize(
    "write",
    [
        lambda array: np.add(EXPECTED, 1, out=array),
        lambda array: np.add(array, 1, out=array),
        lambda array: np.add.at(array, [0], 1),
        lambda array: np.negative.at(array, [0]),
        lambda array: array.__setitem__(0, 5),
    ],
    ids=["out", "in place", "at", "negative.at", "assignment"],
)
def test_writing_to_read_only_array_raises(array: lowtide.Array, write: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"a\.npy: .*mode='r"):
        write(array)
    assert_same(array[:], EXPECTED)


def test_ufuncs_and_their_methods_match_numpy(array: lowtide.Array) -> None:
    assert_same(np.sqrt(np.abs(array)), np.sqrt(np.abs(EXPECTED)))
    assert_same(np.add.reduce(array, axis=1), EXPECTED.sum(axis=1, dtype="i8"))
    assert_same(np.multiply.outer([1, 2], array), np.multiply.outer([1, 2], EXPECTED))
    out = np.zeros_like(EXPECTED)
    assert np.add(array, 1, out=out, where=array > 0) is out
    assert_same(out, np.add(EXPECTED, 1, out=np.zeros_like(EXPECTED), where=EXPECTED > 0))


@pytest.mark.parametrize(
    "use",
    [
        lambda array: array == 1,
        lambda array: array != 1,
        lambda array: array + 1,
        lambda array: -array,
        lambda array: np.ones(3) * array,
        lambda array: array @ np.ones(3),
        lambda array: np.median(array),
        lambda array: np.cbrt(array),
        lambda array: EXPECTED in array,
        lambda array: np.from_dlpack(array),
    ],
)
def test_implicit_load_beyond_limit_raises(array: lowtide.Array, use: Callable[[Any], Any]) -> None:
    with mock.patch.object(array_module, "IMPLICIT_LOAD_LIMIT", array.nbytes - 1):
        with pytest.raises(BudgetError, match=r"a\.npy: refusing to load 48 B implicitly") as caught:
            use(array)
    assert "array.chunks()" in str(caught.value)
    assert "array[:]" in str(caught.value)
    use(array)  # at the limit it is loaded


# Truth, membership, hashes


@pytest.mark.parametrize("value", [np.zeros(1), np.ones((1, 1)), np.array(0), np.array(7)], ids=str)
def test_single_element_has_truth_value(tmp_path: Path, value: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", value)
    with lowtide.open(tmp_path / "a.npy") as array:
        assert bool(array) is bool(value)


@pytest.mark.parametrize("shape", [(2,), (4, 3), (0,), (3, 0)])
def test_truth_value_of_several_or_no_elements_raises(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape))
    with lowtide.open(tmp_path / "a.npy") as array:
        with pytest.raises(ValueError, match=r"a\.npy: the truth value .* ambiguous; use np\.any"):
            bool(array)


@pytest.mark.parametrize(
    "value", [0, 7, 8, 0.5, -4, [5, 6, 7], [5, 6, 8], None, EXPECTED[2], EXPECTED], ids=str
)
def test_membership_matches_numpy(array: lowtide.Array, value: Any) -> None:
    assert (value in array) is (value in EXPECTED)


def test_membership_ignores_implicit_load_limit(array: lowtide.Array) -> None:
    with mock.patch.object(array_module, "IMPLICIT_LOAD_LIMIT", 0):
        assert 7 in array
        assert 0.5 not in array


def test_membership_in_0d_array_works(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(7))
    with lowtide.open(tmp_path / "a.npy") as array:
        assert 7 in array
        assert 8 not in array


def test_array_is_hashed_by_identity(array: lowtide.Array) -> None:
    with lowtide.open(array.path) as other:
        names = {array: "one", other: "two"}
        assert names[array] == "one"
        assert names[other] == "two"


@pytest.mark.parametrize("name", ["T", "reshape", "copy", "argmax", "flat", "base"])
def test_missing_ndarray_attribute_error_has_remedy(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with lowtide.open(tmp_path / "x.npy") as a:
        for array in (a, a.rows(1)):
            assert not hasattr(array, name)
            with pytest.raises(AttributeError, match=rf"x\.npy: an array on disk has no {name}; load"):
                getattr(array, name)
        with pytest.raises(AttributeError, match="object has no attribute 'shap'"):
            operator.attrgetter("shap")(a)
