"""The two curves: passes over a large array with np.memmap and with lowtide, and their memory."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from lowtide._arrays.formats import inspect
from lowtide._compare.runs import Passes, Run, make_matrix
from lowtide._memory.available import available
from lowtide._sizes import format_size
from lowtide.errors import DiskFullError

LEAST = 64 * 2**20
"""The smallest array whose curve shows anything."""

_NAMES = {"np.memmap": "np.memmap", "pread": "lowtide"}
_ROWS = 2048  # of 1 KiB: chunks of 2 MiB
_SECONDS = 30  # per walk, on any machine


def name(walk: Run) -> str:
    """The name of the reader, as shown."""
    return _NAMES[walk.method]


def peak(walk: Run) -> int:
    """The peak memory above the start; where the system records none, the highest sample."""
    recorded = walk.figures["peak"]
    return max(size for _, size in walk.figures["samples"]) if recorded is None else recorded


def fitting_size(size: int, folder: str, beside: int, *, least: int = LEAST) -> int:
    """Return ``size``, halved until twice as much fits into memory and it fits on the disk.

    ``beside`` is the number of bytes that the disk needs for other files.
    """
    free, memory = shutil.disk_usage(folder).free, available()
    while size // 2 >= least and (size > memory // 2 or size + beside > free):
        size //= 2
    if size + beside > free:
        raise DiskFullError(
            errno.ENOSPC,
            f"not enough free space ({format_size(free)}, expected {format_size(size + beside)}); free some, "
            "or pass another folder with --out",
            os.path.abspath(folder),
        )
    return size


@contextmanager
def array(folder: str, size: int) -> Iterator[str]:
    """Create a matrix of random numbers in a new folder, and remove both afterwards."""
    path = os.path.join(folder, "array.npy")
    try:
        os.mkdir(folder)
        make_matrix(path, size)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def walk(path: str) -> Iterator[Run]:
    """Read in order and shuffled, with np.memmap and with lowtide, each in a separate process.

    The file is in the page cache each time, as after any earlier pass, so that the speeds do not depend on
    the disk.
    """
    layout = inspect(path)
    passes = Passes(layout, _ROWS, layout.shape[0], _SECONDS)
    for shuffled, method in itertools.product((False, True), _NAMES):
        if (run := passes.run(method, shuffled, cold=False)) is not None:
            yield run
