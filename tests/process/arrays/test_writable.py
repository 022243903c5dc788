"""Arrays that several processes write, and what a kill leaves of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from tests.support.process import in_child


def _fill(out: lowtide.WritableArray, first: int) -> None:
    for row in range(first, len(out), 3):
        out[row] = row
    out.flush()
    out.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("new", [True, False], ids=["new file", "in place"])
def test_processes_write_their_own_rows(tmp_path: Path, start: str, new: bool) -> None:
    path = tmp_path / "x.npy"
    out = lowtide.create(path, "i4", shape=(60, 300))
    if not new:
        out.close()
        out = lowtide.open(path, mode="r+")
    context: Any = multiprocessing.get_context(start)
    workers = [context.Process(target=_fill, args=(out, first)) for first in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (out[:] == np.arange(60)[:, None]).all()
    out.close()
    assert (np.load(path) == np.arange(60)[:, None]).all()
    assert os.listdir(tmp_path) == ["x.npy"]


def test_forked_child_neither_publishes_nor_discards(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "x.npy", "i4", shape=3)

    def in_the_child() -> bool:
        out[0] = 4
        out.close()
        return not (tmp_path / "x.npy").exists()

    assert in_child(in_the_child)
    out[1] = 5
    out.close()
    assert np.load(tmp_path / "x.npy").tolist() == [4, 5, 0]


def test_fork_during_write_does_not_deadlock_child(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "x.npy", "i4", shape=(4,)) as out:
        with out._pace._lock:  # as if another thread were inside
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                thread = threading.Thread(target=out.__setitem__, args=(1, 5))
                thread.start()
                thread.join()
                os._exit(0 if out[1] == 5 else 1)
        assert os.waitpid(child, 0)[1] == 0
        out[0] = 1


def test_killed_process_does_not_publish_new_file(tmp_path: Path) -> None:
    ended = _python(
        """
        out = lowtide.create(sys.argv[1], "f8", shape=100_000)
        out[:] = 1
        out.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "x.npy",
    )
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    with lowtide.create(tmp_path / "x.npy", "f8", shape=2) as out:
        out[0] = 7
    assert np.load(tmp_path / "x.npy").tolist() == [7, 0]
    assert os.listdir(tmp_path) == ["x.npy"]


def test_killed_in_place_write_leaves_whole_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2000, 16)))  # rows of 128 bytes, each within a page
    ended = _python(
        """
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
        array = lowtide.open(sys.argv[1], mode="r+")
        for value in range(1, 10**6):
            array[::2] = value
        """,
        tmp_path / "x.npy",
    )
    assert ended.returncode == -signal.SIGKILL
    rows = np.load(tmp_path / "x.npy")
    assert (rows == rows[:, :1]).all()
    assert (rows[1::2] == 0).all()
    assert len(np.unique(rows[::2])) <= 2


def test_array_open_at_exit_is_reported(tmp_path: Path) -> None:
    ended = _python("out = lowtide.create(sys.argv[1], 'f8', shape=9)", tmp_path / "x.npy")
    assert "the array of shape (9,) was not published" in ended.stderr
    assert os.listdir(tmp_path) == []


def _python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    head = "import lowtide, os, signal, sys, threading\n"
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
