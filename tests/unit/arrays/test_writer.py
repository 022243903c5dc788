"""lowtide._arrays.writer: rows in, one complete file out, or nothing."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import shutil
import stat
import threading
import time
import warnings
from pathlib import Path
from typing import NoReturn
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import targets
from lowtide._io import atomic, system
from lowtide._io.pace import Pace
from lowtide.errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    DiskFullError,
    FormatError,
    UnsupportedError,
    WriteError,
)
from tests.support.examples import examples
from tests.support.rows import read, write


@given(
    parts=st.lists(st.integers(0, 50), max_size=5),
    row_shape=st.sampled_from([(), (1,), (3,), (2, 3)]),
    dtype=st.sampled_from(["<f4", ">f8", "u1", "<i2", "S3"]),
)
@examples(0.8)
def test_appended_rows_are_loaded_by_numpy(
    tmp_path_factory: pytest.TempPathFactory, parts: list[int], row_shape: tuple[int, ...], dtype: str
) -> None:
    folder = tmp_path_factory.mktemp("write")
    whole = np.arange(sum(parts) * int(np.prod(row_shape, dtype=int))).astype("f8" if dtype != "S3" else "S3")
    whole = (whole % 100 if dtype != "S3" else whole).astype(dtype).reshape(-1, *row_shape)
    for name in ("out.npy", "out.bin"):
        with lowtide.create(folder / name, dtype, row_shape) as out:
            start = 0
            for rows in parts:
                out.append(whole[start : start + rows])
                start += rows
    loaded = np.load(folder / "out.npy")
    assert loaded.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(loaded, whole)
    np.testing.assert_array_equal(np.fromfile(folder / "out.bin", dtype).reshape(-1, *row_shape), whole)


def test_file_is_not_visible_before_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with lowtide.create(path, "f4", 2) as out:
        out.append([[1, 2]])
        assert not path.exists()
    assert path.exists()
    assert os.listdir(tmp_path) == ["out.npy"]


def test_exception_keeps_only_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    np.save(path, np.arange(3))
    with pytest.raises(ZeroDivisionError), lowtide.create(path, "f4") as out:
        out.append([1.0])
        raise ZeroDivisionError
    np.testing.assert_array_equal(np.load(path), np.arange(3))
    assert os.listdir(tmp_path) == ["out.npy"]


def test_dropped_writer_warns_and_leaves_no_file(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "out.npy", "f4")
    out.append([1.0])
    with pytest.warns(ResourceWarning, match=r"out\.npy: 1 rows were not published.*with lowtide\.create"):
        del out
    assert os.listdir(tmp_path) == []
    lowtide.create(tmp_path / "out.npy", "f4").close()  # so that nothing is reported at exit


@pytest.mark.parametrize("name", ["out.npy", "out.bin"])
class TestAppend:
    def test_append_adds_to_existing_rows(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        for part in ([[1, 2]], [[3, 4], [5, 6]], []):
            with lowtide.create(path, "i4", 2, append=True) as out:
                out.append(np.array(part, "i4").reshape(-1, 2))
        assert read(path) == [[1, 2], [3, 4], [5, 6]]
        assert os.listdir(tmp_path) == [name]

    def test_readers_see_old_rows_until_append_ends(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        with lowtide.create(path, "i4", 2, append=True) as out:
            out.append([[3, 4]])
            assert read(path) == [[1, 2]]
        assert read(path) == [[1, 2], [3, 4]]

    def test_exception_removes_appended_rows(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        before = path.read_bytes()
        with pytest.raises(ZeroDivisionError), lowtide.create(path, "i4", 2, append=True) as out:
            out.append([[3, 4]])
            raise ZeroDivisionError
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == [name]


def test_append_to_mismatched_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "old.npy"
    np.save(path, np.zeros((4, 3), "f8"))
    with pytest.raises(ArgumentError, match=r"old\.npy: holds npy of float64, shape \(4, 3\).*float32"):
        lowtide.create(path, "f4", 3, append=True)
    raw = tmp_path / "old.bin"
    raw.write_bytes(b"12345")
    with pytest.raises(FormatError, match=r"old\.bin: has 5 bytes, not a multiple of rows of 4 bytes"):
        lowtide.create(raw, "f4", append=True)


def test_file_of_np_save_can_be_appended_to(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6, dtype="f4").reshape(2, 3))
    with lowtide.create(tmp_path / "a.npy", "f4", 3, append=True) as out:
        out.append([[6, 7, 8]])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(9, dtype="f4").reshape(3, 3))


@pytest.mark.parametrize(
    ("rows", "dtype", "message"),
    [
        pytest.param(np.zeros((2, 4)), "f8", r"shape \(n, 3\), got \(2, 4\)", id="shape"),
        pytest.param(np.full((1, 3), 70_000), "u2", "70000 in row 0 does not fit", id="too large"),
        pytest.param(np.full((1, 3), -1), "u2", "-1 in row 0 does not fit into uint16", id="negative"),
        pytest.param(np.zeros((1, 3)), "i4", "float64 is not of the same kind", id="float to int"),
        pytest.param(np.zeros((1, 3), complex), "f4", "complex128 is not of the same kind", id="complex"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: np.ndarray, dtype: str, message: str) -> None:
    with lowtide.create(tmp_path / "out.npy", dtype, 3) as out:
        with pytest.raises(ArgumentError, match=message):
            out.append(rows)
    assert np.load(tmp_path / "out.npy").shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "dtype", "row_shape", "kind", "message"),
    [
        pytest.param("x.npy", object, (), UnsupportedError, "pickles", id="objects"),
        pytest.param("x.npy", "S0", (), ArgumentError, "no fixed size", id="no size"),
        pytest.param("x.npy", "no such type", (), ArgumentError, "not understood", id="dtype"),
        pytest.param("x.npy", "(,)f8", (), ArgumentError, "not understood", id="dtype syntax"),
        pytest.param("x.npy", "f4", (-1,), ArgumentError, r"integer >= 0 .* got \(-1,\)", id="shape"),
        pytest.param("x.npz", "f4", (), UnsupportedError, r"\.npz files are read and not written", id="npz"),
    ],
)
def test_invalid_create_arguments_raise(
    tmp_path: Path, name: str, dtype: object, row_shape: tuple[int, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        lowtide.create(tmp_path / name, dtype, row_shape)  # type: ignore[call-overload]
    assert os.listdir(tmp_path) == []


def test_use_after_close_raises_with_a_remedy(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "out.npy", "f4")
    out.close()
    out.close()
    out.abort()
    with pytest.raises(ClosedError, match="append=True"):
        out.append([1.0])


def test_missing_folder_or_folder_as_path_raises(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="no such file or directory"):
        lowtide.create(tmp_path / "nowhere" / "out.npy", "f4")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        lowtide.create(tmp_path, "f4")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_error_has_file_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    path = tmp_path / "out.npy"
    out = lowtide.create(path, "f8")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(full, data, 0))
    with pytest.raises(DiskFullError, match=r"out\.npy: no space left on the device; free some space"):
        out.append(np.zeros(10))
    os.close(full)
    assert os.listdir(tmp_path) == []


class TestUnclosed:
    def test_creating_path_again_closes_older_writer(self, tmp_path: Path) -> None:
        """A cell that is run again, with the older writer still in Out[] or in a traceback."""
        path = tmp_path / "out.npy"
        first = lowtide.create(path, "f4")
        first.append([1.0, 2.0])
        with pytest.warns(ResourceWarning, match="this process already had a writer.* 2 rows were discarded"):
            second = lowtide.create(path, "f4")
        with pytest.raises(ClosedError, match=r"a newer lowtide\.create in this process took over"):
            first.append([3.0])
        with pytest.raises(ClosedError, match="took over"):
            first.close()
        first.abort()
        second.append([4.0])
        second.close()
        assert np.load(path).tolist() == [4.0]
        assert os.listdir(tmp_path) == ["out.npy"]

    @pytest.mark.parametrize("append", [(True, True), (True, False), (False, True)])
    def test_taking_over_append_discards_unpublished_rows(
        self, tmp_path: Path, append: tuple[bool, bool]
    ) -> None:
        path = tmp_path / "out.bin"
        write(path, [[1, 2]])
        first = lowtide.create(path, "i4", 2, append=append[0])
        first.append([[3, 4]])
        with pytest.warns(ResourceWarning):
            second = lowtide.create(path, "i4", 2, append=append[1])
        second.append([[5, 6]])
        second.close()
        del first
        assert read(path) == ([[1, 2], [5, 6]] if append[1] else [[5, 6]])
        assert os.listdir(tmp_path) == ["out.bin"]

    def test_threads_writing_one_path_do_not_mix_rows(self, tmp_path: Path) -> None:
        """The descriptor of a writer that was taken over is often that of the newer one."""
        path = tmp_path / "out.npy"
        refused: list[str] = []

        def write(value: int) -> None:
            for _ in range(5):
                try:
                    with lowtide.create(path, "i8", 1000) as out:
                        for _ in range(20):
                            out.append(np.full((100, 1000), value))
                except ClosedError as error:
                    refused.append(str(error))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            threads = [threading.Thread(target=write, args=(value,)) for value in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        rows = np.load(path)
        assert rows.shape == (2000, 1000)
        assert len(np.unique(rows)) == 1
        assert all("took over" in message for message in refused)
        assert os.listdir(tmp_path) == ["out.npy"]

    def test_create_waits_for_thread_publishing_same_path(self, tmp_path: Path) -> None:
        path = tmp_path / "out.npy"
        publishing, ready = atomic.Partial.publish, threading.Event()

        def slow(partial: atomic.Partial) -> None:
            ready.set()
            time.sleep(0.2)
            publishing(partial)

        out = lowtide.create(path, "i8")
        out.append([1])
        with mock.patch.object(atomic.Partial, "publish", slow):
            thread = threading.Thread(target=out.close)
            thread.start()
            assert ready.wait(10)
            with lowtide.create(path, "i8", append=False) as other:
                thread.join()
                assert np.load(path).tolist() == [1]
                other.append([2])
        assert np.load(path).tolist() == [2]


class TestLinks:
    @pytest.mark.parametrize("there", [True, False])
    def test_link_is_followed(self, tmp_path: Path, there: bool) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "out.npy").symlink_to("disk/blob")
        if there:
            (tmp_path / "disk" / "blob").write_bytes(b"old")
        with lowtide.create(tmp_path / "out.npy", "f4") as out:
            out.append([1.0])
            assert ".blob.partial" in os.listdir(tmp_path / "disk")
        assert (tmp_path / "out.npy").is_symlink()
        assert np.load(tmp_path / "disk" / "blob").tolist() == [1.0]
        assert os.listdir(tmp_path / "disk") == ["blob"]

    def test_append_through_link_is_journalled_beside_target(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        write(tmp_path / "disk" / "a.npy", [[1, 2]])
        (tmp_path / "link").symlink_to("disk/a.npy")
        with lowtide.create(tmp_path / "link", append=True) as out:
            out.append([[3, 4]])
            assert read(tmp_path / "disk" / "a.npy", "i4", 2) == [[1, 2]]
            assert sorted(os.listdir(tmp_path / "disk")) == ["a.npy", "a.npy.appending"]
        assert read(tmp_path / "disk" / "a.npy", "i4", 2) == [[1, 2], [3, 4]]
        assert sorted(os.listdir(tmp_path)) == ["disk", "link"]

    def test_loop_of_links_raises(self, tmp_path: Path) -> None:
        (tmp_path / "a.npy").symlink_to("b.npy")
        (tmp_path / "b.npy").symlink_to("a.npy")
        with pytest.raises(WriteError, match="links form a loop") as caught:
            lowtide.create(tmp_path / "a.npy", "f4")
        assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(tmp_path / "a.npy"))

    def test_link_to_pipe_as_target_raises(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link.bin").symlink_to("pipe")
        with pytest.raises(UnsupportedError, match="is a device, a pipe or a socket"):
            lowtide.create(tmp_path / "link.bin", "f4")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_mode_of_replaced_file_is_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "out.npy"
    path.touch(mode=0o600)
    path.chmod(mode)
    with lowtide.create(path, "f4") as out:
        out.append([1.0])
        assert (tmp_path / ".out.npy.partial").stat().st_mode & 0o777 == mode | 0o600
    assert path.stat().st_mode & 0o777 == mode
    atomic.write_file(str(path), b"report")
    assert path.stat().st_mode & 0o777 == mode


class TestAfterAFailure:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*arguments: object) -> NoReturn:
            raise OSError(errno.ENOSPC, "No space left on device")

        self.refuse = refuse

    def test_use_after_failed_write_raises(
        self, tmp_path: Path, full: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ClosedError, match=r"writing failed before.*discarded") as caught:
            with lowtide.create(tmp_path / "out.npy", "f8") as out:
                monkeypatch.setattr(os, "pwrite", self.refuse)
                with pytest.raises(DiskFullError):
                    out.append([1.0])
                with pytest.raises(ClosedError, match="writing failed before"):
                    out.append([1.0])
        assert "append=True" not in str(caught.value)  # the block's end must not pass for success
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("out.npy", "pwrite"),
            ("out.npy", "fsync"),
            ("out.npy", "unlink"),
            ("out.bin", "fsync"),
            ("out.bin", "unlink"),
        ],
    )
    def test_append_that_fails_to_publish_keeps_old_rows(
        self, tmp_path: Path, full: None, monkeypatch: pytest.MonkeyPatch, name: str, call: str
    ) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        out = lowtide.create(path, "i4", 2, append=True)
        out.append([[3, 4]])
        real, calls = getattr(os, call), []

        def fail_once(*arguments: object) -> object:
            # The second fsync comes after the new header.
            calls.append(arguments)
            return self.refuse() if len(calls) == (2 if call == "fsync" else 1) else real(*arguments)

        monkeypatch.setattr(os, call, fail_once)
        with pytest.raises(DiskFullError):
            out.close()
        monkeypatch.undo()
        assert read(path) == [[1, 2]]
        assert os.listdir(tmp_path) == [name]

    @pytest.mark.parametrize("call", ["ftruncate", "fsync", "replace", "fstat"])
    def test_system_error_has_file_name(
        self, tmp_path: Path, full: None, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(os, call, self.refuse)
        with pytest.raises(DiskFullError) as caught:
            atomic.write_file(str(tmp_path / "report"), b"data")
        monkeypatch.undo()
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "report"))
        assert "report" not in os.listdir(tmp_path)
        assert len(os.listdir("/proc/self/fd")) == before

    def test_interrupted_append_writes_none_of_its_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with lowtide.create(tmp_path / "out.npy", "f8") as out:
            out.append([1.0])
            real = Pace.wrote

            def interrupt(pace: Pace, end: int) -> NoReturn:
                raise KeyboardInterrupt

            monkeypatch.setattr(Pace, "wrote", interrupt)
            with pytest.raises(KeyboardInterrupt):
                out.append(np.zeros(2**20))
            monkeypatch.setattr(Pace, "wrote", real)
            out.append([2.0])
        assert np.load(tmp_path / "out.npy").tolist() == [1.0, 2.0]

    def test_folder_deleted_before_close_raises(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        out = lowtide.create(tmp_path / "data" / "out.npy", "f4")
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(WriteError, match=r"\.out\.npy\.partial was removed.*write it again") as caught:
            out.close()
        assert caught.value.errno == errno.ENOENT

    def test_partial_file_of_another_writer_is_not_published(self, tmp_path: Path) -> None:
        out = lowtide.create(tmp_path / "out.npy", "f4")
        (tmp_path / ".out.npy.partial").unlink()
        (tmp_path / ".out.npy.partial").write_bytes(b"of another writer")
        with pytest.raises(WriteError, match="removed or replaced"):
            out.close()
        assert not (tmp_path / "out.npy").exists()

    @pytest.mark.parametrize("name", ["out.npy", "out.bin"])
    def test_append_to_replaced_file_raises(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        out = lowtide.create(path, "i4", 2, append=True)
        out.append([[3, 4]])
        (tmp_path / "new").write_bytes(path.read_bytes())
        (tmp_path / "new").replace(path)
        with pytest.raises(WriteError, match="another program wrote to the file or replaced it"):
            out.close()


def test_row_shape_accepts_numpy_integers(tmp_path: Path) -> None:
    for row_shape in (np.int64(3), (np.int64(3),), [3], np.uint8(3)):
        with lowtide.create(tmp_path / "out.npy", "f4", row_shape) as out:  # type: ignore[arg-type]
            assert out.row_shape == (3,)
            assert type(out.row_shape[0]) is int
    for wrong in (True, (True,), 3.0, "3", (3, None), np.bool_(True)):
        with pytest.raises(ArgumentError, match="row_shape must be an integer >= 0"):
            lowtide.create(tmp_path / "out.npy", "f4", wrong)  # type: ignore[arg-type]


def test_empty_list_appends_nothing(tmp_path: Path) -> None:
    for row_shape in ((), (3,), (2, 3)):
        with lowtide.create(tmp_path / "out.npy", "i4", row_shape) as out:
            out.append([])
        assert np.load(tmp_path / "out.npy").shape == (0, *row_shape)
    with lowtide.create(tmp_path / "out.npy", "i4", 3) as out:
        with pytest.raises(ArgumentError, match=r"got \(0, 5\)"):
            out.append(np.empty((0, 5)))


def test_append_takes_dtype_and_row_shape_from_file(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", [[1, 2]])
    with lowtide.create(tmp_path / "a.npy", append=True) as out:
        assert (out.dtype, out.row_shape) == (np.dtype("i4"), (2,))
        out.append([3, 4])
    assert np.load(tmp_path / "a.npy").tolist() == [[1, 2], [3, 4]]
    write(tmp_path / "a.bin", [[1, 2]])
    with pytest.raises(ArgumentError, match="a raw file does not record its dtype"):
        lowtide.create(tmp_path / "a.bin", append=True)
    for append in (False, True):
        with pytest.raises(ArgumentError, match="a new file needs a dtype"):
            lowtide.create(tmp_path / "b.npy", append=append)


def test_writer_has_repr_and_cannot_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with lowtide.create(path, "f4", 3) as out:
        out.append(np.zeros((2, 3)))
        what = f"<lowtide.Writer {str(path)!r}, dtype='float32', row_shape=(3,), rows=2, "
        assert repr(out) == what + "open>"
        for copy_of in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="a writer cannot be pickled or copied"):
                copy_of(out)
    assert repr(out) == what + "closed>"


def test_path_written_by_same_process_raises(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "out.npy", "f4"):
        with pytest.raises(WriteError, match="this process is already writing it") as caught:
            atomic.write_file(str(tmp_path / "out.npy"), b"data")
    assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, str(tmp_path / "out.npy"))


def test_file_system_without_locks_or_folder_sync_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def no_locks(fd: int, operation: int) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    def only_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(fd)

    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setattr(os, "fsync", only_files)
    for append in (False, True):
        with lowtide.create(tmp_path / "out.npy", "f4", append=append) as out:
            out.append([1.0])
    assert np.load(tmp_path / "out.npy").tolist() == [1.0, 1.0]


def test_masked_values_are_refused(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "x.npy", "f4", 2) as out:
        out.append(np.ma.masked_array([[1.0, 2.0]], mask=False))
        with pytest.raises(ArgumentError, match="filled"):
            out.append(np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]))
    assert np.load(tmp_path / "x.npy").tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("name", ["x.npy", "x.bin"])
def test_use_of_writer_during_its_append_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_at = system.write_at
    with lowtide.create(tmp_path / name, "<i8") as out:

        def interrupted(fd: int, data: memoryview, offset: int) -> None:
            write_at(fd, data, offset)
            monkeypatch.setattr(targets, "write_at", write_at)
            with pytest.raises(BusyError, match="signal handler"):
                out.append(range(100, 105))
            with pytest.raises(BusyError, match="set a flag"):
                out.close()

        out.append([1, 2])
        monkeypatch.setattr(targets, "write_at", interrupted)
        out.append([3, 4])
        out.append([5])
    assert lowtide.open(tmp_path / name, None if name == "x.npy" else "<i8")[:].tolist() == [1, 2, 3, 4, 5]


def test_create_waits_for_thread_closing_same_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, closing = os.fsync, threading.Event()

    def slow(fd: int) -> None:
        closing.set()
        time.sleep(0.2)
        fsync(fd)

    first = lowtide.create(tmp_path / "x.npy", "<i8")
    first.append([1])
    monkeypatch.setattr(os, "fsync", slow)
    closer = threading.Thread(target=first.close)
    closer.start()
    assert closing.wait(30)
    with lowtide.create(tmp_path / "x.npy", "<i8") as second:
        second.append([2, 3])
    closer.join()
    assert np.load(tmp_path / "x.npy").tolist() == [2, 3]


def test_new_folder_is_complete_or_absent_and_locked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out"
    with atomic.new_folder(str(path)) as partial:
        Path(partial, "a").write_text("first")
        assert not path.exists()
        with pytest.raises(WriteError, match="is being written by another process"):
            atomic.new_folder(str(path)).__enter__()
    assert (path / "a").read_text() == "first"
    with pytest.raises(ZeroDivisionError), atomic.new_folder(str(tmp_path / "bad")):
        _ = 1 / 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new"]


def test_folder_of_a_killed_writer_is_emptied_first(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "half").write_text("left")
    with atomic.new_folder(str(tmp_path / "out")) as partial:
        Path(partial, "a").touch()
    assert [str(entry.relative_to(tmp_path)) for entry in tmp_path.rglob("*")] == ["out", "out/a"]


def test_link_in_the_place_of_a_partial_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").touch()
    (tmp_path / ".out.partial").symlink_to("precious")
    with pytest.raises(WriteError), atomic.new_folder(str(tmp_path / "out")):
        pass
    assert (tmp_path / "precious" / "a").exists()
