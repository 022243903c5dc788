"""Requests are few, long, and bounded by their bytes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io.extents import Extents
from lowtide._io.reader import open_reader
from lowtide._io.remote import pool
from lowtide._io.remote.reader import runs_of
from tests.support.buckets import npy
from tests.support.proxy import Exchange, FaultProxy
from tests.support.servers import BUCKET, ObjectServer

ADDRESS = f"s3://{BUCKET}/reader.npy"
ROWS = np.random.default_rng(2).integers(0, 255, (6000, 1024)).astype("u1")  # 6 MiB


@pytest.fixture
def array(object_server: ObjectServer, proxy: FaultProxy) -> lowtide.Array:
    import obstore

    obstore.put(object_server.store(), "reader.npy", npy(ROWS))
    options = object_server.options | {"endpoint": proxy.endpoint, "in_flight": "2 MiB"}
    array = lowtide.open(ADDRESS, storage_options=options)
    assert len(proxy.exchanges) <= 3  # to look for a folder, and to read the header
    proxy.reset()
    return array


def lengths(proxy: FaultProxy) -> list[int]:
    bounds = [str(exchange.range).removeprefix("bytes=").split("-") for exchange in proxy.exchanges]
    return sorted(int(stop) + 1 - int(start) for start, stop in bounds)


def test_adjacent_rows_are_one_request(array: lowtide.Array, proxy: FaultProxy) -> None:
    np.testing.assert_array_equal(array[[9, 7, 8, 2000, 30]], ROWS[[9, 7, 8, 2000, 30]])
    assert lengths(proxy) == [1024, 24 * 1024]


def test_long_runs_are_split_into_requests(array: lowtide.Array, proxy: FaultProxy) -> None:
    np.testing.assert_array_equal(array[:], ROWS)
    assert max(lengths(proxy)) <= 2**20
    assert sum(lengths(proxy)) == ROWS.nbytes
    assert 6 <= len(proxy.exchanges) <= 7


def test_bytes_in_flight_are_bounded(array: lowtide.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = pool.Budget()
    monkeypatch.setattr(pool, "BUDGET", budget)
    readers = [threading.Thread(target=lambda: array[:]) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert (budget.used, budget.most) == (0, 2 * 2**20)


def test_dropped_read_does_not_write_to_buffer(array: lowtide.Array, proxy: FaultProxy) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> None:
        held.set()
        release.wait(10)

    proxy.faults.append(hold)
    identity = array._layout.identity
    reader = open_reader(ADDRESS, array._layout.file_size, identity=identity)
    out = np.zeros(4 * 2**20, np.uint8)
    pending: Any = reader.submit(Extents.of_range(0, len(out)), out)
    assert held.wait(10)
    del pending
    release.set()
    np.testing.assert_array_equal(array[0], ROWS[0])  # behind the others in the queue
    assert not out.any()


def test_reads_of_several_chunks_overlap(array: lowtide.Array, proxy: FaultProxy) -> None:
    """The next chunk is requested before the first has come."""
    barrier = threading.Barrier(2)

    def meet(exchange: Exchange) -> None:
        if exchange.status == 0:
            barrier.wait(20)

    proxy.faults.append(meet)
    chunks = array.chunks(1024, prefetch=1)
    first = next(chunks)
    np.testing.assert_array_equal(first, ROWS[:1024])
    proxy.faults.clear()
    chunks.close()


def test_block_order_prefetches_next_window(
    object_server: ObjectServer, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads more of a window finds the next one in memory; who asks for one batch fetches one window."""
    import obstore

    from lowtide._tokens import blocks

    monkeypatch.setattr(blocks, "BLOCK", 2**17)
    monkeypatch.setattr(blocks, "BUFFER", 2**18)
    tokens = np.arange(2**20, dtype="<u4")
    obstore.put(object_server.store(), "next/train.bin", tokens.tobytes())
    options = object_server.options | {"endpoint": proxy.endpoint}
    corpus = lowtide.corpus(f"s3://{BUCKET}/next/train.bin", dtype="<u4", storage_options=options)
    batches = corpus.batches(8, 1024, order="blocks", seed=1, prefetch=0)
    proxy.reset()
    batches[3]
    assert proxy.sent <= 1.1 * 2**18
    epoch = [next(batches)[0] for _ in range(120)]  # nearly: of 1,023 windows
    assert proxy.sent <= 1.1 * (tokens.nbytes + 2**18)
    seen = np.concatenate([chunk.ravel() for chunk in epoch])
    assert len(np.unique(seen)) == len(seen)
    samples: Any = batches._steps.at(0).samples
    assert samples._next is not None


def test_fork_during_window_prefetch_continues(array: lowtide.Array) -> None:
    from tests.support.process import in_child

    chunks = array.chunks(128, shuffle="blocks", prefetch=0, reuse=True)
    first = next(chunks).copy()
    expected = array.chunks(128, shuffle="blocks", prefetch=0)

    def rest() -> bool:
        import signal

        signal.alarm(60)
        next(expected)
        return all(np.array_equal(next(chunks), next(expected)) for _ in range(40))

    assert in_child(rest)
    assert np.array_equal(first, next(array.chunks(128, shuffle="blocks")))


def test_run_contiguous_in_buffer_has_shift() -> None:
    whole = Extents(np.array([100]), np.array([7]), np.array([2**20 + 2]))  # cut, and joined again
    [run] = runs_of(whole)
    assert (len(run.extents), run.shift) == (2, -93)
    apart = Extents(np.array([0, 20]), np.array([0, 20]), np.array([10, 10]))
    assert [run.shift for run in runs_of(apart)] == [None]
    turned = Extents(np.array([0, 10]), np.array([10, 0]), np.array([10, 10]))
    assert [run.shift for run in runs_of(turned)] == [None]
