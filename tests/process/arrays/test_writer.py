"""Writers that are killed, forked, or left open at exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide._io import atomic
from tests.support.rows import read, write


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with lowtide.create(path, "f4") as first:
        ended = _python("lowtide.create(sys.argv[1], 'f4')", path)
        assert ": is being written by another process" in ended.stderr
        first.append([1.0])
    assert np.load(path).tolist() == [1.0]


def test_leftovers_of_killed_writer_are_overwritten(tmp_path: Path) -> None:
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
    def test_killed_append_keeps_old_rows_and_can_be_repeated(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        code = """
            import lowtide, numpy as np, os, signal, sys
            out = lowtide.create(sys.argv[1], "i4", 2, append=True)
            out.append(np.zeros((100_000, 2), "i4"))
            os.kill(os.getpid(), signal.SIGKILL)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=False)
        assert path.stat().st_size > 100_000
        assert read(path) == [[1, 2]]
        with lowtide.create(path, "i4", 2, append=True) as out:
            out.append([[3, 4]])
        assert read(path) == [[1, 2], [3, 4]]
        assert os.listdir(tmp_path) == [name]

    def test_concurrent_append_raises(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        with lowtide.create(path, "i4", 2, append=True):
            ended = _python("lowtide.create(sys.argv[1], 'i4', 2, append=True)", path)
            assert ": is being written by another process" in ended.stderr
        assert read(path) == [[1, 2]]


def test_full_disk_raises_and_leaves_no_files(tmp_path: Path) -> None:
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


class TestUnclosed:
    def test_exit_without_close_reports_lost_rows(self, tmp_path: Path) -> None:
        """ResourceWarning is hidden by default: the line on standard error is not."""
        for code in (
            "out = lowtide.create(sys.argv[1], 'f4', 3); out.append(np.zeros((1000, 3)))",
            "def f():\n out = lowtide.create(sys.argv[1], 'f4', 3); out.append(np.zeros((1000, 3)))\nf()",
        ):
            ended = _python(code, tmp_path / "out.npy")
            assert ended.stderr.startswith("lowtide: ")
            assert ended.stderr.count("\n") == 1
            for part in (str(tmp_path / "out.npy"), "1000 rows were not published", "with lowtide.create"):
                assert part in ended.stderr
            assert "ResourceWarning" in _python(code, tmp_path / "out.npy", "-Wdefault").stderr
            assert os.listdir(tmp_path) == []

    def test_closed_writers_are_not_mentioned_at_exit(self, tmp_path: Path) -> None:
        code = """
            with lowtide.create(sys.argv[1], "f4") as out:
                out.append([1.0])
            out = lowtide.create(sys.argv[1] + "2", "f4")
            out.abort()
        """
        assert _python(code, tmp_path / "out.npy").stderr == ""


@pytest.mark.parametrize("append", [False, True])
class TestFork:
    def test_exiting_child_does_not_change_parents_file(self, tmp_path: Path, append: bool) -> None:
        code = """
            with lowtide.create(sys.argv[1], "i4", 2, append=%r) as out:
                out.append([[3, 4]])
                if os.fork() == 0:
                    sys.exit(0)  # runs the block's end and the exit handlers
                os.wait()
                out.append([[5, 6]])
        """
        path = tmp_path / "out.npy"
        write(path, [[1, 2]])
        ended = _python(code % append, path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert read(path) == [[1, 2], [3, 4], [5, 6]][not append :]
        assert os.listdir(tmp_path) == ["out.npy"]

    def test_child_cannot_write_parents_file(self, tmp_path: Path, append: bool) -> None:
        code = """
            out = lowtide.create(sys.argv[1], "i4", 2, append=%r)
            if os.fork() == 0:
                for use in (lambda: out.append([[3, 4]]), out.close):
                    try:
                        use()
                    except lowtide.errors.ClosedError as error:
                        print("forked from" in str(error), repr(out).endswith("rows=0, forked>"))
                out.abort()
                del out
                sys.exit(0)
            os.wait()
            out.append([[5, 6]])
            out.close()
        """
        path = tmp_path / "out.npy"
        write(path, [[1, 2]])
        ended = _python(code % append, path)
        assert (ended.stdout, ended.stderr) == ("True True\n" * 2, "")
        assert read(path)[-1] == [5, 6]

    def test_child_outliving_parent_holds_no_lock(self, tmp_path: Path, append: bool) -> None:
        code = """
            import time
            out = lowtide.create(sys.argv[1], "i4", 2, append=%r)
            started, start = os.pipe()
            if os.fork() == 0:
                os.write(start, b"x")
                sys.stdout.close(), sys.stderr.close(), os.close(1), os.close(2)
                time.sleep(60)
            os.read(started, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        path = tmp_path / "out.npy"
        write(path, [[1, 2]])
        command = [sys.executable, "-c", "import os, signal, sys, lowtide\n" + textwrap.dedent(code % append)]
        with subprocess.Popen([*command, str(path)], start_new_session=True) as parent:
            assert parent.wait(60) == -signal.SIGKILL
            try:
                with lowtide.create(path, "i4", 2) as out:
                    out.append([[3, 4]])
            finally:
                os.killpg(parent.pid, signal.SIGKILL)
        assert read(path) == [[3, 4]]
        assert os.listdir(tmp_path) == ["out.npy"]


class TestAfterAFailure:
    @pytest.mark.parametrize("name", ["out.npy", "out.bin"])
    def test_new_file_replaces_file_with_killed_append(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        write(path, [[1, 2]])
        code = """
            out = lowtide.create(sys.argv[1], "i4", 2, append=True)
            out.append(np.zeros((100, 2), "i4"))
            os.kill(os.getpid(), signal.SIGKILL)
        """
        _python(code, path)
        with lowtide.create(path, "i4", 2) as out:
            assert read(path) == [[1, 2]]
            out.append([[3, 4], [5, 6], [7, 8]])
        assert read(path) == [[3, 4], [5, 6], [7, 8]]
        assert os.listdir(tmp_path) == [name]


def test_rows_of_a_killed_writer_can_be_read_as_raw(tmp_path: Path) -> None:
    """As the guide says."""
    code = """
        out = lowtide.create(sys.argv[1], "f8", 2)
        out.append(np.arange(10.0).reshape(5, 2))
        os.kill(os.getpid(), signal.SIGTERM)
    """
    _python(code, tmp_path / "out.npy")
    left = tmp_path / ".out.npy.partial"
    assert atomic.leftovers(str(tmp_path)) == [(str(left), left.stat().st_size)]
    with lowtide.open(left, dtype="f8", shape=(-1, 2), offset=128) as rows:
        assert rows[:].tolist() == np.arange(10.0).reshape(5, 2).tolist()


def _python(code: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in another interpreter, with ``path`` as its argument."""
    code = "import os, signal, sys\nimport numpy as np, lowtide\n" + textwrap.dedent(code)
    command = [sys.executable, *options, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
