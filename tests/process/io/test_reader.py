"""Readers in a process that a truncated file may end."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np

from tests.support.process import python

CUT = """
    import os, sys
    import numpy as np, lowtide
    path, how = sys.argv[1:]
    a = lowtide.open(path, reader="pread") if how == "lowtide" else np.load(path, mmap_mode="r")
    print(int(a[0].sum()), flush=True)
    os.truncate(path, 4096)
    try:
        print(int(a[900].sum()))
    except lowtide.LowtideError as error:
        print(type(error).__name__)
"""


def test_truncated_file_raises_where_memmap_gets_sigbus(tmp_path: Path) -> None:
    for how in ("lowtide", "memmap"):
        np.save(tmp_path / "a.npy", np.ones((1000, 100)))
        done = python(CUT, tmp_path / "a.npy", how)
        if how == "lowtide":
            assert (done.returncode, done.stdout.split()) == (0, ["100", "TruncatedFileError"])
        else:
            assert (done.returncode, done.stdout.split()) == (-signal.SIGBUS, ["100"])
