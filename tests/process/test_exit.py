"""The end of the interpreter: nothing is printed, whatever is still open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.process import python

PROGRAM = """
    import sys
    import lowtide
    array = lowtide.open(sys.argv[1])
    chunks = array.chunks(100, shuffle=True, prefetch=2)
    next(chunks)
    from lowtide._io import aio
    if sys.argv[2] == "cycle":  # freed when the modules are cleared
        sys.modules["kept"] = kept = [array, chunks, *aio._IDLE]
        kept.append(kept)
    elif sys.argv[2] == "failed":  # a context that the kernel refused
        aio.Aio.__new__(aio.Aio)
    elif sys.argv[2] == "patched":  # as modules look late at the end
        contexts = list(aio._IDLE)
        aio._LIBC = aio.ctypes = aio.os = None
"""


@pytest.mark.parametrize("state", ["plain", "cycle", "failed", "patched"])
def test_nothing_is_reported_at_exit(tmp_path: Path, state: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((10_000, 10)))
    run = python(PROGRAM, tmp_path / "a.npy", state)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
