"""Arrays whose elements are assigned: whatever NumPy does to memory, to the file."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import assignment, writable
from lowtide._arrays.indexing import Selection
from lowtide.errors import (
    ArgumentError,
    ClosedError,
    FileChangedError,
    IndexingError,
    UnsupportedError,
    WriteError,
)
from tests.support.rows import save
from tests.unit.arrays.test_indexing import arrays, content, filled, indices

_numbers = itertools.count()


@given(st.data())
def test_assignment_matches_numpy(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    expected = np.asarray(data.draw(arrays().filter(lambda array: array.dtype.itemsize > 0))).copy("K")
    path = tmp_path_factory.getbasetemp() / f"assigned{next(_numbers)}.npy"
    np.save(path, expected)
    index = data.draw(indices(expected.shape))
    at_once = data.draw(st.sampled_from([1, 64, 2**22]))
    with pytest.MonkeyPatch.context() as patch, lowtide.open(path, mode="r+") as array:
        patch.setattr(writable, "_AT_ONCE", at_once)
        try:
            shape = expected[index].shape
        except IndexError:
            with pytest.raises(IndexingError):
                array[index] = expected.reshape(-1)[:1]
            return
        values = filled(shape, expected.dtype)[::-1] if shape else filled((1,), expected.dtype)[0]
        for dropped in range(data.draw(st.integers(0, len(shape)))):  # what is left broadcasts
            values = values[0] if len(values) else filled(shape[dropped + 1 :], expected.dtype)
        expected[index] = values
        try:
            array[index] = values
        except IndexingError:
            assert not np.prod(shape)  # NumPy looks away from indices that do not fit if nothing is selected
            return
        assert content(array[...]) == content(expected)
    assert content(np.load(path)) == content(expected)
    path.unlink()


@pytest.mark.parametrize("nbytes", [1, 8, 40, 1000])
def test_parts_cover_a_selection_once_and_stay_small(nbytes: int) -> None:
    shape, strides = (6, 5, 4), (80, 16, 4)
    for index in (slice(None), ([[3, 1], [3, 5]], slice(None, None, -2)), (Ellipsis, [1, 0]), (2, slice(4))):
        selection = Selection.of(index, shape, strides, 4)
        seen = np.zeros(selection.shape, int)
        for part, place in assignment.parts(selection, nbytes):
            seen[place] += 1
            assert part.shape == seen[place].shape
            assert np.prod(part.shape) * 4 <= max(nbytes, 4)
        assert (seen == 1).all()


def test_last_value_of_repeated_rows_is_kept(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "x.npy", "i8", shape=5) as out:
        out[[3, 3, 1, 3]] = [1, 2, 3, 4]
        assert out[:].tolist() == [0, 3, 0, 4, 0]


class TestCreate:
    @pytest.mark.parametrize("name", ["x.npy", "x.bin"])
    def test_file_appears_when_closed(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        with lowtide.create(path, "<f4", shape=(4, 3)) as out:
            out[1] = 2.5
            out.flush()
            assert not path.exists()
            assert out.path == str(path)
            assert "not yet published" in repr(out)
        raw: dict[str, Any] = {} if name == "x.npy" else {"dtype": "<f4", "shape": (4, 3)}
        assert lowtide.open(path, **raw)[:].tolist() == [[0] * 3, [2.5] * 3, [0] * 3, [0] * 3]
        assert os.listdir(tmp_path) == [name]

    def test_exception_keeps_old_file(self, tmp_path: Path) -> None:
        before = save(tmp_path / "x.npy", 3)
        with pytest.raises(ZeroDivisionError), lowtide.create(tmp_path / "x.npy", "i4", shape=9) as out:
            out[:] = 1 // 0
        assert (np.load(tmp_path / "x.npy") == before).all()
        assert os.listdir(tmp_path) == ["x.npy"]

    def test_unclosed_array_warns_and_leaves_no_file(self, tmp_path: Path) -> None:
        kept = [lowtide.create(tmp_path / "x.npy", "i4", shape=9)]
        with pytest.warns(ResourceWarning, match=r"the array of shape \(9,\) was not published"):
            kept.clear()
        assert os.listdir(tmp_path) == []
        with lowtide.create(tmp_path / "x.npy", "i4", shape=9):
            pass  # nothing to report at exit any more

    def test_creating_path_again_closes_older_array(self, tmp_path: Path) -> None:
        old = lowtide.create(tmp_path / "x.npy", "i4", shape=9)
        with pytest.warns(ResourceWarning, match="takes over"):
            new = lowtide.create(tmp_path / "x.npy", "i4", shape=3)
        with pytest.raises(ClosedError):
            old[0] = 1
        new[:] = 7
        new.close()
        assert np.load(tmp_path / "x.npy").tolist() == [7, 7, 7]

    def test_array_without_elements_is_created(self, tmp_path: Path) -> None:
        with lowtide.create(tmp_path / "x.npy", "i4", shape=(0, 3)) as out:
            out[:] = 5
        assert np.load(tmp_path / "x.npy").shape == (0, 3)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"shape": -1}, "shape must be"),
            ({"shape": (3, "4")}, "shape must be"),
            ({"shape": 3, "append": True}, "together with append"),
            ({"shape": 3, "row_shape": 2}, "together with append"),
            ({"shape": 3, "dtype": None}, "needs a dtype"),
            ({"shape": 3, "casting": "no"}, "casting must be"),
        ],
    )
    def test_bad_arguments_are_refused(self, tmp_path: Path, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(ArgumentError, match=problem):
            lowtide.create(tmp_path / "x.npy", **{"dtype": "f4", **options})
        assert os.listdir(tmp_path) == []

    def test_shape_beyond_file_size_limit_raises(self, tmp_path: Path) -> None:
        for name in ("x.npy", "x.bin"):
            with pytest.raises((ValueError, OSError)) as caught:
                lowtide.create(tmp_path / name, "f8", shape=(2**40, 2**40))
            assert isinstance(caught.value, lowtide.LowtideError)
        assert os.listdir(tmp_path) == []


class TestInPlace:
    def test_elements_are_written_to_the_file(self, tmp_path: Path) -> None:
        expected = save(tmp_path / "x.npy", 5)
        array = lowtide.open(tmp_path / "x.npy", mode="r+")
        array[1:3, 2] = [40, 50]
        expected[1:3, 2] = [40, 50]
        array.flush()
        assert (np.load(tmp_path / "x.npy") == expected).all()
        array[0] += 1
        expected[0] += 1
        assert [chunk.tolist() for chunk in array.chunks(5)] == [expected.tolist()]
        array.close()
        assert (np.load(tmp_path / "x.npy") == expected).all()

    def test_safetensors_and_raw_files_are_written(self, tmp_path: Path) -> None:
        from safetensors.numpy import load_file, save_file

        save_file({"w": np.zeros((2, 2), "f4"), "v": np.ones(2, "f4")}, tmp_path / "x.safetensors")
        with lowtide.open(tmp_path / "x.safetensors", name="w", mode="r+") as array:
            array[1] = 3
        assert load_file(tmp_path / "x.safetensors")["w"].tolist() == [[0, 0], [3, 3]]
        assert load_file(tmp_path / "x.safetensors")["v"].tolist() == [1, 1]
        (tmp_path / "x.bin").write_bytes(bytes(12))
        with lowtide.open(tmp_path / "x.bin", "<u2", offset=2, mode="r+") as array:
            array[-1] = 258
        assert (tmp_path / "x.bin").read_bytes() == bytes(10) + b"\x02\x01"

    def test_zip_archives_are_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", a=np.zeros(3))
        with pytest.raises(UnsupportedError, match="npz files are not written in place"):
            lowtide.open(tmp_path / "x.npz", mode="r+")

    def test_open_reader_of_changed_file_raises(self, tmp_path: Path) -> None:
        save(tmp_path / "x.npy", 5)
        reader = lowtide.open(tmp_path / "x.npy")
        os.utime(tmp_path / "x.npy", ns=(0, 0))
        reader = lowtide.open(tmp_path / "x.npy")
        with lowtide.open(tmp_path / "x.npy", mode="r+") as array:
            array[0] = 1
        with pytest.raises(FileChangedError):
            reader[0]

    def test_flush_of_replaced_file_raises(self, tmp_path: Path) -> None:
        save(tmp_path / "x.npy", 5)
        array = lowtide.open(tmp_path / "x.npy", mode="r+")
        save(tmp_path / "y.npy", 5)
        os.replace(tmp_path / "y.npy", tmp_path / "x.npy")
        array[0] = 9
        with pytest.raises(WriteError, match="another file has taken its place"):
            array.flush()
        with pytest.raises(WriteError, match="another file has taken its place"):
            array.close()
        assert array.closed

    def test_append_to_file_opened_for_writing_raises(self, tmp_path: Path) -> None:
        save(tmp_path / "x.npy", 5)
        with lowtide.open(tmp_path / "x.npy", mode="r+"), lowtide.open(tmp_path / "x.npy", mode="r+"):
            with pytest.raises(WriteError, match="is being written"):
                lowtide.create(tmp_path / "x.npy", append=True)
        with lowtide.create(tmp_path / "x.npy", append=True) as out:
            with pytest.raises(WriteError, match="already writing"):
                lowtide.open(tmp_path / "x.npy", mode="r+")
            out.append([[1, 2, 3]])

    def test_read_only_files_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save(tmp_path / "x.npy", 5)
        opened = os.open

        def denied(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_RDWR:
                raise PermissionError(13, "Permission denied", path)
            return opened(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", denied)  # root may write everything
        with pytest.raises(PermissionError) as caught:
            lowtide.open(tmp_path / "x.npy", mode="r+")
        assert isinstance(caught.value, WriteError)
        assert caught.value.filename == str(tmp_path / "x.npy")

    def test_full_disk_raises_disk_full_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save(tmp_path / "x.npy", 5)
        with lowtide.open(tmp_path / "x.npy", mode="r+") as array:

            def full(*arguments: Any) -> int:
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", full)
                with pytest.raises(lowtide.errors.DiskFullError):
                    array[0] = 1


class TestValues:
    @pytest.fixture
    def array(self, tmp_path: Path) -> Any:
        save(tmp_path / "x.npy", 4)
        with lowtide.open(tmp_path / "x.npy", mode="r+") as array:
            yield array

    @pytest.mark.parametrize(
        ("index", "value", "problem"),
        [
            (0, [1, 2], r"shape \(2,\) cannot be broadcast to the selection's shape \(3,\)"),
            (0, 1.5, "not of the same kind"),
            (0, 2**40, "does not fit into int32"),
            (0, "three", "not of the same kind"),
            (slice(2), np.ma.masked_less([[1, 2, 3], [4, 5, 6]], 3), "masked"),
        ],
    )
    def test_values_that_do_not_fit_are_refused_and_change_nothing(
        self, array: Any, index: Any, value: Any, problem: str
    ) -> None:
        before = array[:]
        with pytest.raises(ArgumentError, match=problem):
            array[index] = value
        assert (array[:] == before).all()

    def test_index_out_of_bounds_raises(self, array: Any) -> None:
        for index in (4, [0, 4], (slice(None), 3), (0, 0, 0)):
            with pytest.raises(IndexingError, match=r"x\.npy"):
                array[index] = 0

    def test_unsafe_casting_converts_like_numpy(self, tmp_path: Path, array: Any) -> None:
        with lowtide.open(array.path, mode="r+", casting="unsafe") as other:
            other[0] = 1.5
        assert array[0].tolist() == [1, 1, 1]

    def test_assigned_array_on_disk_is_copied_in_pieces(
        self, tmp_path: Path, array: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writable, "_AT_ONCE", 16)
        expected = save(tmp_path / "y.npy", 4) * 3
        np.save(tmp_path / "y.npy", expected)
        array[:] = lowtide.open(tmp_path / "y.npy")
        assert (array[:] == expected).all()

    @pytest.mark.parametrize("view", ["rows", "astype", "files"])
    def test_values_of_the_same_file_are_refused(self, tmp_path: Path, array: Any, view: str) -> None:
        views: dict[str, Callable[[], lowtide.Array]] = {
            "rows": lambda: array.rows(0, -1),
            "astype": lambda: lowtide.open(array.path).astype("i2").rows(0, -1),
            "files": lambda: lowtide.open([array.path]).rows(0, -1),
        }
        same, before = views[view](), array[:]
        with pytest.raises(ArgumentError, match="values of the same file"):
            array[1:] = same
        assert (array[:] == before).all()
        array[1:] = same[:]
        assert (array[1:] == before[:-1]).all()

    def test_row_number_in_error_counts_across_pieces(
        self, array: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writable, "_AT_ONCE", 12)
        values = np.zeros((4, 3), "i8")
        values[2, 1] = 2**40
        with pytest.raises(ArgumentError, match="in row 2 does not fit"):
            array[:] = values

    def test_records_are_assigned(self, tmp_path: Path) -> None:
        dtype = np.dtype([("id", "i4"), ("score", "f4")])
        with lowtide.create(tmp_path / "r.npy", dtype, shape=3) as out:
            out[1] = (7, 0.5)
            out[2] = np.array((8, 1.5), dtype)
        assert np.load(tmp_path / "r.npy").tolist() == [(0, 0), (7, 0.5), (8, 1.5)]

    def test_fields_are_assigned_as_in_numpy(self, tmp_path: Path) -> None:
        dtype = np.dtype([("id", ">i4"), ("xy", "f4", (2,)), ("tag", "S3")], align=True)
        for order in ("C", "F"):
            expected = np.zeros((5, 2), dtype, order)
            np.save(tmp_path / "r.npy", expected)
            with lowtide.open(tmp_path / "r.npy", mode="r+") as out:
                for array in (expected, out):
                    array["id"] = np.arange(10).reshape(5, 2)
                    array["xy"][1:3] = [1, 2]
                    array["xy"][..., 1] = 7
                    array["tag"][[0, 4], 1] = b"ab"
                    array[["id", "tag"]] = array[["tag", "id"]][:][["id", "tag"]]
                pickle.loads(pickle.dumps(out["id"]))[0, 0] = expected["id"][0, 0] = 99
                assert content(out[...]) == content(expected)
                assert content(out["xy"][2]) == content(expected["xy"][2])
            assert content(np.load(tmp_path / "r.npy")) == content(expected)

    @pytest.mark.parametrize(
        ("field", "index", "value", "error", "problem"),
        [
            ("id", 0, 1.5, ArgumentError, "not of the same kind"),
            ("tag", 0, b"long", ArgumentError, "does not fit"),
            ("id", 3, 1, IndexingError, "out of bounds"),
            ("no", 0, 1, IndexingError, "has no field 'no'; its fields are"),
            (["id", "tag"], ..., 1, ArgumentError, "must be records with a field 'id'"),
        ],
    )
    def test_bad_values_of_fields_are_refused(
        self, tmp_path: Path, field: Any, index: Any, value: Any, error: Any, problem: str
    ) -> None:
        with lowtide.create(tmp_path / "r.npy", [("id", "i4"), ("tag", "S3")], shape=3) as out:
            with pytest.raises(error, match=problem):
                if isinstance(field, str):
                    out[field][index] = value
                else:
                    out[field] = value
            assert out[:].tolist() == [(0, b"")] * 3

    def test_missing_fields_are_refused_with_the_path_once(self, tmp_path: Path) -> None:
        with lowtide.create(tmp_path / "r.npy", [("id", "i4"), ("tag", "S3")], shape=3) as out:
            for names in ("no", ["id", "no"]):
                with pytest.raises(IndexingError) as raised:
                    out[names]
                assert str(raised.value).count("r.npy") == 1

    def test_other_views_are_read_only(self, array: Any) -> None:
        for view in (array.rows(1), array.select([0]), array.columns[0], array.astype("f4")):
            with pytest.raises(TypeError, match=r"views are read-only; assign to the array itself"):
                view[0] = 1

    def test_in_place_operator_error_has_remedy(self, array: Any) -> None:
        with pytest.raises(TypeError, match="in pieces"):
            array += 1
        with pytest.raises(TypeError, match="in pieces"):
            np.add(1, 2, out=array)

    def test_assigning_to_closed_array_raises(self, array: Any) -> None:
        array.close()
        with pytest.raises(ClosedError):
            array[0] = 1
        with pytest.raises(ClosedError):
            array.flush()


def test_unpickled_array_writes_same_file_without_publishing(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "x.npy", "i4", shape=3)
    other = pickle.loads(pickle.dumps(out))
    other[1] = 5
    other.close()
    assert not (tmp_path / "x.npy").exists()
    assert out[:].tolist() == [0, 5, 0]
    sent = pickle.dumps(out)
    out.close()
    assert np.load(tmp_path / "x.npy").tolist() == [0, 5, 0]
    with pytest.raises(OSError, match=r"x\.npy"):
        pickle.loads(sent)[0] = 1
    with lowtide.open(tmp_path / "x.npy", mode="r+") as array:
        copy.copy(array)[2] = 6
        assert array[:].tolist() == [0, 5, 6]


def test_threads_write_their_own_rows(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "x.npy", "i8", shape=(400, 50)) as out:

        def fill(first: int) -> None:
            for row in range(first, 400, 4):
                out[row] = row

        threads = [threading.Thread(target=fill, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (np.load(tmp_path / "x.npy") == np.arange(400)[:, None]).all()


def test_normal_use_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lowtide.create(tmp_path / "x.npy", "i8", shape=3) as out:
            out[0] = 1
        del out
        array = lowtide.open(tmp_path / "x.npy", mode="r+")
        array[0] = 2
        del array
        gc.collect()
    assert np.load(tmp_path / "x.npy").tolist() == [2, 0, 0]
