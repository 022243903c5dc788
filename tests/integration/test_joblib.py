"""joblib's processes: arrays go to them as paths, and each writes its own rows."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide

joblib: Any = import_module("joblib")


def doubled(rows: lowtide.Array, out: lowtide.WritableArray, start: int) -> int:
    stop = min(len(out), start + 100)
    out[start:stop] = rows[start:stop] * 2
    return stop - start


@pytest.mark.parametrize("backend", ["loky", "threading"])
@pytest.mark.parametrize("new", [True, False], ids=["new file", "in place"])
def test_jobs_write_disjoint_rows(tmp_path: Path, backend: str, new: bool) -> None:
    source = np.random.default_rng(0).random((1030, 7))
    np.save(tmp_path / "x.npy", source)
    x, out = lowtide.open(tmp_path / "x.npy"), lowtide.create(tmp_path / "out.npy", "f8", shape=source.shape)
    if not new:
        out.close()
        out = lowtide.open(tmp_path / "out.npy", mode="r+")
    jobs = joblib.Parallel(n_jobs=2, backend=backend)
    rows = jobs(joblib.delayed(doubled)(x, out, start) for start in range(0, len(x), 100))
    out.close()
    assert sum(rows) == len(x)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), source * 2)
