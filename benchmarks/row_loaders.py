"""Loaders of rows with labels, one function each, and the process that runs one of them.

Every loader gives pairs of tensors without end, 256 rows of 256 float32 and 256 int64 labels, each epoch in
another random order, from a folder with ``x.npy`` and ``y.npy`` or what a peer's own writer made of them.
The feature in the first column of a row is its label, so that every batch can be checked.

It talks as ``benchmarks.loaders`` does: ``python -m benchmarks.row_loaders NAME FOLDER``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.loaders import status

BATCH, COLUMNS = 256, 256
BLOCK = 4096
Batches = Iterator[tuple[Any, Any]]
Convert = Callable[[str], None]


def _arrays(folder: str) -> tuple[Any, Any]:
    x, y = (np.load(os.path.join(folder, f"{name}.npy"), mmap_mode="r") for name in "xy")
    return x, y


def _blocks(folder: str) -> Iterator[tuple[int, Any, Any]]:
    x, y = _arrays(folder)
    for start in range(0, len(x), BLOCK):
        yield start, np.array(x[start : start + BLOCK]), np.array(y[start : start + BLOCK])


def _loaded(dataset: Any) -> Batches:
    """Epoch after epoch of PyTorch's own loader, without workers."""
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    while True:
        yield from loader


class _ByRow:
    """The data set that everybody writes: one row at a time."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


class _ByBatch(_ByRow):
    """The same for those who know ``__getitems__``: a batch in one index, in the order of the file."""

    def __init__(self, x: Any, y: Any, take: Callable[[Any, Any], Any]) -> None:
        super().__init__(x, y)
        self.take = take

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        places = np.argsort(np.asarray(rows))
        numbers = np.asarray(rows)[places]
        x, y = np.empty((len(rows), COLUMNS), np.float32), np.empty(len(rows), np.int64)
        x[places], y[places] = self.take(self.x, numbers), self.take(self.y, numbers)
        return list(zip(x, y, strict=True))


def memmap(folder: str) -> Batches:
    return _loaded(_ByRow(*_arrays(folder)))


def memmap_batches(folder: str) -> Batches:
    return _loaded(_ByBatch(*_arrays(folder), lambda array, rows: array[rows]))


def to_hdf5(folder: str) -> None:
    import h5py

    x, y = _arrays(folder)
    with h5py.File(os.path.join(folder, "rows.h5"), "w") as file:
        file.create_dataset("x", x.shape, x.dtype)
        file.create_dataset("y", y.shape, y.dtype)
        for start, rows, labels in _blocks(folder):
            file["x"][start : start + BLOCK] = rows
            file["y"][start : start + BLOCK] = labels


def hdf5(folder: str) -> Batches:
    import h5py

    file = h5py.File(os.path.join(folder, "rows.h5"))
    return _loaded(_ByBatch(file["x"], file["y"], lambda array, rows: array[rows]))


def to_zarr(folder: str) -> None:
    import zarr

    x, y = _arrays(folder)
    # Chunks of 1 MiB, the least that its guide advises; no compression, for numbers at random.
    group = zarr.open_group(os.path.join(folder, "rows.zarr"), mode="w")
    out = group.create_array("x", shape=x.shape, dtype=x.dtype, chunks=(1024, COLUMNS), compressors=None)
    labels = group.create_array("y", shape=y.shape, dtype=y.dtype, chunks=(2**17,), compressors=None)
    for start, rows, numbers in _blocks(folder):
        out[start : start + BLOCK] = rows
        labels[start : start + BLOCK] = numbers


def zarr(folder: str) -> Batches:
    import zarr

    group = zarr.open_group(os.path.join(folder, "rows.zarr"), mode="r")
    return _loaded(_ByBatch(group["x"], group["y"], lambda array, rows: array.oindex[rows]))


def dask(folder: str) -> Batches:
    import dask
    import dask.array

    # Its guide for arrays in NPY files: from_array of a map. Labels are small: one block.
    x, y = _arrays(folder)
    arrays = dask.array.from_array(x, chunks=(2**16, COLUMNS)), dask.array.from_array(y, chunks=-1)
    dask.config.set(scheduler="synchronous")
    return _loaded(_ByBatch(*arrays, lambda array, rows: array[rows].compute()))


def to_arrow(folder: str) -> None:
    import pyarrow

    schema = pyarrow.schema([("x", pyarrow.list_(pyarrow.float32(), COLUMNS)), ("y", pyarrow.int64())])
    path = os.path.join(folder, "rows.arrow")
    with pyarrow.OSFile(path, "wb") as sink, pyarrow.ipc.new_stream(sink, schema) as writer:
        for _, rows, labels in _blocks(folder):
            column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), COLUMNS)
            writer.write_batch(pyarrow.record_batch([column, pyarrow.array(labels)], schema=schema))


def huggingface(folder: str) -> Batches:
    import datasets

    dataset = datasets.Dataset.from_file(os.path.join(folder, "rows.arrow")).with_format("torch")
    batches: Iterator[Any] = _loaded(dataset)
    return ((batch["x"], batch["y"]) for batch in batches)


def _opened(folder: str) -> tuple[Any, Any]:
    import lowtide

    x, y = (lowtide.open(os.path.join(folder, f"{name}.npy")) for name in "xy")
    return x, y


def array_dataset(folder: str) -> Batches:
    from lowtide.torch import ArrayDataset

    return _loaded(ArrayDataset(*_opened(folder)))


def chunk_dataset(folder: str) -> Batches:
    from torch.utils.data import DataLoader

    import lowtide
    from lowtide.torch import ChunkDataset

    dataset = ChunkDataset(lowtide.zip(*_opened(folder)), BATCH, shuffle=True, drop_last=True)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=None)
    epoch = 0
    while True:
        dataset.set_epoch(epoch)
        yield from loader
        epoch += 1


@dataclass(frozen=True)
class Loader:
    """A row of the tables."""

    make: Callable[[str], Batches]
    package: str | None = None
    """What must be installed besides lowtide, NumPy and PyTorch."""
    convert: Convert | None = None
    reads: tuple[str, ...] = ("x.npy", "y.npy")
    """What of the folder is read, to be put out of the page cache."""
    maps: bool = False
    """Whether it reads through a mapping of the file."""

    @property
    def installed(self) -> bool:
        try:
            importlib.metadata.version(self.package or "torch")
        except importlib.metadata.PackageNotFoundError:
            return False
        return True


MEMMAP, ARRAYS, CHUNKS = "DataLoader over np.memmap", "lowtide, ArrayDataset", "lowtide, ChunkDataset"
LOADERS = {
    MEMMAP: Loader(memmap, maps=True),
    "np.memmap, by batch": Loader(memmap_batches, maps=True),
    "h5py, by batch": Loader(hdf5, "h5py", to_hdf5, ("rows.h5",)),
    "zarr, by batch": Loader(zarr, "zarr", to_zarr, ("rows.zarr",)),
    "Dask over np.memmap, by batch": Loader(dask, "dask", maps=True),
    "Hugging Face datasets": Loader(huggingface, "datasets", to_arrow, ("rows.arrow",), maps=True),
    ARRAYS: Loader(array_dataset),
    CHUNKS: Loader(chunk_dataset),
}


def check(x: Any, y: Any) -> None:
    """End the process if a batch is not of the kind to be compared."""
    right = tuple(x.shape) == (BATCH, COLUMNS) and tuple(y.shape) == (BATCH,)
    if not right or str(x.dtype) != "torch.float32" or str(y.dtype) != "torch.int64" or (x[:, 0] != y).any():
        message = f"{x.shape}, {y.shape}, {x.dtype}, {y.dtype}"
        raise SystemExit(f"not a batch of the kind to be compared: {message}")


def main(name: str, folder: str) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print their progress
    loader = LOADERS[name]
    if folder.startswith("convert:"):
        assert loader.convert is not None
        loader.convert(folder.removeprefix("convert:"))
        return
    import torch.utils.data

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name.startswith("lowtide"):
        import lowtide.torch  # noqa: F401  imports are no part of any figure
    elif loader.package:
        __import__("dask.array" if loader.package == "dask" else loader.package)
    print(json.dumps({"ready": True, **status()}), file=answers, flush=True)
    batches: Batches | None = None
    for line in sys.stdin:
        expected = json.loads(line)
        count, seconds = expected.get("batches", sys.maxsize), expected.get("seconds", float("inf"))
        done, started = 0, time.perf_counter()
        batches = loader.make(folder) if batches is None else batches
        while done < count and (not done or time.perf_counter() - started < seconds):
            x, y = next(batches)
            done += 1
        taken = time.perf_counter() - started
        check(x, y)
        print(json.dumps({"batches": done, "seconds": taken, **status()}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
