"""Views, splits, zips and reductions of a 4 GiB pair of arrays, in a container of 128 MiB."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.cgroup import memory_cgroup

MIB = 2**20
ROWS, WIDTH = 2**19, 2048  # 4 GiB

PROGRAM = """
import json, sys
import numpy as np, lowtide
from lowtide.memory import peak, reset_peak
x, y = (lowtide.open(path) for path in sys.argv[1:])
assert reset_peak()
start = peak()
train, validation = lowtide.zip(x.astype("f4"), y).split(0.9, seed=1, stratify=y)
assert len(train) + len(validation) == len(x)
seen = set()
for rows, (features, labels) in train.chunks(64, shuffle=True, budget="16 MiB", with_rows=True):
    assert not seen & set(rows.tolist())
    seen |= set(rows.tolist())
    if len(seen) >= 4096:
        break
total = x.rows(0, len(x), 16).columns[:4].mean(axis=0)
print(json.dumps({"peak": peak() - start, "mean": total.tolist()}))
"""


def sparse(path: Path, shape: tuple[int, ...], dtype: str) -> Path:
    """An array of zeros that takes no space on the disk."""
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
def test_a_large_pair_of_arrays_in_a_small_container(tmp_path: Path) -> None:
    x = sparse(tmp_path / "x.npy", (ROWS, WIDTH), "<f4")
    y = sparse(tmp_path / "y.npy", (ROWS,), "|u1")
    assert os.stat(x).st_size > 4 * 2**30
    with memory_cgroup("128 MiB") as group:
        done = group.run([sys.executable, "-c", PROGRAM, str(x), str(y)])
        assert done.returncode == 0, done.stderr
        assert group.oom_kills() == 0
    result = json.loads(done.stdout)
    assert result["mean"] == [0.0] * 4
    assert result["peak"] < 40 * MIB
