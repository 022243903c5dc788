"""lowtide.writer: rows in, one complete file out, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide
from lowtide.errors import (
    ArgumentError,
    ClosedError,
    DiskFullError,
    FormatError,
    UnsupportedError,
    WriteError,
)


@given(
    parts=st.lists(st.integers(0, 50), max_size=5),
    row_shape=st.sampled_from([(), (1,), (3,), (2, 3)]),
    dtype=st.sampled_from(["<f4", ">f8", "u1", "<i2", "S3"]),
)
@settings(deadline=None, max_examples=40)
def test_what_is_appended_is_what_numpy_loads(
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


def test_nothing_is_visible_until_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with lowtide.create(path, "f4", 2) as out:
        out.append([[1, 2]])
        assert not path.exists()
    assert path.exists()
    assert os.listdir(tmp_path) == ["out.npy"]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    np.save(path, np.arange(3))
    with pytest.raises(ZeroDivisionError), lowtide.create(path, "f4") as out:
        out.append([1.0])
        raise ZeroDivisionError
    np.testing.assert_array_equal(np.load(path), np.arange(3))
    assert os.listdir(tmp_path) == ["out.npy"]


def test_a_dropped_writer_leaves_nothing(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "out.npy", "f4")
    out.append([1.0])
    with pytest.warns(ResourceWarning, match=r"out\.npy: 1 rows were not published.*with lowtide\.create"):
        del out
    assert os.listdir(tmp_path) == []
    lowtide.create(tmp_path / "out.npy", "f4").close()  # so that nothing is said of it at exit


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with lowtide.create(path, "f4") as first:
        ended = _python("lowtide.create(sys.argv[1], 'f4')", path)
        assert "WriteError: [Errno 16] is being written by another process" in ended.stderr
        first.append([1.0])
    assert np.load(path).tolist() == [1.0]


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    code = """
        import lowtide, numpy as np, os, signal, sys
        out = lowtide.create(sys.argv[1], "f8")
        out.append(np.arange(100_000.0))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not path.exists()
    with lowtide.create(path, "f8") as out:
        out.append([1.0, 2.0])
    assert np.load(path).tolist() == [1.0, 2.0]
    assert os.listdir(tmp_path) == ["out.npy"]


@pytest.mark.parametrize("name", ["out.npy", "out.bin"])
class TestAppend:
    def test_adds_to_what_is_there(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        for part in ([[1, 2]], [[3, 4], [5, 6]], []):
            with lowtide.create(path, "i4", 2, append=True) as out:
                out.append(np.array(part, "i4").reshape(-1, 2))
        assert _read(path, "i4", 2) == [[1, 2], [3, 4], [5, 6]]
        assert os.listdir(tmp_path) == [name]

    def test_readers_see_the_old_rows_until_it_has_ended(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        _write(path, [[1, 2]])
        with lowtide.create(path, "i4", 2, append=True) as out:
            out.append([[3, 4]])
            assert _read(path, "i4", 2) == [[1, 2]]
        assert _read(path, "i4", 2) == [[1, 2], [3, 4]]

    def test_a_failure_takes_the_new_rows_away(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        _write(path, [[1, 2]])
        before = path.read_bytes()
        with pytest.raises(ZeroDivisionError), lowtide.create(path, "i4", 2, append=True) as out:
            out.append([[3, 4]])
            raise ZeroDivisionError
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == [name]

    def test_a_kill_leaves_the_old_rows_readable_and_the_next_append_goes_on(
        self, tmp_path: Path, name: str
    ) -> None:
        path = tmp_path / name
        _write(path, [[1, 2]])
        code = """
            import lowtide, numpy as np, os, signal, sys
            out = lowtide.create(sys.argv[1], "i4", 2, append=True)
            out.append(np.zeros((100_000, 2), "i4"))
            os.kill(os.getpid(), signal.SIGKILL)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=False)
        assert path.stat().st_size > 100_000
        assert _read(path, "i4", 2) == [[1, 2]]
        with lowtide.create(path, "i4", 2, append=True) as out:
            out.append([[3, 4]])
        assert _read(path, "i4", 2) == [[1, 2], [3, 4]]
        assert os.listdir(tmp_path) == [name]

    def test_two_appends_at_once_are_refused(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        _write(path, [[1, 2]])
        with lowtide.create(path, "i4", 2, append=True):
            ended = _python("lowtide.create(sys.argv[1], 'i4', 2, append=True)", path)
            assert "WriteError: [Errno 16] is being written by another process" in ended.stderr
        assert _read(path, "i4", 2) == [[1, 2]]


def test_append_to_another_kind_of_array_says_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "old.npy"
    np.save(path, np.zeros((4, 3), "f8"))
    with pytest.raises(ArgumentError, match=r"old\.npy: holds npy of float64, shape \(4, 3\).*float32"):
        lowtide.create(path, "f4", 3, append=True)
    raw = tmp_path / "old.bin"
    raw.write_bytes(b"12345")
    with pytest.raises(FormatError, match=r"old\.bin: has 5 bytes, no multiple of rows of 4 bytes"):
        lowtide.create(raw, "f4", append=True)


def test_numpys_own_files_can_be_appended_to(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6, dtype="f4").reshape(2, 3))
    with lowtide.create(tmp_path / "a.npy", "f4", 3, append=True) as out:
        out.append([[6, 7, 8]])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(9, dtype="f4").reshape(3, 3))


@pytest.mark.parametrize(
    ("rows", "dtype", "said"),
    [
        pytest.param(np.zeros((2, 4)), "f8", r"shape \(n, 3\), got \(2, 4\)", id="shape"),
        pytest.param(np.full((1, 3), 70_000), "u2", "70000 in row 0 does not fit", id="too large"),
        pytest.param(np.full((1, 3), -1), "u2", "-1 in row 0 does not fit into uint16", id="negative"),
        pytest.param(np.zeros((1, 3)), "i4", "float64 is not of the same kind", id="float to int"),
        pytest.param(np.zeros((1, 3), complex), "f4", "complex128 is not of the same kind", id="complex"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: np.ndarray, dtype: str, said: str) -> None:
    with lowtide.create(tmp_path / "out.npy", dtype, 3) as out:
        with pytest.raises(ArgumentError, match=said):
            out.append(rows)
    assert np.load(tmp_path / "out.npy").shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "dtype", "row_shape", "kind", "said"),
    [
        pytest.param("x.npy", object, (), UnsupportedError, "pickles", id="objects"),
        pytest.param("x.npy", "S0", (), ArgumentError, "no fixed size", id="no size"),
        pytest.param("x.npy", "no such type", (), ArgumentError, "not understood", id="dtype"),
        pytest.param("x.npy", "f4", (-1,), ArgumentError, r"integer >= 0 .* got \(-1,\)", id="shape"),
        pytest.param("x.npz", "f4", (), UnsupportedError, r"\.npz files are read and not written", id="npz"),
    ],
)
def test_files_that_cannot_be_made_are_refused(
    tmp_path: Path, name: str, dtype: object, row_shape: tuple[int, ...], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        lowtide.create(tmp_path / name, dtype, row_shape)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_use_after_close_says_how_to_go_on(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "out.npy", "f4")
    out.close()
    out.close()
    out.abort()
    with pytest.raises(ClosedError, match="append=True"):
        out.append([1.0])


def test_a_folder_that_is_not_there_and_a_path_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="no such file or directory"):
        lowtide.create(tmp_path / "nowhere" / "out.npy", "f4")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        lowtide.create(tmp_path, "f4")


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A real file size limit: the kernel refuses the write as it does when the disk is full."""
    code = """
        import resource, signal, sys
        import numpy as np, lowtide
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            with lowtide.create(sys.argv[1], "f8") as out:
                for _ in range(10):
                    out.append(np.zeros(100_000))
        except lowtide.LowtideError as error:
            print(type(error).__name__, isinstance(error, OSError), error)
    """
    path = tmp_path / "out.npy"
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True, check=True
    )
    assert "WriteError True" in ended.stdout
    assert "file too large" in ended.stdout
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_no_space_left_names_the_file_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    path = tmp_path / "out.npy"
    out = lowtide.create(path, "f8")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(full, data, 0))
    with pytest.raises(DiskFullError, match=r"no space left on the device; nothing was published.*out\.npy"):
        out.append(np.zeros(10))
    os.close(full)
    assert os.listdir(tmp_path) == []


def _python(code: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in an interpreter of its own, with ``path`` as its argument."""
    code = "import os, signal, sys\nimport numpy as np, lowtide\n" + textwrap.dedent(code)
    command = [sys.executable, *options, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def _write(path: Path, rows: list[list[int]]) -> None:
    with lowtide.create(path, "i4", 2) as out:
        out.append(rows)


def _read(path: Path, dtype: str, columns: int) -> list[list[int]]:
    raw = {} if path.suffix == ".npy" else {"dtype": dtype, "shape": (-1, columns)}
    with lowtide.open(path, **raw) as array:  # type: ignore[arg-type]
        rows: list[list[int]] = array[:].tolist()
        return rows
