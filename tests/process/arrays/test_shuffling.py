"""Shuffling that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

import lowtide
from lowtide._permutation import Shuffled


def test_killed_shuffle_keeps_old_file_and_can_be_repeated(tmp_path: Path) -> None:
    """SIGKILL in the middle of the second pass, found by its own progress."""
    np.save(tmp_path / "in.npy", np.arange(300_000))
    np.save(tmp_path / "out.npy", np.arange(3))
    code = """
        import os, signal, sys, lowtide
        array, done = lowtide.open(sys.argv[1]), 0
        def progress(nbytes):
            global done
            done += nbytes
            if done > 1.5 * array.nbytes:
                os.kill(os.getpid(), signal.SIGKILL)
        lowtide.shuffle(array, sys.argv[2], seed=5, budget="1 MiB", progress=progress)
    """
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(code),
        str(tmp_path / "in.npy"),
        str(tmp_path / "out.npy"),
    ]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.arange(3))
    with lowtide.open(tmp_path / "in.npy") as array:
        lowtide.shuffle(array, tmp_path / "out.npy", seed=5, budget="1 MiB")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), Shuffled(300_000, 5)(0, 300_000))
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "out.npy"]
