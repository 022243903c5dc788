"""Array libraries, one function each. Rows of 1 KiB in a globally shuffled order, 4,096 at a time.

Those that store arrays in chunks were given the layout that did best here at this work among those tried;
the comments give the others. None of them has its own shuffled pass: they are asked for lists of rows.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.peers.work import COLUMNS, ROWS, Peer, Place, Stream, endless, shuffled

MATRIX = "matrix.npy"
SHARD = 65536
"""Rows of 64 MiB."""


def _source(folder: str) -> Any:
    return np.load(f"{folder}/{MATRIX}", mmap_mode="r")


def _asked(total: int, take: Callable[[Any], Any], after: Callable[[], object] = lambda: None) -> Stream:
    """Whatever ``take`` gives for lists of shuffled rows."""

    def batches(epoch: int) -> Iterator[Any]:
        for rows in shuffled(total, ROWS, epoch):
            yield take(rows)
            after()

    return Stream(endless(batches))


def _slices(total: int, take: Callable[[slice], Any]) -> Iterator[Any]:
    for start in range(0, total, ROWS):
        yield take(slice(start, start + ROWS))


def _in_file_order(take: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For libraries that want ascending rows, or are faster with them."""

    def taken(rows: Any) -> Any:
        order = np.argsort(rows)
        out = np.empty((len(rows), COLUMNS), np.float32)
        out[order] = take(rows[order])
        return out

    return taken


# np.memmap


def memmap_kept(place: Place) -> Stream:
    matrix = _source(place.folder)
    return _asked(len(matrix), lambda rows: matrix[rows])


def memmap_recreated(place: Place) -> Stream:
    return _asked(len(_source(place.folder)), lambda rows: _source(place.folder)[rows])


def _advised(place: Place, advice: int | None = None) -> Stream:
    matrix = _source(place.folder)
    if advice is not None:
        matrix._mmap.madvise(advice)
    return _asked(
        len(matrix), lambda rows: matrix[rows], after=lambda: matrix._mmap.madvise(mmap.MADV_DONTNEED)
    )


def memmap_advised(place: Place) -> Stream:
    return _advised(place)


def memmap_advised_random(place: Place) -> Stream:
    return _advised(place, mmap.MADV_RANDOM)


def memmap_in_order(folder: str) -> Iterator[Any]:
    matrix = _source(folder)
    return _slices(len(matrix), lambda rows: np.array(matrix[rows]))


def memmap_recreated_in_order(folder: str) -> Iterator[Any]:
    return _slices(len(_source(folder)), lambda rows: np.array(_source(folder)[rows]))


def memmap_advised_in_order(folder: str) -> Iterator[Any]:
    matrix = _source(folder)
    for taken in _slices(len(matrix), lambda rows: np.array(matrix[rows])):
        yield taken
        matrix._mmap.madvise(mmap.MADV_DONTNEED)


# h5py: contiguous, and a list of ascending rows. Row by row it was four times slower; a chunked data set
# would read the whole chunk for each row.


def to_hdf5(folder: str) -> None:
    import h5py

    matrix = _source(folder)
    with h5py.File(f"{folder}/matrix.h5", "w") as file:
        out = file.create_dataset("matrix", matrix.shape, matrix.dtype)
        for start in range(0, len(matrix), ROWS):
            out[start : start + ROWS] = matrix[start : start + ROWS]


def _hdf5(folder: str) -> Any:
    import h5py

    return h5py.File(f"{folder}/matrix.h5")["matrix"]


def hdf5(place: Place) -> Stream:
    matrix = _hdf5(place.folder)
    return _asked(len(matrix), _in_file_order(lambda rows: matrix[rows]))


def hdf5_in_order(folder: str) -> Iterator[Any]:
    matrix = _hdf5(folder)
    return _slices(len(matrix), lambda rows: matrix[rows])


# zarr: chunks of 1 MiB, the least that its guide advises. Smaller ones, alone or in shards, were no faster
# for shuffled rows and up to a hundred times slower in order. No compression: the numbers are random.


def to_zarr(folder: str) -> None:
    import zarr

    matrix = _source(folder)
    out = zarr.create_array(
        f"{folder}/matrix.zarr",
        shape=matrix.shape,
        dtype=matrix.dtype,
        chunks=(1024, COLUMNS),
        compressors=None,
    )
    for start in range(0, len(matrix), SHARD):
        out[start : start + SHARD] = matrix[start : start + SHARD]


def _zarr(folder: str) -> Any:
    import zarr

    return zarr.open_array(f"{folder}/matrix.zarr", mode="r")


def zarr(place: Place) -> Stream:
    matrix = _zarr(place.folder)
    return _asked(matrix.shape[0], lambda rows: matrix.oindex[rows])


def zarr_in_order(folder: str) -> Iterator[Any]:
    matrix = _zarr(folder)
    return _slices(matrix.shape[0], lambda rows: matrix[rows])


# TensorStore: Zarr 3 with shards of 64 MiB and 16 rows to a chunk within them. 4 rows were as fast shuffled
# and half as fast in order, 64 rows the other way round.


def _tensorstore(folder: str, **how: Any) -> Any:
    import tensorstore

    where = {"driver": "file", "path": f"{folder}/matrix.tensorstore/"}
    return tensorstore.open({"driver": "zarr3", "kvstore": where, **how}).result()


def to_tensorstore(folder: str) -> None:
    matrix = _source(folder)
    shard = min(SHARD, len(matrix))
    inner = {"chunk_shape": [16, COLUMNS], "codecs": [{"name": "bytes"}]}
    layout = {
        "shape": list(matrix.shape),
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard, COLUMNS]}},
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }
    out = _tensorstore(folder, metadata=layout, create=True)
    for start in range(0, len(matrix), shard):
        out[start : start + shard].write(matrix[start : start + shard]).result()


def tensorstore(place: Place) -> Stream:
    matrix = _tensorstore(place.folder, open=True)
    return _asked(matrix.shape[0], lambda rows: matrix[rows].read().result())


def tensorstore_in_order(folder: str) -> Iterator[Any]:
    matrix = _tensorstore(folder, open=True)
    return _slices(matrix.shape[0], lambda rows: matrix[rows.start : rows.stop].read().result())


# DGL GraphBolt: a feature "on disk", which in 2.1.0 is a tensor over a map that is kept. DiskBasedFeature,
# which reads by io_uring, came after the last release on PyPI.


def _graphbolt(folder: str) -> Callable[[Any], Any]:
    from dgl import graphbolt

    where = {"domain": "node", "type": None, "name": "feat", "format": "numpy", "in_memory": False}
    data = graphbolt.OnDiskFeatureData(path=f"{folder}/{MATRIX}", **where)
    store = graphbolt.TorchBasedFeatureStore([data])
    return lambda rows: store.read("node", None, "feat", rows).numpy()


def graphbolt(place: Place) -> Stream:
    import torch

    read = _graphbolt(place.folder)
    return _asked(len(_source(place.folder)), lambda rows: read(torch.from_numpy(rows)))


def graphbolt_in_order(folder: str) -> Iterator[Any]:
    import torch

    read = _graphbolt(folder)
    return _slices(len(_source(folder)), lambda rows: read(torch.arange(rows.start, rows.stop)))


# Dask: blocks of 64 MiB over np.memmap, threads. Blocks of 4 MiB were three times slower.


def _dask(folder: str) -> Any:
    import dask.array as peer

    return peer.from_array(_source(folder), chunks=(SHARD, COLUMNS))


def dask(place: Place) -> Stream:
    matrix = _dask(place.folder)
    return _asked(len(matrix), lambda rows: matrix[rows].compute())


def dask_in_order(folder: str) -> Iterator[Any]:
    matrix = _dask(folder)
    return _slices(len(matrix), lambda rows: matrix[rows].compute())


# Blosc2: chunks of 4 MiB, 16 rows to a block, stored without compression. Mapped, blocks of 1, 4 and 64 rows
# were within a quarter of that; not mapped it is several times slower, and holds less.


def to_blosc2(folder: str) -> None:
    import blosc2 as peer

    matrix = _source(folder)
    out = peer.empty(
        matrix.shape,
        dtype=matrix.dtype,
        chunks=(ROWS, COLUMNS),
        blocks=(16, COLUMNS),
        urlpath=f"{folder}/matrix.b2nd",
        mode="w",
        cparams={"clevel": 0},
    )
    for start in range(0, len(matrix), ROWS):
        out[start : start + ROWS] = matrix[start : start + ROWS]


def _blosc2(folder: str, mapped: str | None) -> Any:
    import blosc2 as peer

    return peer.open(f"{folder}/matrix.b2nd", mode="r", mmap_mode=mapped)


def blosc2(place: Place) -> Stream:
    matrix = _blosc2(place.folder, None)
    return _asked(len(matrix), lambda rows: matrix[rows])


def blosc2_in_order(folder: str) -> Iterator[Any]:
    matrix = _blosc2(folder, None)
    return _slices(len(matrix), lambda rows: matrix[rows])


def blosc2_mapped(place: Place) -> Stream:
    matrix = _blosc2(place.folder, "r")
    return _asked(len(matrix), lambda rows: matrix[rows])


def blosc2_mapped_in_order(folder: str) -> Iterator[Any]:
    matrix = _blosc2(folder, "r")
    return _slices(len(matrix), lambda rows: matrix[rows])


# lowtide


def _lowtide(place: Place, cache: Any = "keep", shuffle: Any = True, budget: Any = None) -> Stream:
    import lowtide

    array = lowtide.open(place.path(MATRIX), cache=cache)
    passing = [array.chunks(ROWS, shuffle=shuffle, seed=0, budget=budget)]
    if place.state is not None:
        passing[0].load_state_dict(place.state)

    def batches(epoch: int) -> Iterator[Any]:
        if epoch:
            passing[0] = array.chunks(ROWS, shuffle=shuffle, seed=epoch, budget=budget)
        yield from passing[0]

    return Stream(endless(batches), lambda: passing[0].state_dict())


def lowtide_keep(place: Place) -> Stream:
    return _lowtide(place)


def lowtide_drop(place: Place) -> Stream:
    return _lowtide(place, "drop")


def lowtide_budget(place: Place) -> Stream:
    return _lowtide(place, budget="128 MiB")


def lowtide_blocks(place: Place) -> Stream:
    return _lowtide(place, shuffle="blocks")


def lowtide_in_order(folder: str, cache: Any = "keep") -> Iterator[Any]:
    import lowtide

    with lowtide.open(f"{folder}/{MATRIX}", cache=cache) as array:
        yield from array.chunks(ROWS)


def lowtide_drop_in_order(folder: str) -> Iterator[Any]:
    return lowtide_in_order(folder, "drop")


@functools.cache
def _loaded(path: str) -> Any:
    return np.load(path)


def ram(place: Place) -> Stream:
    """Rows of an array in memory: what nothing that copies rows can be faster than."""
    matrix = _loaded(place.path(MATRIX))
    return _asked(len(matrix), lambda rows: matrix[rows])


def ram_in_order(folder: str) -> Iterator[Any]:
    """Of the array that is there already: loading is not a part of a copy."""
    matrix = _loaded(Place(folder).path(MATRIX))
    return _slices(len(matrix), lambda rows: np.array(matrix[rows]))


RAM = Peer(
    "rows/ram", "RAM", "lists of rows of an array in memory", ram, (), "numpy", None, MATRIX, ram_in_order
)

PEERS = [
    Peer("rows/memmap", "np.memmap, kept", "one map, lists of rows", memmap_kept,
         (), "numpy", None, MATRIX, memmap_in_order),
    Peer("rows/memmap-recreated", "np.memmap, re-created", "a new map for each 4,096 rows", memmap_recreated,
         (), "numpy", None, MATRIX, memmap_recreated_in_order),
    Peer("rows/memmap-advised", "np.memmap, DONTNEED", "MADV_DONTNEED after each 4,096 rows", memmap_advised,
         (), "numpy", None, MATRIX, memmap_advised_in_order),
    Peer("rows/memmap-random", "np.memmap, RANDOM + DONTNEED", "MADV_RANDOM, and DONTNEED after 4,096 rows",
         memmap_advised_random, (), "numpy", None, MATRIX),
    Peer("rows/h5py", "h5py", "contiguous, ascending lists", hdf5,
         ("h5py",), "h5py", to_hdf5, "matrix.h5", hdf5_in_order),
    Peer("rows/zarr", "zarr", "chunks of 1 MiB, oindex", zarr,
         ("zarr",), "zarr", to_zarr, "matrix.zarr", zarr_in_order),
    Peer("rows/tensorstore", "TensorStore", "Zarr 3, chunks of 16 KiB in shards", tensorstore,
         ("tensorstore",), "tensorstore", to_tensorstore, "matrix.tensorstore", tensorstore_in_order),
    Peer("rows/graphbolt", "DGL GraphBolt", "a feature on disk (a kept map), read by lists", graphbolt,
         ("dgl.graphbolt",), "dgl", None, MATRIX, graphbolt_in_order),
    Peer("rows/dask", "Dask", "blocks of 64 MiB over np.memmap, threads", dask,
         ("dask.array",), "dask", None, MATRIX, dask_in_order),
    Peer("rows/blosc2", "Blosc2", "chunks of 4 MiB, blocks of 16 KiB", blosc2,
         ("blosc2",), "blosc2", to_blosc2, "matrix.b2nd", blosc2_in_order),
    Peer("rows/blosc2-mapped", "Blosc2, mapped", "the same with mmap_mode", blosc2_mapped,
         ("blosc2",), "blosc2", to_blosc2, "matrix.b2nd", blosc2_mapped_in_order),
    Peer("rows/lowtide", "lowtide", "array.chunks(4096, shuffle=True)", lowtide_keep,
         ("lowtide._arrays.chunks",), "lowtide", None, MATRIX, lowtide_in_order, state=True),
    Peer("rows/lowtide-drop", "lowtide, cache=drop", "the same, leaving no page cache", lowtide_drop,
         ("lowtide._arrays.chunks",), "lowtide", None, MATRIX, lowtide_drop_in_order, state=True),
    Peer("rows/lowtide-budget", "lowtide, budget=128 MiB", "the same, reading ahead in half of a container",
         lowtide_budget, ("lowtide._arrays.chunks",), "lowtide", None, MATRIX, state=True),
    Peer("rows/lowtide-blocks", "lowtide, shuffle=blocks", "shuffled in blocks, not globally",
         lowtide_blocks, ("lowtide._arrays.chunks",), "lowtide", None, MATRIX, state=True),
]  # fmt: skip
