"""Kernel AIO after a fork and at exit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide._io import aio
from tests.support.aio import context, extents, fd
from tests.support.process import in_child, output

__all__ = ["fd"]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not aio.available(), reason="this system has no AIO to give"
)


def test_forked_child_creates_its_own_context(fd: int) -> None:
    own = context()

    def reads() -> bool:
        out = np.zeros(10, np.uint8)
        good = own.closed and context() is not own
        good &= context().read(fd, extents([3], [10]), aio.address_of(out), 0).tolist() == [10]
        own.close()
        return bool(good and out[0] == 3)

    assert in_child(reads)
    out = np.zeros(10, np.uint8)
    assert own.read(fd, extents([4], [10]), aio.address_of(out), 0).tolist() == [10]


def test_reads_at_exit_print_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((5000, 16)))
    code = """
        import atexit, sys, threading, lowtide
        a = lowtide.open(sys.argv[1])
        chunks = a.chunks(100, shuffle=True)
        next(chunks)
        threading.Thread(target=lambda: a.take(range(0, 5000, 3))).start()
        def late():
            assert len(a.take(range(0, 5000, 3))) == 1667
            assert sum(map(len, a.chunks(100))) == sum(map(len, a.chunks(100, shuffle=True))) == 5000
        atexit.register(late)
        print("done")
    """
    assert output(code, tmp_path / "a.npy") == "done\n"
