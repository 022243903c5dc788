"""Views, splits, zips, files, windows, reductions and writing of 4 GiB, in a container of 128 MiB."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cgroup import memory_cgroup, require_memory_cgroups

MIB = 2**20
ROWS, WIDTH = 2**19, 2048  # 4 GiB
LABELS = 2**24  # of which an index would take the whole container
FILES = 64

PROGRAM = """
import itertools, json, sys
import numpy as np, lowtide
from lowtide.memory import peak, reset_peak

folder = sys.argv[1]
x, y, labels, series = (lowtide.open(f"{folder}/{name}.npy") for name in ("x", "y", "labels", "series"))
ticks = lowtide.open(f"{folder}/ticks.bin", [("time", "<i8"), ("price", "<f4"), ("rest", "V500")])
pair = lowtide.zip(x, y)

def walk(array, chunks=40, rows=64, **options):
    seen = []
    every = array.chunks(rows, budget="16 MiB", with_rows=True, **options)
    for numbers, _ in itertools.islice(every, chunks):
        seen += numbers.tolist()
    assert len(set(seen)) == len(seen) == chunks * rows // options.get("world_size", 1)

def million(array):
    parts = array.split(0.9, seed=3)
    assert sum(map(len, parts)) == len(array)
    parts[0].take(np.arange(0, len(parts[0]), len(parts[0]) // 1000))
    parts[1][len(parts[1]) - 1]
    array.select(range(0, len(array), 7))[10]
    array.rows(1, None, 3).rows(step=-1)[5:10]
    array.folds(5)[2][0][100]

def write(array):
    with lowtide.create(f"{folder}/out.npy", "f4", shape=(2**14, 4096)) as out:
        out[:] = 1.5
        out[np.arange(0, len(out), 3)] = 2.5

features = {
    "rows": lambda: walk(x.rows(10, None, 3)),
    "a billion rows": lambda: million(series),
    "columns and astype": lambda: walk(x.columns[100:1500].astype("f8"), shuffle=True),
    "field": lambda: walk(ticks["price"], rows=2**10, shuffle=True),
    "select": lambda: walk(x.select(np.arange(ROWS) % 7 == 0), shuffle=True),
    "split": lambda: [walk(part, shuffle=True) for part in pair.split(0.9, seed=1)],
    "folds": lambda: [walk(part) for part in pair.folds(5, seed=1)[3]],
    "stratified": lambda: labels.split(0.9, stratify=labels),
    "zip, sequential": lambda: walk(pair),
    "zip, blocks": lambda: walk(pair, shuffle="blocks"),
    "ranks": lambda: walk(pair, shuffle=True, rank=1, world_size=2),
    "files": lambda: walk(lowtide.open(f"{folder}/parts"), shuffle=True),
    "windows": lambda: walk(x.windows(8, 4), rows=16, shuffle=True),
    "windows in order": lambda: walk(x.windows(8, 4), rows=16),
    "mean": lambda: x.mean(axis=0),
    "std": lambda: x.rows(step=16).std(axis=0),
    "max": lambda: x.rows(0, ROWS // 16).max(),
    "histogram": lambda: x.rows(0, ROWS // 64).histogram(10, (0, 1)),
    "writing": lambda: write(x),
}
ROWS = len(x)
grown = {}
lowtide.open(f"{folder}/y.npy").mean(), next(pair.chunks(4, shuffle=True))  # imports, the pool of threads
for name, use in features.items():
    assert reset_peak()
    start = peak()
    use()
    grown[name] = peak() - start
print(json.dumps(grown))
"""
LIMITS = {  # MiB above the start: at most a budget of 16, and what malloc and NumPy keep besides
    "a billion rows": 4,
    **dict.fromkeys(("rows", "columns and astype", "field", "split", "folds", "files", "ranks"), 16),
    **dict.fromkeys(("zip, sequential", "zip, blocks", "windows", "windows in order", "writing"), 16),
    **dict.fromkeys(("select", "stratified", "mean", "std", "max", "histogram"), 24),
}


def sparse(path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """An array of zeros that takes no space on the disk."""
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """How far each feature let the memory of one process grow."""
    require_memory_cgroups()
    folder = tmp_path_factory.mktemp("views")
    sparse(folder / "x.npy", (ROWS, WIDTH), "<f4")
    sparse(folder / "y.npy", (ROWS,), "<i8")
    sparse(folder / "series.npy", (10**9,), "|u1")
    np.save(folder / "labels.npy", np.random.default_rng(0).integers(0, 5, LABELS, dtype="u1"))
    with (folder / "ticks.bin").open("wb") as file:
        file.truncate(2**22 * 512)
    (folder / "parts").mkdir()
    for part in range(FILES):
        sparse(folder / "parts" / f"{part}.npy", (ROWS // FILES, WIDTH), "<f4")
    with memory_cgroup("128 MiB") as group:
        done = group.run([sys.executable, "-c", PROGRAM, str(folder)])
        assert done.returncode == 0, done.stderr
        assert group.oom_kills() == 0
    yield json.loads(done.stdout)
    (folder / "labels.npy").unlink()
    (folder / "out.npy").unlink()


@pytest.mark.parametrize("feature", LIMITS)
def test_memory_of_each_feature_stays_below_its_limit(grown: dict[str, Any], feature: str) -> None:
    assert grown[feature] < LIMITS[feature] * MIB


def test_every_feature_is_measured(grown: dict[str, Any]) -> None:
    assert grown.keys() == LIMITS.keys()
