"""The two curves: a large array walked through with np.memmap and with lowtide, and what memory did."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from lowtide._arrays.formats import inspect
from lowtide._compare.runs import Run, make_matrix, make_warm
from lowtide._compare.walks import task_for, walk_apart
from lowtide._memory import cgroup
from lowtide._sizes import format_size
from lowtide.errors import DiskFullError

LEAST = 64 * 2**20
"""The smallest array whose curve is worth looking at."""

_NAMES = {"np.memmap": "np.memmap", "pread": "lowtide"}
_ROWS = 2048  # of 1 KiB: chunks of 2 MiB
_SECONDS = 30  # no walk takes longer, whatever the machine


def name(walk: Run) -> str:
    """Whose walk it was."""
    return _NAMES[walk.method]


def peak(walk: Run) -> int:
    """The highest memory above the start; where the system keeps no mark, the highest that was seen."""
    told = walk.figures["peak"]
    return max(size for _, size in walk.figures["samples"]) if told is None else told


def fitting_size(wanted: int, folder: str, beside: int, *, least: int = LEAST) -> int:
    """How large an array can be: halved until memory and the disk have room for it twice.

    ``beside`` are bytes that the disk must hold too.
    """
    free, memory = shutil.disk_usage(folder).free, _memory()
    size = wanted
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


def _memory() -> int:
    """What this process may hope for: the machine's, or its container's."""
    available: int = psutil.virtual_memory().available
    group = cgroup.find(os.getpid())
    limit = group.limit() if group is not None else None
    return available if limit is None else min(available, limit)


@contextmanager
def array(folder: str, size: int) -> Iterator[str]:
    """A matrix of random numbers in a new folder that is gone afterwards, whatever happened."""
    path = os.path.join(folder, "array.npy")
    try:
        os.mkdir(folder)
        make_matrix(path, size)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def walk(path: str) -> Iterator[Run]:
    """In order and shuffled, by np.memmap and by lowtide: each in a process of its own.

    The file is in the page cache each time, as after any earlier pass: the speeds are those of memory and
    not of this machine's disk.
    """
    layout = inspect(path)
    settings = {"rows": _ROWS, "limit_rows": layout.shape[0], "seconds": _SECONDS}
    for shuffled in (False, True):
        for method in _NAMES:
            make_warm(layout, layout.nbytes)
            figures = walk_apart(task_for(layout, method=method, shuffled=shuffled, **settings))
            yield Run(method, shuffled, cold=False, figures=figures, page_cache_left=None)
