"""Memory of DataLoader workers: rows in a Python list are copied as they are read, arrays on disk are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.process import output

MIB = 2**20
ROWS, WIDTH = 100_000, 16

CODE = """
import json, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset
import lowtide
from lowtide.torch import ArrayDataset

warnings.simplefilter("ignore")  # PyTorch's threads, and fork

class Listed(Dataset):
    def __init__(self, array):
        self.rows = array[:].tolist()
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return torch.tensor(self.rows[i])

def private(processes):
    total = 0
    for process in processes:
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))
    return total * 1024

array = lowtide.open(sys.argv[1])
dataset = Listed(array) if sys.argv[2] == "list" else ArrayDataset(array)
# Batches are dropped where they are made: what is measured is the data set's.
loader = DataLoader(dataset, 500, shuffle=True, num_workers=2, multiprocessing_context="fork",
                    persistent_workers=True, collate_fn=len)
batches = iter(loader)
rows = next(batches)
start = private(batches._workers)
rows += sum(batches)
print(json.dumps({"rows": rows, "grown": private(batches._workers) - start}))
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How far the private memory of two workers grows in one epoch, by the kind of the data set."""
    path: Path = tmp_path_factory.mktemp("workers") / "x.npy"
    np.save(path, np.random.default_rng(0).random((ROWS, WIDTH)))
    result = {}
    for kind in ("list", "array"):
        answer = json.loads(output(CODE, path, kind))
        assert answer["rows"] == ROWS
        result[kind] = answer["grown"]
    return result


def test_rows_in_list_are_copied_when_workers_read_them(grown: dict[str, int]) -> None:
    # Each of the lists and of their numbers counts its references in the page that holds it.
    assert grown["list"] > ROWS * WIDTH * 24


def test_array_dataset_stays_flat_in_workers(grown: dict[str, int]) -> None:
    assert grown["array"] < 8 * MIB
