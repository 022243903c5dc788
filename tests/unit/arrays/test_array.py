"""Array: NumPy's manners, on disk."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide import errors
from lowtide._arrays import array as array_module
from lowtide._arrays import stored
from lowtide._io.descriptors import POOL
from tests.support.examples import EXAMPLES
from tests.support.variants import Variant, every_variant, tight

READERS: tuple[Literal["pread", "remap", "advise", "memmap"], ...] = ("pread", "remap", "advise", "memmap")
any_reader = pytest.mark.parametrize("reader", READERS)
EXPECTED = np.arange(300 * 4, dtype="i4").reshape(300, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", EXPECTED)
    return tmp_path / "a.npy"


@pytest.fixture
def array(path: Path) -> Iterator[lowtide.Array]:
    with lowtide.open(path) as opened:
        yield opened


# What it is


def test_attributes_match_ndarray(path: Path) -> None:
    for shape in [(), (0,), (5,), (2, 0, 3), (4, 3, 2)]:
        expected = np.zeros(shape, ">f4")
        np.save(path, expected)
        with lowtide.open(path) as array:
            for name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize"):
                assert getattr(array, name) == getattr(expected, name), name
            assert type(array.nbytes) is int
            if shape:
                assert len(array) == len(expected)
            else:
                with pytest.raises(TypeError, match="no dimensions"):
                    len(array)


def test_repr_shows_path_shape_dtype_and_reader(path: Path) -> None:
    with lowtide.open(path) as array:
        text = repr(array)
        assert repr(str(path)) in text
        assert "shape=(300, 4), dtype='int32'" in text
        assert "reader=pread (aio, nowait)" in text
        assert "closed" not in text
    assert "closed" in repr(array)
    np.save(path, np.asfortranarray(EXPECTED))
    with lowtide.open(path, reader="remap", cache="drop") as array:
        assert "order='F', reader=remap (map per piece, drop behind)" in repr(array)


def test_open_reads_only_the_header(tmp_path: Path) -> None:
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 250)}
        )
        file.truncate(file.tell() + 10**12)
    with lowtide.open(tmp_path / "x.npy") as array:
        assert array.nbytes == 10**12
        assert (array[10**9 - 1] == 0).all()
        assert len(next(array.chunks(10, shuffle=True))) == 10


def test_relative_path_is_resolved_at_open(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(path.parent)
    with lowtide.open("a.npy") as array:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        POOL.discard(array._reader._file.key)  # type: ignore[attr-defined]
        assert (array[5] == EXPECTED[5]).all()
        assert (pickle.loads(pickle.dumps(array))[5] == EXPECTED[5]).all()


@any_reader
def test_empty_file_is_an_empty_array(tmp_path: Path, reader: Any) -> None:
    (tmp_path / "x").write_bytes(b"")
    with lowtide.open(tmp_path / "x", dtype="u2", shape=(0,), reader=reader) as array:
        assert array.shape == (0,)
        assert array[:].tolist() == []
        assert list(array) == []
        assert list(array.chunks(5)) == []
        assert array.take([]).shape == (0,)


# take


@every_variant
@given(
    rows=st.lists(st.integers(-300, 299), max_size=60),
    order=st.sampled_from("CF"),
    given_out=st.booleans(),
    small=st.booleans(),
)
def test_take_matches_indexing_by_rows(
    tmp_path_factory: pytest.TempPathFactory,
    variant: Variant,
    rows: list[int],
    order: str,
    given_out: bool,
    small: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"take-{order}.npy"
    if not path.exists():
        np.save(path, np.asarray(EXPECTED, order=order))  # type: ignore[call-overload]
    with variant.open(path) as array, tight(small), mock.patch.object(array_module, "_ROWS_AT_ONCE", 7):
        out = np.full((len(rows), 4), -1, "i4") if given_out else None
        got = array.take(rows, out=out)
    assert out is None or got is out
    assert (got == EXPECTED[np.array(rows, int)]).all()
    assert (got.shape, got.dtype) == ((len(rows), 4), EXPECTED.dtype)


def test_take_keeps_shape_of_row_numbers(array: lowtide.Array) -> None:
    rows = np.arange(12).reshape(3, 4)[:, ::-1]
    assert (array.take(rows) == EXPECTED[rows]).all()
    assert array.take(7).shape == (4,)
    assert (array.take(np.uint64(7)) == EXPECTED[7]).all()
    assert array.take(np.empty((0, 3), int)).shape == (0, 3, 4)


def test_take_does_not_modify_row_numbers(array: lowtide.Array) -> None:
    rows = np.array([5, -1, 3])
    array.take(rows)
    assert rows.tolist() == [5, -1, 3]


@pytest.mark.parametrize("axis", [0, -2, np.int64(0)])
def test_take_accepts_row_axis(array: lowtide.Array, axis: Any) -> None:
    out = np.empty((2, 4), "i4")
    for got in (array.take([3, 1], axis=axis), array.take([3, 1], axis), array.take([3, 1], axis, out)):
        assert (got == EXPECTED.take([3, 1], axis=0)).all()


@pytest.mark.parametrize("axis", [1, -1, 2, None, "rows"])
def test_take_along_other_axis_raises(array: lowtide.Array, axis: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"a\.npy: axis of take must be 0, .*array\[:, \[2, 1\]\]"):
        array.take([0], axis=axis)


@pytest.mark.parametrize("axis", [0, -1, None])
def test_take_from_1d_array_accepts_any_axis(tmp_path: Path, axis: int | None) -> None:
    np.save(tmp_path / "b.npy", np.arange(5) ** 2)
    with lowtide.open(tmp_path / "b.npy") as array:
        assert array.take([3, -1], axis=axis).tolist() == [9, 16]


# Single rows


@every_variant
@pytest.mark.parametrize("order", ["C", "F"])
def test_single_rows_and_elements_match_numpy(path: Path, variant: Variant, order: Any) -> None:
    np.save(path, np.asarray(EXPECTED, order=order))
    with variant.open(path) as array:
        for row in (0, 299, -300, np.int8(5), np.uint64(7)):
            assert (array[row] == EXPECTED[row]).all()
            assert array[row].flags.writeable
            assert type(array[row, -1]) is np.int32
            assert array[row, -1] == EXPECTED[row, -1]


def test_single_row_takes_one_plain_read(array: lowtide.Array) -> None:
    with mock.patch.object(stored, "Selection", side_effect=AssertionError("not needed")):
        with mock.patch.object(array, "_reader", wraps=array._reader) as reader:
            assert array[7].tolist() == EXPECTED[7].tolist()
            assert array[-1, 2] == EXPECTED[-1, 2]
            assert reader.read.call_count == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([0, 300], "index 300 is out of bounds for axis 0 with size 300"),
        ([-301, 0], "index -301 is out of bounds"),
        ([0.5], "must be integers, got float64"),
        ([True, False], "must be integers, got bool"),
        (["x"], "must be integers"),
        ([2**63], "index 9223372036854775808 is out of bounds"),
    ],
)
def test_take_of_invalid_rows_raises(array: lowtide.Array, rows: Any, words: str) -> None:
    with pytest.raises(errors.IndexingError, match=words) as caught:
        array.take(rows)
    assert array.path in str(caught.value)


def read_only() -> np.ndarray:
    return np.frombuffer(bytes(2 * 16), "i4").reshape(2, 4)


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((3, 4), "i4"),
        np.zeros((2, 4), "i8"),
        np.zeros((2, 4), ">i4"),
        np.zeros((2, 8), "i4")[:, ::2],
        np.zeros((2, 4), "i4", order="F"),
        read_only(),
    ],
    ids=["shape", "dtype", "byte order", "gaps", "Fortran", "read-only"],
)
@pytest.mark.parametrize("rows", [[0, 1]])
def test_take_into_unsuitable_out_raises(array: lowtide.Array, rows: list[int], out: np.ndarray) -> None:
    before = out.copy()
    with pytest.raises(errors.ArgumentError, match="out must be a writable C-contiguous array of shape"):
        array.take(rows, out=out)
    assert (out == before).all()


def test_take_never_writes_to_immutable_buffer(tmp_path: Path) -> None:
    """The kernel does not know NumPy's flags."""
    np.save(tmp_path / "b.npy", np.ones((5000, 4), "i4"))
    immutable = bytes(5000 * 16)
    out = np.frombuffer(immutable, "i4").reshape(5000, 4)
    words = "writable: False"
    with lowtide.open(tmp_path / "b.npy") as array, pytest.raises(errors.ArgumentError, match=words):
        array.take(range(5000), out=out)
    assert immutable == bytes(5000 * 16)


def test_take_into_unaligned_out_works(array: lowtide.Array) -> None:
    out = np.zeros(33, np.uint8)[1:].view("i4").reshape(2, 4)
    assert not out.flags.aligned
    array.take([3, 1], out=out)
    assert (out == EXPECTED[[3, 1]]).all()


# Becoming an ndarray


def test_numpy_functions_load_array(array: lowtide.Array) -> None:
    assert (np.asarray(array) == EXPECTED).all()
    assert np.asarray(array, "f8").dtype == np.float64
    assert np.array(array, copy=True).flags.writeable
    assert np.sum(array) == EXPECTED.sum()
    assert (np.concatenate([array, EXPECTED]) == np.concatenate([EXPECTED, EXPECTED])).all()


def test_asarray_without_copy_raises(array: lowtide.Array) -> None:
    with pytest.raises(ValueError, match="cannot become an ndarray without a copy"):
        np.asarray(array, copy=False)


def test_implicit_load_beyond_limit_raises(array: lowtide.Array) -> None:
    with mock.patch.object(array_module, "IMPLICIT_LOAD_LIMIT", array.nbytes):
        assert np.asarray(array).shape == (300, 4)
    with mock.patch.object(array_module, "IMPLICIT_LOAD_LIMIT", array.nbytes - 1):
        with pytest.raises(errors.BudgetError, match=r"array\.chunks\(\)") as caught:
            np.asarray(array)
        assert "array[:]" in str(caught.value)
        assert array.path in str(caught.value)
        assert isinstance(caught.value, MemoryError)
        assert array[:].shape == (300, 4)


# Iterating


@every_variant
def test_iterating_gives_rows(path: Path, variant: Variant) -> None:
    with variant.open(path) as array, mock.patch.object(array_module, "_ITERATE_AT_ONCE", 7 * 16):
        rows = list(array)
    assert len(rows) == 300
    assert all((a == b).all() for a, b in zip(rows, EXPECTED, strict=True))
    assert all(type(row) is np.ndarray and row.base is None and row.flags.writeable for row in rows)


@pytest.mark.parametrize("dtype", ["i8", ">f4", "S3", "M8[s]", "?", [("a", "i4"), ("b", "f8")]], ids=str)
def test_iterating_1d_array_gives_numpy_scalars(tmp_path: Path, dtype: Any) -> None:
    expected = np.arange(5).astype(dtype)
    np.save(tmp_path / "b.npy", expected)
    with lowtide.open(tmp_path / "b.npy") as array:
        rows = list(array)
        assert list(map(type, rows)) == list(map(type, expected))
        assert rows == list(expected)
        assert list(reversed(array)) == list(reversed(expected))


def test_iterated_elements_are_hashable(tmp_path: Path) -> None:
    labels = np.array([0, 1, 1, 2, 1])
    np.save(tmp_path / "b.npy", labels)
    with lowtide.open(tmp_path / "b.npy") as array:
        assert Counter(array) == Counter(labels.tolist())
        assert set(array) == {0, 1, 2}
        assert {1: "one"}[array[1]] == "one"
        assert round(array[3] / 3, 2) == 0.67


def test_iterating_0d_array_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array(7))
    with lowtide.open(tmp_path / "b.npy") as array:
        with pytest.raises(TypeError, match="no dimensions"):
            iter(array)
        assert array[()] == array[...] == 7


def test_break_from_loop_ends_prefetch_thread(array: lowtide.Array) -> None:
    for _ in array:
        break
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("lowtide-prefetch"):
            thread.join(10)
            assert not thread.is_alive()


# Its life


@any_reader
def test_use_after_close_raises(path: Path, reader: Any) -> None:
    array = lowtide.open(path, reader=reader)
    states = [array.closed]
    with array as same:
        assert same is array
        assert array[0, 0] == 0
    states.append(array.closed)
    array.close()
    assert [*states, array.closed] == [False, True, True]
    for use in (
        lambda: array[0],
        lambda: array.take([0]),
        lambda: array.chunks(5),
        lambda: next(iter(array)),
        lambda: np.asarray(array),
        lambda: pickle.dumps(array),
        lambda: array.__enter__(),
        lambda: array._read_runs(np.array([0]), 1, np.zeros((1, 4), "i4")),
    ):
        with pytest.raises(errors.ClosedError, match=r"a\.npy: "):
            use()
    assert array.shape == (300, 4)
    assert "a.npy" not in " ".join(
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    )


def test_dropped_array_releases_descriptor(path: Path) -> None:
    array = lowtide.open(path)
    key = array._reader._file.key  # type: ignore[attr-defined]
    assert key in POOL._entries
    del array
    gc.collect()
    assert key not in POOL._entries


@any_reader
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickled_array_reads_the_same(path: Path, reader: Any, order: Any) -> None:
    np.save(path, np.asarray(EXPECTED, order=order))
    with lowtide.open(path, reader=reader, cache="drop") as array:
        text = pickle.dumps(array)
        assert len(text) < 600
        for again in (pickle.loads(text), copy.copy(array), copy.deepcopy(array)):
            assert again._layout == array._layout
            assert again.reader == array.reader
            assert (again[:] == EXPECTED).all()
            again.close()
        assert (array[:] == EXPECTED).all()


def test_pickling_a_member_keeps_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=EXPECTED, b=EXPECTED + 1)
    with lowtide.open(tmp_path / "x.npz", name="b") as array:
        again = pickle.loads(pickle.dumps(array))
    assert again._layout.name == "b"
    assert (again[3:5] == EXPECTED[3:5] + 1).all()
    again.close()


def test_unpickling_with_missing_or_truncated_file_raises(path: Path) -> None:
    with lowtide.open(path) as array:
        text = pickle.dumps(array)
    os.truncate(path, 300)
    with pytest.raises(errors.TruncatedFileError):
        pickle.loads(text)
    path.unlink()
    with pytest.raises(errors.NotFoundError):
        pickle.loads(text)


@every_variant
def test_threads_read_correctly_while_descriptors_are_evicted(
    tmp_path: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POOL, "limit", 2)
    for i in range(5):
        np.save(tmp_path / f"{i}.npy", EXPECTED + 10_000 * i)
    arrays = [
        lowtide.open(tmp_path / f"{i}.npy", reader=variant.reader, cache=variant.cache) for i in range(5)
    ]

    def work(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(round(0.8 * EXAMPLES)):
            i = rng.randrange(5)
            rows = [rng.randrange(300) for _ in range(rng.choice([1, 20, 300]))]
            assert (arrays[i][rows] == EXPECTED[rows] + 10_000 * i).all()
            assert (arrays[i][::7, 1] == EXPECTED[::7, 1] + 10_000 * i).all()
        return seed

    with variant.platform(), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    for array in arrays:
        array.close()


def test_close_while_threads_read_raises_closed_error(path: Path) -> None:
    """Whoever is reading gets all of it or a ClosedError, never anything else."""
    for _ in range(20):
        array = lowtide.open(path)
        outcomes: list[str] = []

        def work(array: lowtide.Array = array, outcomes: list[str] = outcomes) -> None:
            try:
                while True:
                    assert (array[:] == EXPECTED).all()
                    outcomes.append("read")
            except errors.ClosedError:
                outcomes.append("closed")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while outcomes.count("read") < 4:
            time.sleep(0.001)
        array.close()
        for thread in threads:
            thread.join(10)
        assert outcomes.count("closed") == 4


# A file that changes


def forget(array: lowtide.Array) -> None:
    """As when so many other files were read that this one's descriptor was closed."""
    POOL.discard(array._reader._file.key)  # type: ignore[attr-defined]


@any_reader
def test_replaced_file_raises_and_new_open_reads_it(path: Path, reader: Any) -> None:
    with lowtide.open(path, reader=reader) as array:
        array[0]
        np.save(path.with_suffix(".new.npy"), EXPECTED + 1)
        os.replace(path.with_suffix(".new.npy"), path)
        with lowtide.open(path, reader=reader) as fresh:
            assert (fresh[:] == EXPECTED + 1).all()
            assert (array[:] == EXPECTED).all()  # still the old file, still open
            forget(array)
            with pytest.raises(errors.FileChangedError, match=r"a\.npy: was replaced"):
                array[0]
            assert (fresh[:] == EXPECTED + 1).all()


@any_reader
def test_deleted_and_rewritten_file_raises(path: Path, reader: Any) -> None:
    """It often gets the same inode number, and the same size."""
    with lowtide.open(path, reader=reader) as array:
        forget(array)
        path.unlink()
        np.save(path, EXPECTED + 1)
        with pytest.raises(errors.FileChangedError, match="open it again"):
            array[0]


@any_reader
def test_vanished_file_raises(path: Path, reader: Any) -> None:
    with lowtide.open(path, reader=reader) as array:
        array[0]
        path.unlink()
        assert (array[0] == EXPECTED[0]).all()  # the system keeps it for whoever has it open
        forget(array)
        with pytest.raises(errors.NotFoundError, match=r"a\.npy"):
            array[0]


@any_reader
def test_growing_file_is_read_at_opened_length(tmp_path: Path, reader: Any) -> None:
    path = tmp_path / "x.bin"
    np.arange(1000, dtype="u2").tofile(path)
    with lowtide.open(path, dtype="u2", reader=reader) as array:
        assert array[-1] == 999
        with open(path, "ab") as file:
            file.write(np.arange(1000, 9000, dtype="u2").tobytes())
        assert (array[:] == np.arange(1000)).all()
        with lowtide.open(path, dtype="u2", reader=reader) as longer:
            assert (longer[:] == np.arange(9000)).all()
            assert (array[:] == np.arange(1000)).all()


@any_reader
def test_truncated_file_raises(path: Path, reader: Any) -> None:
    with lowtide.open(path, reader=reader) as array:
        array[-1]
        os.truncate(path, 1000)
        for last in (-1, (-1, -1), slice(-1, None)):
            with pytest.raises(errors.TruncatedFileError, match="was truncated"):
                array[last]
        with pytest.raises(errors.TruncatedFileError):
            array[:]
    with pytest.raises(errors.TruncatedFileError):
        lowtide.open(path)


@pytest.mark.parametrize("options", [{"reader": "mmap"}, {"cache": "maybe"}], ids=str)
def test_unknown_reader_or_cache_raises(path: Path, options: Any) -> None:
    with pytest.raises(errors.ArgumentError):
        lowtide.open(path, **options)


# For those who have checked what they ask for


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("turned", [1, 100, 10**6])
def test_read_runs_fills_buffer(path: Path, order: Any, turned: int) -> None:
    expected = np.arange(60 * 6, dtype="i4").reshape(60, 2, 3)
    np.save(path, np.asarray(expected, order=order))
    with lowtide.open(path) as array, mock.patch.object(stored, "_TRANSPOSED_AT_ONCE", turned):
        for starts, run in [([5], 1), ([5], 20), ([30, 0, 12], 4), ([7, 3], 1), ([], 3)]:
            out = np.zeros((len(starts) * run, 2, 3), "i4")
            array._read_runs(np.array(starts, np.int64), run, out)
            rows = [start + i for start in starts for i in range(run)]
            assert (out == expected[rows]).all()


@every_variant
@pytest.mark.parametrize("order", ["C", "F"])
def test_submit_rows_fills_buffer(path: Path, variant: Variant, order: Any) -> None:
    np.save(path, np.asarray(EXPECTED, order=order))
    with variant.open(path) as array:
        for start, stop in [(0, 300), (0, 1), (299, 300), (7, 130), (5, 5)]:
            out = np.full((stop - start, 4), -1, "i4")
            pending = array._submit_rows(start, stop, out)
            if pending.done:
                assert (out == EXPECTED[start:stop]).all()
            pending.wait()
            assert (out == EXPECTED[start:stop]).all()


@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (2, 0, 3)])
def test_empty_fortran_order_array_is_read(path: Path, shape: tuple[int, ...]) -> None:
    """NumPy never writes such a header, but reads it."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": True, "shape": shape})
    with lowtide.open(path) as array:
        for shuffle in (False, True, "blocks"):
            chunks = [np.empty((0, *shape[1:])), *array.chunks(2, shuffle=shuffle)]
            assert np.concatenate(chunks).shape == shape
        assert array[:].shape == array.take(range(shape[0])).shape == shape
