"""Views beside NumPy: whatever is selected or converted, in any order, a view shows what NumPy shows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import selections, views
from lowtide._arrays.views import RowView
from lowtide.errors import ArgumentError, ClosedError, IndexingError
from tests.unit.arrays.test_indexing import assert_like_numpy, indices

RECORD = np.dtype([("id", "<i8"), ("xy", "f4", (2,)), ("tag", "S3")], align=True)
SHUFFLES: tuple[Any, ...] = (False, True, "blocks")


def table(rows: int, width: int = 6, dtype: str = "i4", order: Any = "C") -> np.ndarray:
    return np.asarray(np.arange(rows * width).reshape(rows, width), dtype, order=order)


def records(rows: int) -> np.ndarray:
    array = np.zeros(rows, RECORD)
    array["id"] = np.arange(rows)
    array["xy"] = np.arange(2 * rows).reshape(rows, 2)
    array["tag"] = [b"%d" % (row % 1000) for row in range(rows)]
    return array


@contextmanager
def opened(folder: Path, array: np.ndarray) -> Iterator[lowtide.Array]:
    np.save(folder / "x.npy", array)
    with lowtide.open(folder / "x.npy") as stored:
        yield stored


@contextmanager
def small_stages(stage: int) -> Iterator[None]:
    """Constants so small that small views take every path."""
    with (
        mock.patch.multiple(views, _STAGE=stage, _AT_ONCE=max(1, stage // 16)),
        mock.patch.multiple(selections, _SEARCHED=7),
    ):
        yield


Step = tuple[Callable[[lowtide.Array], lowtide.Array], Callable[[np.ndarray], np.ndarray]]


@st.composite
def steps(draw: st.DrawFn, array: np.ndarray) -> Step:
    """One view of an array of this shape and dtype, and what NumPy makes of the same words."""
    rows, row_shape = len(array), array.shape[1:]
    kinds = ["rows", "mask", "list"] + (["astype"] if array.dtype.names is None else ["field", "fields"])
    kind = draw(st.sampled_from([*kinds, "columns"] if row_shape else kinds))
    if kind == "rows":
        part = draw(st.slices(rows))
        return lambda a: a.rows(part.start, part.stop, part.step), lambda x: x[part]
    if kind == "mask":
        mask = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), bool)
        return lambda a: a.select(mask), lambda x: x[mask]
    if kind == "list":
        numbers = draw(st.lists(st.integers(-rows, rows - 1), max_size=20)) if rows else []
        return lambda a: a.select(numbers), lambda x: x[np.array(numbers, int)]
    if kind == "astype":
        real = [] if array.dtype.kind == "c" else ["i2", ">i8", "f4", "f8"]  # NumPy warns of what is lost
        dtype = draw(st.sampled_from([*real, "c16"]))
        return lambda a: a.astype(dtype), lambda x: x.astype(dtype)
    if kind == "field":
        name = draw(st.sampled_from(array.dtype.names or ()))
        return lambda a: a[name], lambda x: x[name]
    if kind == "fields":
        names = draw(st.lists(st.sampled_from(array.dtype.names or ()), min_size=1, unique=True))
        packed = np.dtype([(name, array.dtype[name]) for name in names])
        return lambda a: a[names], lambda x: x[names].astype(packed)
    index: Any = draw(st.one_of(st.integers(-row_shape[0], row_shape[0] - 1), st.slices(row_shape[0])))
    if draw(st.booleans()):
        index = draw(st.lists(st.integers(-row_shape[0], row_shape[0] - 1), max_size=4))
        return lambda a: a.columns[index], lambda x: x[:, np.array(index, int)]
    return lambda a: a.columns[index], lambda x: x[:, index]


@st.composite
def chains(draw: st.DrawFn) -> tuple[np.ndarray, list[Step], np.ndarray]:
    """An array, views of views of it, and what NumPy makes of them."""
    rows = draw(st.integers(0, 40))
    kind = draw(st.sampled_from(["C", "F", "records"]))
    array = expected = records(rows) if kind == "records" else table(rows, order=kind)
    chosen = []
    for _ in range(draw(st.integers(1, 4))):
        if not expected.size and expected.ndim > 1:
            break
        step = draw(steps(expected))
        expected = step[1](expected)
        chosen.append(step)
    return array, chosen, expected


@given(chain=chains(), stage=st.sampled_from([16, 100, 2**20]), data=st.data())
def test_views_of_views_match_numpy(
    tmp_path_factory: pytest.TempPathFactory,
    chain: tuple[np.ndarray, list[Step], np.ndarray],
    stage: int,
    data: st.DataObject,
) -> None:
    array, chosen, expected = chain
    with small_stages(stage), opened(tmp_path_factory.mktemp("views"), array) as stored:
        view = stored
        for step, _ in chosen:
            view = step(view)
        view = pickle.loads(pickle.dumps(view)) if data.draw(st.booleans()) else view
        assert (view.shape, view.dtype, len(view)) == (expected.shape, expected.dtype, len(expected))
        np.testing.assert_array_equal(view[...], expected)
        assert_like_numpy(view, expected, data.draw(indices(expected.shape)))
        if len(expected):
            numbers = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1)))
            np.testing.assert_array_equal(view.take(numbers), expected[np.array(numbers, int)])
        np.testing.assert_array_equal(np.array([*view], view.dtype).reshape(view.shape), expected)
        for shuffle in SHUFFLES:
            options: dict[str, Any] = {"budget": data.draw(st.sampled_from([None, "8 MiB", "64 KiB"]))}
            chunks = view.chunks(
                data.draw(st.integers(1, 9)), shuffle=shuffle, prefetch=0, with_rows=True, **options
            )
            numbers, parts = [], []
            for rows, chunk in chunks:
                numbers += rows.tolist()
                parts.append(chunk.copy())
            assert sorted(numbers) == list(range(len(expected)))
            if parts:
                np.testing.assert_array_equal(np.concatenate(parts), expected[numbers])


def test_nested_slices_are_merged(tmp_path: Path) -> None:
    with opened(tmp_path, table(100)) as a:
        view = a.rows(10, 90).rows(step=2).rows(5, None, -1)
        assert isinstance(view, RowView)
        assert len(view._selections) == 1
        np.testing.assert_array_equal(view[:], table(100)[10:90][::2][5::-1])


def test_view_of_billion_rows_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (10**9,)}
        )
        file.truncate(file.tell() + 10**9)  # sparse: it takes no space
    with lowtide.open(path) as a:
        view = a.rows(1, None, 2).rows(7).astype("f4").rows(step=-1)
        assert len(view) == 5 * 10**8 - 7
        assert len(pickle.dumps(view)) < 2000
        assert view[-1] == view[123_456_789] == 0


def test_pickled_views_are_small_except_lists(tmp_path: Path) -> None:
    with opened(tmp_path, table(10_000)) as a:
        for view in (a.rows(5, None, 3), a.columns[[1, 2]], a.astype("f8").rows(9)):
            assert len(pickle.dumps(view)) < len(pickle.dumps(a)) + 500
        assert len(pickle.dumps(a.select(np.arange(5000)))) < 5000 * 2 + 2000
        assert len(pickle.dumps(a.select(np.arange(10_000) % 3 == 0))) < 10_000 / 8 + 2000


def test_column_of_wide_rows_reads_only_itself(tmp_path: Path) -> None:
    array = np.arange(40 * 50_000, dtype="f8").reshape(40, 50_000)
    with opened(tmp_path, array) as a:
        column = a.columns[7:9]
        with mock.patch.object(a._reader, "submit", wraps=a._reader.submit) as submit:
            np.testing.assert_array_equal(column[:], array[:, 7:9])
            np.testing.assert_array_equal(column.take([5, 3]), array[[5, 3], 7:9])
        assert sum(call.args[0].nbytes for call in submit.call_args_list) == (40 + 2) * 16


def test_every_second_row_is_read_in_runs(tmp_path: Path) -> None:
    with opened(tmp_path, table(10_000)) as a:
        with mock.patch.object(a._reader, "submit", wraps=a._reader.submit) as submit:
            np.testing.assert_array_equal(a.rows(step=2)[:], table(10_000)[::2])
        assert sum(len(call.args[0]) for call in submit.call_args_list) < 10


def test_closing_array_closes_views_but_not_vice_versa(tmp_path: Path) -> None:
    with opened(tmp_path, table(10)) as a:
        view, other = a.rows(2), a.columns[0].rows(1)
        chunks = view.chunks(2)
        with view:
            assert not view.closed
        assert (view.closed, a.closed) == (True, False)
        assert not other.closed
        uses: list[Callable[[], Any]] = [lambda: view[0], lambda: view.rows(1), lambda: next(chunks)]
        uses.append(lambda: pickle.dumps(view))
        for use in uses:
            with pytest.raises(ClosedError, match="closed"):
                use()
    uses = [lambda: other[0], lambda: other.take([0]), lambda: other.chunks(1), lambda: a.rows(1)]
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert "closed" in repr(other)


def test_view_of_changed_file_raises(tmp_path: Path) -> None:
    with opened(tmp_path, table(10)) as a:
        view = a.rows(2).astype("f8")
        np.save(tmp_path / "x.npy", table(10) + 1)
        with pytest.raises(lowtide.FileChangedError):
            view[0]
        with pytest.raises(lowtide.FileChangedError):
            next(view.chunks(2))


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda a: a.select([10]), IndexingError, "row 10 is out of bounds for an array of 10 rows"),
        (lambda a: a.select([-11, 0]), IndexingError, "row -11 is out of bounds"),
        (lambda a: a.select(range(8, 12)), IndexingError, "row 11 is out of bounds"),
        (lambda a: a.select([True] * 9), IndexingError, r"one element per row \(9 elements, expected 10\)"),
        (lambda a: a.select([0.5]), IndexingError, "must be integers or a mask, got float64"),
        (lambda a: a.select([[1]]), IndexingError, r"one dimension, got shape \(1, 1\)"),
        (lambda a: a.rows(0, 5, 0), ArgumentError, "slice step cannot be zero"),
        (lambda a: a.rows("a"), ArgumentError, "must be integers"),
        (lambda a: a["price"], IndexingError, "no field 'price'; its fields are"),
        (lambda a: a[["id", "price"]], IndexingError, "no field 'price'"),
        (lambda a: a["id"]["id"], IndexingError, "no field 'id'; its fields are none: its dtype is int64"),
        (lambda a: a["id", 3], IndexingError, "a field is selected alone"),
        (lambda a: a.columns[0], IndexingError, "single elements, which have no columns"),
        (lambda a: a["xy"].columns[2], IndexingError, "do not fit rows of shape"),
        (lambda a: a["id"].astype("nonsense"), ArgumentError, "not understood"),
        (lambda a: a["id"].astype(object), ArgumentError, "dtype must be one of numbers"),
        (lambda a: a["id"].astype("S"), ArgumentError, "text of a given length"),
    ],
)
def test_bad_views_raise_at_once(tmp_path: Path, use: Any, error: type[Exception], message: str) -> None:
    with opened(tmp_path, records(10)) as a, pytest.raises(error, match=message) as caught:
        use(a)
    assert str(tmp_path) in str(caught.value) or error is ArgumentError


def test_views_of_0d_array_raise(tmp_path: Path) -> None:
    with opened(tmp_path, np.array(5)) as a:
        uses: list[Callable[[], Any]] = [a.rows, lambda: a.select([0]), lambda: a.astype("f4")]
        for use in uses:
            with pytest.raises(ArgumentError, match="no dimensions"):
                use()


def test_repr_describes_view(tmp_path: Path) -> None:
    with opened(tmp_path, records(10)) as a:
        assert "shape=(3,)" in repr(a.rows(7)["id"])
        assert "view: 3 of 10 rows" in repr(a.rows(7))
        assert "view: field 'id'" in repr(a["id"])
        assert "view: astype float32" in repr(a["id"].astype("f4"))


def test_astype_converts_text_to_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([b"12", b"7"]))
    with lowtide.open(tmp_path / "x.npy") as array:
        assert array.astype("i4")[:].tolist() == [12, 7]
