"""Indexing: whatever NumPy makes of an index, from disk, for every reader."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lowtide
from lowtide._arrays import indexing
from lowtide._io import pagecache
from lowtide._io.extents import Bytes, Extents
from lowtide.errors import IndexingError, TruncatedFileError
from tests.support.variants import VARIANTS, Variant, every_variant, tight

DTYPES = [
    "u1", "i2", "<i8", ">i4", ">u8", "f2", "<f4", ">f8", "c8", ">c16", "?", "S5", "U3", ">U2", "V7",
    "M8[s]", ">m8[ns]", "S0",
    [("a", "u1"), ("b", ">f8"), ("c", "i2", (2, 3))],
    np.dtype([("x", "u1"), ("y", "f8")], align=True),
]  # fmt: skip


def filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array whose elements all differ as far as its dtype allows."""
    if dtype.kind in "b":
        return np.random.default_rng(0).random(shape) < 0.5
    if dtype.kind in "SU":
        return np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    if not dtype.itemsize or not math.prod(shape):
        return np.zeros(shape, dtype)
    raw = np.random.default_rng(0).integers(0, 256, math.prod(shape) * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    array = filled(draw(shapes), np.dtype(draw(st.sampled_from(DTYPES))))
    return np.asfortranarray(array) if draw(st.booleans()) else array


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Any mixture of everything that may stand in an index, now and then out of bounds."""
    together = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    items: list[Any] = []
    axis = 0
    while axis < len(shape):
        kind = draw(st.sampled_from(["slice", "int", "array", "list", "mask", "stop"]))
        size = shape[axis]
        beyond = draw(st.integers(0, 20)) == 0
        low, high = (-size, size - 1) if size and not beyond else (-size - 2, size + 1)
        if kind == "stop":
            break
        if kind == "slice":
            items.append(
                draw(hnp.basic_indices((size,), min_dims=1, allow_ellipsis=False, allow_newaxis=False))
            )
        elif kind == "int":
            number = draw(st.integers(low, high))
            kinds: list[Any] = [int, np.int8, np.int64, np.array]
            items.append(draw(st.sampled_from(kinds))(number))
        elif kind == "mask":
            ndim = draw(st.integers(1, len(shape) - axis))
            items.append(draw(hnp.arrays(bool, shape[axis : axis + ndim])))
            axis += ndim - 1
        else:
            # Some of the common axes left out or of length 1: they must broadcast.
            lengths = together[draw(st.integers(0, len(together))) :]
            lengths = tuple(1 if length and draw(st.integers(0, 3)) == 0 else length for length in lengths)
            dtype = draw(st.sampled_from(["i1", "<i8", ">i4"]))
            array = draw(hnp.arrays(dtype, lengths, elements=st.integers(low, high)))
            items.append(array.tolist() if kind == "list" and array.ndim == 1 else array)
        axis += 1
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def content(array: Any) -> list[bytes]:
    """Every byte but the padding between fields, which NumPy does not always copy."""
    if array.dtype.names is None:
        return [array.tobytes()]
    return [array[name].tobytes() for name in array.dtype.names]


def assert_like_numpy(array: lowtide.Array, expected: np.ndarray, index: Any) -> None:
    try:
        want = expected[index]
    except IndexError:
        with pytest.raises(IndexingError) as caught:
            array[index]
        assert array.path in str(caught.value)
        return
    try:
        got = array[index]
    except IndexingError as error:
        # NumPy looks away from indices and empty masks that do not fit when nothing is selected anyway.
        if not want.size and ("out of bounds" in str(error) or "boolean axis is 0" in str(error)):
            return
        raise
    assert type(got) is type(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert content(got) == content(want)
    if not isinstance(got, np.ndarray):
        return
    assert got.flags.writeable
    owner: Any = got
    while owner is not None:
        assert not isinstance(owner, mmap.mmap)
        owner = owner.base if isinstance(owner, np.ndarray) else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexing")


def saved(folder: Path, array: np.ndarray) -> Path:
    path = folder / "array.npy"
    path.unlink(missing_ok=True)
    np.save(path, array)
    return path


@every_variant
@given(data=st.data(), expected=arrays(), small=st.booleans())
def test_any_index_matches_numpy(
    folder: Path, variant: Variant, data: st.DataObject, expected: np.ndarray, small: bool
) -> None:
    with variant.open(saved(folder, expected)) as array, tight(small):
        for _ in range(3):
            assert_like_numpy(array, expected, data.draw(indices(expected.shape), label="index"))


@given(data=st.data(), expected=arrays(), small=st.booleans())
def test_basic_indices_match_numpy(
    folder: Path, data: st.DataObject, expected: np.ndarray, small: bool
) -> None:
    index = data.draw(hnp.basic_indices(expected.shape, allow_newaxis=True))
    with lowtide.open(saved(folder, expected)) as array, tight(small):
        assert_like_numpy(array, expected, index)


@given(data=st.data(), order=st.sampled_from("CF"), small=st.booleans())
def test_integer_array_indices_match_numpy(
    folder: Path, data: st.DataObject, order: str, small: bool
) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=8))
    expected = np.asarray(filled(shape, np.dtype(">i4")), order=order)  # type: ignore[call-overload]
    index = data.draw(hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(min_side=0)))
    with lowtide.open(saved(folder, expected)) as array, tight(small):
        assert_like_numpy(array, expected, index)


@given(
    bounds=st.tuples(*[st.none() | st.integers(-70, 70)] * 2),
    step=st.none() | st.integers(-70, 70).filter(bool),
    order=st.sampled_from("CF"),
    axis=st.integers(0, 1),
)
@example(bounds=(None, None), step=-1, order="C", axis=0)
@example(bounds=(2**70, -(2**70)), step=-1, order="F", axis=1)
def test_slices_with_any_bounds_and_step_match_numpy(
    folder: Path, bounds: tuple[int | None, int | None], step: int | None, order: str, axis: int
) -> None:
    expected = np.asarray(np.arange(60 * 50, dtype="i4").reshape(60, 50), order=order)  # type: ignore[call-overload]
    index = (slice(None),) * axis + (slice(*bounds, step),)
    with lowtide.open(saved(folder, expected)) as array:
        assert_like_numpy(array, expected, index)


@pytest.mark.parametrize(
    "index",
    [
        (None, [0, 1], ..., [1, 2], [1, 0]),  # dots for no axis keep the arrays apart
        (None, [0, 1], [1, 2], [1, 0], ...),
        (None, [0, 1], None, [1, 2]),
        (slice(None), [0, 1], 1),
        (slice(None), 1, [0, 1]),
        ([0, 1], slice(None), 1),
        (1, slice(None), [0, 1]),
        (1, [0, 1], slice(None, None, -1)),
        ([[1], [0]], slice(1, 3), [[1, 0, 3]]),
        (np.array([True, False]), slice(None), [3, 2]),
        (slice(None), np.arange(12).reshape(3, 4) % 3 == 0),
        (np.arange(6).reshape(2, 3) % 2 == 1, -1),
        (slice(None, None, -1), slice(None, None, -2), slice(None, None, -3)),
        (..., slice(None, None, -1)),
        (0, ..., None),
        ((), 0),
        ([], slice(None), [0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_index_edge_cases_match_numpy(folder: Path, index: Any, order: Any) -> None:
    expected = np.asarray(np.arange(24).reshape(2, 3, 4), order=order)
    with lowtide.open(saved(folder, expected)) as array:
        assert_like_numpy(array, expected, index)


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Enough rows and bytes for several windows, helpers and spans, with nothing made small."""
    expected = np.random.default_rng(1).integers(0, 2**32, (9000, 162), np.uint32)
    return saved(tmp_path_factory.mktemp("many"), expected), expected


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Rows of several requests each."""
    expected = np.random.default_rng(1).integers(0, 256, (4, 3 * 2**20 + 5), np.uint8)
    return saved(tmp_path_factory.mktemp("long"), expected), expected


@every_variant
def test_indices_with_many_requests_match_numpy(many_rows: tuple[Path, np.ndarray], variant: Variant) -> None:
    path, expected = many_rows
    rows = np.random.default_rng(2).integers(-9000, 9000, 5000)
    with variant.open(path) as array:
        for index in [
            slice(None), slice(None, None, -1), slice(None, None, 3), rows, (slice(None), 7), rows > 0,
            (slice(None), [5, 3]), (rows, 5), (slice(9, 8000, 37), slice(None, None, -2)), (..., slice(3, 5)),
        ]:  # fmt: skip
            if isinstance(index, np.ndarray) and index.dtype == bool:
                index = np.resize(index, 9000)
            assert_like_numpy(array, expected, index)


@every_variant
def test_repeated_long_rows_match_numpy(long_rows: tuple[Path, np.ndarray], variant: Variant) -> None:
    """They overlap: what is cut must be put in order again."""
    path, expected = long_rows
    with variant.open(path) as array:
        assert_like_numpy(array, expected, [2, 2, 0, 2, 3, 3])


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (5, "index 5 is out of bounds for axis 0 with size 4"),
        ((0, -4), "index -4 is out of bounds for axis 1 with size 3"),
        (([0, 9], 0), "index 9 is out of bounds for axis 0"),
        (([0, -5], 0), "index -5 is out of bounds for axis 0"),
        ((0, 0, 0), "too many indices"),
        ((..., ...), "single ellipsis"),
        (([0, 1], [0, 1, 2]), r"shapes \(2,\), \(3,\) cannot be broadcast"),
        (np.ones(3, bool), "size of axis is 4 but size of corresponding boolean axis is 3"),
        (1.0, "got 1.0"),
        ([0.5], r"got \[0.5\]"),
        (np.empty(0), "integer or boolean arrays"),
        (True, "got True"),
        ("x", "has no field 'x'; its fields are none: its dtype is float64"),
        (["x", "y"], "has no field 'x'"),
        ({}, "integers, slices"),
        (np.array([1], object), "integers, slices"),
    ],
)
def test_invalid_index_raises(tmp_path: Path, index: Any, words: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    with lowtide.open(tmp_path / "a.npy") as array, pytest.raises(IndexingError, match=words) as caught:
        array[index]
    assert str(tmp_path / "a.npy") in str(caught.value)
    assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize(("index", "kind"), [(slice(None, None, 0), ValueError), (slice(0.5), TypeError)])
def test_invalid_slice_raises_like_numpy(tmp_path: Path, index: Any, kind: type[Exception]) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    with lowtide.open(tmp_path / "a.npy") as array:
        for one in (array, np.zeros((4, 3))):
            with pytest.raises(kind, match="slice"):
                one[index]


class Counting:
    """A reader that notes what is asked of it."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.nbytes = 0
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def submit(self, extents: Extents, out: Bytes, **options: Any) -> Any:
        self.nbytes += extents.nbytes
        self.requests += len(extents)
        return self._reader.submit(extents, out, **options)


@pytest.mark.parametrize("fortran", [False, True], ids=["C", "F"])
@pytest.mark.parametrize(
    ("index", "most"),
    [
        ((0, slice(5, 10)), 5 * 4),
        ((1, -1), 4),
        ((slice(None), 3), 2 * 4),
        ((slice(None), slice(7, 9)), 4 * 4),
        ((0, [10**8 - 1, 0, 5 * 10**7]), 3 * 4),
        ((1, slice(None, None, 10**6)), 100 * 4),
        ((1, slice(None, None, 10**4)), 10**4 * 4),
        ((slice(0, 0),), 0),
        ((0, slice(100, 200, 2)), 2 * 100 * 4),  # neighbours closer than a page are read through
        ((0, slice(200, 100, -1)), 100 * 4),
    ],
    ids=str,
)
def test_indexing_reads_only_needed_bytes(tmp_path: Path, index: Any, most: int, fortran: bool) -> None:
    path = tmp_path / "sparse.npy"
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": fortran, "shape": (2, 10**8)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 8 * 10**8)
    with lowtide.open(path) as array:
        counting = Counting(array._reader)
        array._reader = counting
        array[index]
    # In Fortran order the two rows lie in turns, so that the other one is read through.
    assert counting.nbytes <= (2 * most if fortran else most)


@pytest.mark.parametrize("dtype", ["u1", ">i4", "V7", "c16"])
@every_variant
def test_columns_of_large_array_match_numpy(tmp_path: Path, variant: Variant, dtype: str) -> None:
    """Spans that are long enough to be read in order, with a last block that is shorter."""
    data = filled((2**23 // 64 + 17, 64 // np.dtype(dtype).itemsize), np.dtype(dtype))
    np.save(tmp_path / "x.npy", data)
    with variant.open(tmp_path / "x.npy") as array:
        for index in np.s_[:, 3], np.s_[5:, -1], np.s_[::2, 1:3], np.s_[::-1, 0], np.s_[:, 2:3]:
            assert array[index].tobytes() == data[index].tobytes()
            assert array[index].shape == data[index].shape


def test_block_takes_few_requests_and_scattered_rows_one_each(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((10_000, 162), "f4"))
    with lowtide.open(tmp_path / "a.npy") as array:
        counting = Counting(array._reader)
        array._reader = counting
        array[100:5100]
        assert counting.requests == math.ceil(5000 * 648 / 2**20)
        counting.requests = counting.nbytes = 0
        array[np.arange(0, 10_000, 10)[::-1]]
        assert (counting.requests, counting.nbytes) == (1000, 648_000)


def test_memory_for_reading_column_is_bounded(tmp_path: Path) -> None:
    """A column of a matrix touches all its pages, but holds a few megabytes at a time."""
    tracemalloc = pytest.importorskip("tracemalloc")
    np.save(tmp_path / "a.npy", np.zeros((100_000, 100), "f4"))
    with lowtide.open(tmp_path / "a.npy") as array:
        array[:10, 3]
        tracemalloc.start()
        try:
            column = array[:, 3]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert column.nbytes == 400_000
    assert peak < 10 * 2**20


def test_variants_select_their_reader(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    for variant in VARIANTS:
        with variant.open(tmp_path / "a.npy") as array:
            assert array.reader.startswith(variant.reader)
            assert ("aio" in array.reader) == (variant.reader == "pread" and "aio" not in variant.lacks)
            assert ("nowait" in array.reader) == (variant.reader == "pread" and "nowait" not in variant.lacks)
            assert ("drop" in array.reader or "dontcache" in array.reader) == (variant.cache == "drop")


@given(
    rows=st.integers(1, 400),
    columns=st.integers(1, 40),
    dtype=st.sampled_from(["u1", ">i4", "f8", "S5", "V7", "c16"]),
    block=st.sampled_from([1, 64, 1000, 10**6]),
    workers=st.integers(1, 3),
    data=st.data(),
)
def test_columns_read_by_several_threads_match_numpy(
    folder: Path, rows: int, columns: int, dtype: str, block: int, workers: int, data: st.DataObject
) -> None:
    expected = filled((rows, columns), np.dtype(dtype))
    first = data.draw(st.integers(0, columns - 1))
    part = slice(first, data.draw(st.integers(first + 1, columns)))
    index: Any = data.draw(st.sampled_from([first, part]))
    step = data.draw(st.integers(1, 3))
    np.save(folder / "columns.npy", expected)
    with (
        mock.patch.multiple(indexing, _IN_ORDER=block, _THROUGH=1, workers_for=lambda *_: workers),
        lowtide.open(folder / "columns.npy") as array,
    ):
        assert array[::step, index].tobytes() == expected[::step, index].tobytes()
        view = array.columns[index]
        assert view[:].tobytes() == expected[:, index].tobytes()
        assert b"".join(chunk.tobytes() for chunk in view.chunks(7)) == expected[:, index].tobytes()


def test_columns_of_truncated_file_raise(tmp_path: Path) -> None:
    """The thread that comes to the end raises, and no part of the result is what was there before."""
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((40_000, 64), np.float32))
    with lowtide.open(path) as array:
        assert not array[:, 5].any()
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(TruncatedFileError, match="was truncated since it was opened"):
            array[:, 5]
        with pytest.raises(TruncatedFileError, match="was truncated since it was opened"):
            array.columns[5][:]


@pytest.mark.parametrize("read", [lambda array: array[:, 7], lambda array: array.columns[7][:]])
def test_reading_columns_with_cache_drop_evicts_pages(tmp_path: Path, read: Any) -> None:
    """Blocks end before a page does, and a folio of the page cache spans several of them."""
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2**16, 256), np.float32))
    pagecache.drop(path)  # else its folios are those of the writer, and small
    with lowtide.open(path, cache="drop") as array:
        read(array)
    resident = pagecache.resident(path)
    assert resident is not None
    assert resident[0] <= 2 * pagecache.FOLIO
