"""lowtide.to_dask: arrays on disk as Dask arrays, and no worker that holds the file."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import lowtide
from lowtide._arrays.array import Array
from lowtide._arrays.stored import StoredArray
from lowtide._memory import proc
from lowtide.errors import ArgumentError, ClosedError, MissingExtraError, NotFoundError, TruncatedFileError
from tests.support.formats import refused
from tests.support.process import output

MIB = 2**20
random = np.random.default_rng(0)
ARRAYS = {
    "matrix": random.random((1000, 7)),
    "vector": np.arange(50, dtype="u2"),
    "one number": np.array(3.5),
    "no rows": np.empty((0, 5), "f4"),
    "no columns": np.empty((5, 0, 3)),
    "structured": np.array([(1, (2, 3)), (4, (5, 6))] * 10, [("x", "f4"), ("y", "i8", 2)]),
    "fortran": np.asfortranarray(random.random((30, 40, 5))),
    "big endian": random.random((9, 4, 5)).astype(">f4"),
    "dates": np.arange(5).astype("M8[s]"),
    "bytes": np.array([b"ab", b"c"]),
}


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    """Tasks run in this thread, but where a test has a cluster."""
    with dask.config.set(scheduler="synchronous"):
        yield


def saved(path: Path, array: np.ndarray) -> Array:
    np.save(path / "a.npy", array)
    return lowtide.open(path / "a.npy")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of everything that is read from arrays."""
    shapes: list[tuple[int, ...]] = []
    read: Callable[[StoredArray, Any], np.ndarray] = StoredArray.__getitem__

    def noted(self: StoredArray, index: Any) -> np.ndarray:
        block = read(self, index)
        shapes.append(block.shape)
        return block

    monkeypatch.setattr(StoredArray, "__getitem__", noted)
    return shapes


# The same as NumPy


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("chunks", ["auto", "1 KiB", "100 B", -1, 3])
def test_computed_array_matches_source(tmp_path: Path, kind: str, chunks: Any) -> None:
    expected = ARRAYS[kind]
    lazy = lowtide.to_dask(saved(tmp_path, expected), chunks)
    assert (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype)
    result = lazy.compute()
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_fields_and_reductions_match_numpy(tmp_path: Path) -> None:
    lazy = lowtide.to_dask(saved(tmp_path, ARRAYS["structured"]), 3)
    assert lazy["x"].sum().compute() == 50
    np.testing.assert_array_equal(lazy["y"][:, 1].compute(), ARRAYS["structured"]["y"][:, 1])
    matrix = ARRAYS["matrix"]
    lazy = lowtide.to_dask(saved(tmp_path, matrix), 64)
    np.testing.assert_allclose(lazy.std(axis=0).compute(), matrix.std(axis=0))
    np.testing.assert_allclose((lazy.T @ lazy).compute(), matrix.T @ matrix)


def test_npz_members_and_raw_files_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", one=np.arange(10), two=np.arange(20))
    assert lowtide.to_dask(lowtide.open(tmp_path / "a.npz", name="two"), 6).sum().compute() == 190
    np.arange(20, dtype="u2").tofile(tmp_path / "a.raw")
    raw = lowtide.open(tmp_path / "a.raw", "u2", offset=4, cache="drop", reader="remap")
    assert lowtide.to_dask(raw, 6).sum().compute() == 189


# Blocks


@pytest.mark.parametrize(
    ("shape", "order", "size", "blocks"),
    [
        (
            (1000, 16),
            "C",
            "1 KiB",
            (63, 16),
        ),  # 64 rows of 16 bytes fit, and 16 blocks of 62 or 63 are as many
        ((1000, 16), "F", "1 KiB", (1000, 1)),
        ((1000, 16), "F", "4000 B", (1000, 4)),
        ((10, 4, 100), "C", "1200 B", (3, 4, 100)),  # 3 rows fit: 4 blocks
        ((10, 4, 100), "C", "210 B", (1, 2, 100)),  # half a row fits
        ((10, 4, 100), "C", "99 B", (1, 1, 50)),  # half of the last axis does
        ((10, 4, 100), "C", "0", (1, 1, 1)),
        ((5,), "C", "1 GiB", (5,)),
    ],
)
def test_blocks_are_contiguous_in_file(
    tmp_path: Path, shape: tuple[int, ...], order: Any, size: str, blocks: tuple[int, ...]
) -> None:
    array = saved(tmp_path, np.zeros(shape, "u1", order=order))
    assert lowtide.to_dask(array, size).chunksize == blocks
    with dask.config.set({"array.chunk-size": size}):
        assert lowtide.to_dask(array).chunksize == blocks


def test_chunks_accept_dask_notation(tmp_path: Path) -> None:
    array = saved(tmp_path, np.zeros((10, 6)))
    assert lowtide.to_dask(array, (4, -1)).chunks == ((4, 4, 2), (6,))
    assert lowtide.to_dask(array, ((1, 9), (2, 4))).chunks == ((1, 9), (2, 4))
    assert lowtide.to_dask(array, {0: 5, 1: 3}).chunks == ((5, 5), (3, 3))


def test_slice_reads_only_selected_rows(tmp_path: Path, reads: list[tuple[int, ...]]) -> None:
    matrix = ARRAYS["matrix"]
    lazy = lowtide.to_dask(saved(tmp_path, matrix), (500, -1))
    np.testing.assert_array_equal(lazy[20:30].compute(), matrix[20:30])
    assert reads == [(10, 7)]
    reads.clear()
    np.testing.assert_array_equal(lazy[495:505, 3].compute(), matrix[495:505, 3])
    assert reads == [(5,), (5,)]
    reads.clear()
    np.testing.assert_array_equal(lazy[7].compute(), matrix[7])
    assert reads == [(7,)]


def test_graph_construction_reads_nothing(tmp_path: Path, reads: list[tuple[int, ...]]) -> None:
    lazy = lowtide.to_dask(saved(tmp_path, ARRAYS["matrix"]))
    repr(lazy.mean(axis=0).T + 1)
    pickle.dumps(lazy)
    assert reads == []


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.rows(10, None, 3),
        lambda a: a.select(np.arange(len(a)) % 3 == 0).astype("f8"),
        lambda a: a.columns[[5, 1]].select([7, 7, 3]),
    ],
)
def test_views_convert_to_dask(tmp_path: Path, view: Any) -> None:
    array = view(saved(tmp_path, ARRAYS["matrix"]))
    lazy = lowtide.to_dask(array, chunks=100)
    assert lazy.name == lowtide.to_dask(view(lowtide.open(array.path)), chunks=100).name
    again = pickle.loads(pickle.dumps(lazy))
    expected = array[:]
    array._source.close()
    np.testing.assert_array_equal(again.compute(scheduler="synchronous"), expected)


# Names and pickles

NAME = "import sys, lowtide; print(lowtide.to_dask(lowtide.open(sys.argv[1]), chunks=100).name)"


def test_dask_name_is_derived_from_file(tmp_path: Path) -> None:
    array = saved(tmp_path, ARRAYS["matrix"])
    name = lowtide.to_dask(array, 100).name
    assert name.startswith("lowtide-")
    assert lowtide.to_dask(lowtide.open(tmp_path / "a.npy"), 100).name == name
    assert output(NAME, tmp_path / "a.npy").strip() == name
    assert lowtide.to_dask(array, 101).name != name
    np.save(tmp_path / "b.npy", ARRAYS["matrix"])
    assert lowtide.to_dask(lowtide.open(tmp_path / "b.npy"), 100).name != name
    raw = lowtide.open(tmp_path / "a.npy", "f8", (1000, 7), 128)
    other = lowtide.open(tmp_path / "a.npy", "i8", (1000, 7), 128)
    assert len({name, lowtide.to_dask(raw, 100).name, lowtide.to_dask(other, 100).name}) == 3
    os.utime(tmp_path / "a.npy", ns=(0, 12345))
    assert lowtide.to_dask(lowtide.open(tmp_path / "a.npy"), 100).name != name
    with pytest.raises(lowtide.FileChangedError):
        lowtide.to_dask(array, 100)


@pytest.mark.parametrize("gib", [1, 100])
def test_graph_and_tasks_are_small_for_large_files(tmp_path: Path, gib: int) -> None:
    with open(tmp_path / "a.raw", "wb") as file:
        file.truncate(gib * 2**30)
    lazy = lowtide.to_dask(lowtide.open(tmp_path / "a.raw", "f4", (-1, 256)), chunks="128 MiB")
    assert lazy.npartitions == gib * 8
    assert (
        len(pickle.dumps(lazy)) < 2000 + 10 * lazy.npartitions
    )  # Dask itself keeps the length of each block
    assert max(len(pickle.dumps(task)) for task in dict(lazy.dask).values()) < 1024


def test_unpickling_graph_does_not_open_file(tmp_path: Path) -> None:
    """Dask's scheduler is one; only the process that reads a block opens it, and gets the error."""
    lazy = lowtide.to_dask(saved(tmp_path, ARRAYS["matrix"]), 300)
    pickled = pickle.dumps(lazy)
    (tmp_path / "a.npy").rename(tmp_path / "b.npy")
    again = pickle.loads(pickled)
    with refused(NotFoundError, tmp_path / "a.npy"):
        again.sum().compute()
    (tmp_path / "b.npy").rename(tmp_path / "a.npy")
    np.testing.assert_allclose(again.sum().compute(), ARRAYS["matrix"].sum())


def test_graph_works_after_array_is_closed(tmp_path: Path) -> None:
    with saved(tmp_path, ARRAYS["vector"]) as array:
        lazy = lowtide.to_dask(array)
    assert lazy.sum().compute() == 49 * 25


# What can be wrong


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    array = saved(tmp_path, ARRAYS["matrix"])
    with refused(ArgumentError, "lowtide.open", "got ndarray", "dask.array.from_array"):
        lowtide.to_dask(ARRAYS["matrix"])  # type: ignore[arg-type]
    with refused(ArgumentError, "'lots' is not understood"):
        lowtide.to_dask(array, "lots")
    lazy = lowtide.to_dask(array)
    os.truncate(tmp_path / "a.npy", 1000)
    with refused(TruncatedFileError, "a.npy", "1000 bytes"):
        lazy.sum().compute()
    (tmp_path / "a.npy").unlink()
    with refused(NotFoundError, "a.npy"):
        lowtide.to_dask(array)
    array.close()
    with refused(ClosedError, "a.npy"):
        lowtide.to_dask(array)


def test_missing_dask_error_has_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = saved(tmp_path, ARRAYS["vector"])
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with refused(MissingExtraError, "pip install 'lowtide[dask]'"):
        lowtide.to_dask(array)


def test_lowtide_imports_without_dask() -> None:
    code = """
        import sys
        sys.modules["dask"] = None
        from lowtide import *
        print(to_dask.__module__)
    """
    assert output(code) == "lowtide.dask\n"


# On a cluster

ALLOWED = 256  # MiB of a worker, of which 65 to 130 are Python's and Dask's own
SIZE = 640


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file larger than all workers are allowed to have together."""
    assert SIZE > 2 * ALLOWED
    path = tmp_path_factory.mktemp("large") / "large.npy"
    rows = np.random.default_rng(1).random((16 * 1024, 256), np.float32)
    with lowtide.create(path, "float32", row_shape=256) as out:
        for number in range(SIZE // 16):
            out.append(rows + np.float32(number))
    yield path
    path.unlink()


@contextmanager
def cluster() -> Iterator[Client]:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    # A worker that passes its allowance is killed, and that is not to be tried again.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        with LocalCluster(**options, memory_limit=f"{ALLOWED} MiB") as cluster, Client(cluster) as client:
            yield client


@contextmanager
def mapped(pids: list[int], path: Path) -> Iterator[list[int]]:
    """Which of the processes have the file mapped, at any time that was looked at."""
    mapping: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.002):
            with suppress(*proc.GONE):
                mapping.extend(pid for pid in pids if os.fsencode(path) in proc.read(f"/proc/{pid}/maps"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield mapping
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs") and not os.environ.get("CI"),
    reason="only Linux keeps a peak that can be reset",
)
def test_worker_memory_stays_below_file_size(large: Path) -> None:
    rows = np.random.default_rng(1).random((16 * 1024, 256), np.float32)
    expected = np.mean([(rows + np.float32(i)).mean(axis=0, dtype="f8") for i in range(SIZE // 16)], axis=0)
    with cluster() as client, lowtide.open(large) as array:
        lazy = lowtide.to_dask(array, chunks="16 MiB")
        assert lazy.npartitions == SIZE // 16
        pids = list(client.run(os.getpid).values())
        assert os.getpid() not in pids
        assert len(set(pids)) == 2
        before = {pid: proc.status(pid).rss for pid in pids}
        assert all(proc.reset_peak(pid) for pid in pids)
        with mapped(pids, large) as mapping:
            mean = client.compute(lazy.mean(axis=0, dtype="f8")).result(timeout=100)
        assert list(client.run(os.getpid).values()) == pids  # none was killed and replaced
        grown = {pid: proc.status(pid).peak - before[pid] for pid in pids}
        workers = {worker for holders in client.who_has().values() for worker in holders}
        tail = client.compute(lazy[-5:, 7]).result(timeout=100)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_array_equal(tail, (rows + np.float32(SIZE // 16 - 1))[-5:, 7])
    assert mapping == []
    assert workers == set()
    # A block that is reduced while the next is read, and what Dask takes beside; some 30 MiB are usual.
    assert all(8 * MIB < bytes_more < 64 * MIB for bytes_more in grown.values()), grown


@pytest.mark.parametrize("new", [True, False], ids=["new file", "in place"])
def test_store_writes_from_worker_processes(tmp_path: Path, new: bool) -> None:
    source = saved(tmp_path, random.random((1000, 7)))
    out = lowtide.create(tmp_path / "out.npy", "f8", shape=source.shape)
    if not new:
        out.close()
        out = lowtide.open(tmp_path / "out.npy", mode="r+")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        blocks = lowtide.to_dask(source, chunks=(130, -1)) * 2
        dask.array.store(blocks, out, lock=False)
    out.close()
    assert (np.load(tmp_path / "out.npy") == source[:] * 2).all()
