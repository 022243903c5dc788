"""Memory and unwritten pages of arrays that are assigned to, beside np.memmap's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.process import output

MIB = 2**20
SIZE = 192 * MIB

CODE = """
import ctypes, json, os, sys
import numpy as np, lowtide
from lowtide.memory import peak, reset_peak

libc = ctypes.CDLL(None, use_errno=True)

def unwritten(fd):
    span, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    assert libc.syscall(451, fd, span, counts, 0) == 0, os.strerror(ctypes.get_errno())
    return (counts[1] + counts[2]) * 4096

path, how, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows = size // 4096
if how == "memmap":
    out = np.lib.format.open_memmap(path, "w+", "f4", (rows, 1024))
    fd = os.open(path, os.O_RDONLY)
else:
    out = lowtide.create(path, "f4", shape=(rows, 1024))
    fd = os.open(os.path.join(os.path.dirname(path), ".x.npy.partial"), os.O_RDONLY)
order = np.random.default_rng(0).permutation(rows)
assert reset_peak()
start, most = peak(), 0
for first in range(0, rows, 1024):
    if how == "scattered":
        out[order[first : first + 1024]] = 1.5
    elif how == "column":
        out[first : first + 1024, 7] = 1.5
    else:
        out[first : first + 1024] = 1.5
    most = max(most, unwritten(fd))
if how == "whole":
    out[:] = 1.5
grown = peak() - start
if how != "memmap":
    out.close()
total = float(np.load(path, mmap_mode="r").sum(dtype="f8"))
print(json.dumps({"peak": grown, "unwritten": most, "total": total}))
"""


def _run(path: Path, how: str) -> dict[str, float]:
    result: dict[str, float] = json.loads(output(CODE, path, how, SIZE))
    return result


@pytest.mark.parametrize("how", ["in order", "scattered", "column", "whole"])
def test_memory_and_unwritten_pages_stay_small(tmp_path: Path, how: str) -> None:
    result = _run(tmp_path / "x.npy", how)
    elements = SIZE // 4096 if how == "column" else SIZE // 4
    assert result["total"] == 1.5 * elements
    assert result["peak"] < 24 * MIB  # two pieces of 4 MiB, and what malloc keeps of them
    assert result["unwritten"] <= 32 * MIB


def test_np_memmap_writes_exceed_limit(tmp_path: Path) -> None:
    result = _run(tmp_path / "x.npy", "memmap")
    assert result["peak"] > 0.8 * SIZE
