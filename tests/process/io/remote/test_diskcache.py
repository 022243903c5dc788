"""The cache on disk: bounded, shared, safe under kill, checked when it is read back."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io import pagecache
from lowtide._io.remote.diskcache import BLOCK, NEVER, DiskCache, Use
from lowtide._tokens import blocks
from lowtide.errors import ArgumentError
from tests.support.formats import refused
from tests.support.proxy import FaultProxy
from tests.support.servers import BUCKET, ObjectServer

KEY = "0" * 24
DATA = np.random.default_rng(0).bytes(8 * BLOCK)


def on_disk(folder: Path) -> int:
    """Bytes that the pieces take, as the file system counts them; nobody may change them meanwhile."""
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _on_disk(folder)


def _on_disk(folder: Path) -> int:
    total = 0
    for place, folders, files in os.walk(folder):
        for name in files if place != str(folder) else []:
            try:
                total += os.stat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                continue
        total += 4096 * len(folders) if place != str(folder) else 0
    return total


def content(cache: DiskCache, start: int, stop: int, use: Use = Use()) -> tuple[bytes, list[tuple[int, int]]]:  # noqa: B008
    out = bytearray(stop - start)

    def take(at: int, data: memoryview) -> None:
        out[at - start : at - start + len(data)] = data

    missing = cache.read(KEY, start, stop, take, use)
    return bytes(out), missing


def test_written_ranges_are_read_back(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 16 * BLOCK)
    start, stop = 300_000, 3_500_000
    borders = [start, BLOCK, 2 * BLOCK, 3 * BLOCK, stop]
    assert content(cache, start, stop)[1] == list(itertools.pairwise(borders))
    cache.write(KEY, start, memoryview(DATA)[start:stop], Use())
    assert content(cache, start, stop) == (DATA[start:stop], [])
    assert content(DiskCache(str(tmp_path), 16 * BLOCK), 500_000, 600_000) == (DATA[500_000:600_000], [])
    data, missing = content(cache, 200_000, 3_600_000)
    assert missing == [(200_000, 300_000), (3_500_000, 3_600_000)]
    assert data[100_000:-100_000] == DATA[start:stop]
    assert cache.read("1" * 24, start, stop, lambda at, data: None, Use()) != []


@pytest.mark.parametrize("how", ["written", "used again"])
def test_pieces_are_not_renamed_during_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Who counts would find neither name, and keep more than it may."""
    cache = DiskCache(str(tmp_path), 16 * BLOCK)
    with open(tmp_path / "lock", "a") as lock:
        reached = threading.Event()

        def count(*_: Any) -> None:
            fcntl.flock(lock, fcntl.LOCK_EX)
            reached.set()

        if how == "used again":
            cache.write(KEY, 0, memoryview(DATA)[:BLOCK], Use(0, 5))
        monkeypatch.setattr(pagecache, "evict", count)  # the last call before either of them renames
        work = {
            "written": lambda: cache.write(KEY, 0, memoryview(DATA)[:BLOCK], Use(0, 5)),
            "used again": lambda: content(cache, 0, BLOCK, Use(5, 9)),
        }
        thread = threading.Thread(target=work[how])
        thread.start()
        assert reached.wait(10)
        time.sleep(0.1)
        before = os.listdir(tmp_path / KEY / "0")
        assert before == ["0-100000-5"] if how == "used again" else before[0].startswith(".writing")
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join(10)
    assert os.listdir(tmp_path / KEY / "0") == ["0-100000-9" if how == "used again" else "0-100000-5"]


def test_used_size_can_be_read_during_write(tmp_path: Path) -> None:
    """Without the lock: a short read asks whether there is room."""
    cache = DiskCache(str(tmp_path), 16 * BLOCK)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            cache._set_used(0)
            cache._set_used(BLOCK)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert all(cache.has_room() for _ in range(5000))
    finally:
        stop.set()
        thread.join()


def test_pieces_are_dropped_from_page_cache(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 16 * BLOCK)
    cache.write(KEY, 0, memoryview(DATA)[:BLOCK], Use())
    content(cache, 0, BLOCK)
    [piece] = tmp_path.glob("*/*/*-*-*")
    resident = pagecache.resident(piece)
    assert resident is None or resident[0] == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty"])
def test_damaged_piece_is_not_used(damage: str, tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 16 * BLOCK)
    cache.write(KEY, 0, memoryview(DATA)[:BLOCK], Use())
    [piece] = tmp_path.glob("*/*/*-*-*")
    old = piece.read_bytes()
    changed = {"flip": bytes([old[0] ^ 1]) + old[1:], "cut": old[:-1], "longer": old + b"x", "empty": b""}
    piece.write_bytes(changed[damage])
    assert content(cache, 0, BLOCK)[1] == [(0, BLOCK)]
    assert not piece.exists()


def test_cache_stays_below_limit_and_evicts_farthest_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide._io.remote.diskcache._SKIPS", 3)
    limit = 6 * BLOCK
    cache = DiskCache(str(tmp_path), limit)
    for number in range(8):
        cache.write(KEY, number * BLOCK, memoryview(DATA)[:BLOCK], Use(0, 100 - number))
        assert on_disk(tmp_path) <= limit
    kept = []
    for number in range(8):
        where = number * BLOCK, (number + 1) * BLOCK
        if not content(cache, *where, Use(0, 100 - number))[1]:
            kept.append(number)
    assert kept == [3, 4, 5, 6, 7]
    cache.write(KEY, 0, memoryview(DATA)[:BLOCK], Use(0, 1000))  # later than all that is here
    cache.write(KEY, BLOCK, memoryview(DATA)[:BLOCK], Use(0, NEVER))
    assert content(cache, 7 * BLOCK, 8 * BLOCK, Use(0, 93))[1] == []
    assert on_disk(tmp_path) <= limit
    for number in range(20, 30):  # what should have been used before now was not, and is not wanted
        cache.write(KEY, number * BLOCK, memoryview(DATA)[:BLOCK], Use(200, 300 + number))
    assert content(cache, 7 * BLOCK, 8 * BLOCK)[1] != []
    assert on_disk(tmp_path) <= limit


def test_short_pieces_are_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 8 * BLOCK)
    cache.write(KEY, 0, memoryview(DATA)[:2048], Use())
    assert on_disk(tmp_path) == 0


WRITER = """
    import os, sys, time
    from lowtide._io.remote.diskcache import BLOCK, DiskCache, Use
    folder, seed = sys.argv[1], int(sys.argv[2])
    cache = DiskCache(folder, 6 * BLOCK)
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        data = bytes([number % 251]) * BLOCK
        key = f"{seed:024x}"
        cache.write(key, (number % 16) * BLOCK, memoryview(data), Use(number, number + 7 * (number % 5)))
        got = []
        cache.read(key, 0, BLOCK, lambda at, data: got.append(bytes(data)), Use(number, number + 3))
        assert all(len(set(piece)) == 1 for piece in got)
"""


def test_cache_is_shared_by_processes_and_survives_kill(tmp_path: Path) -> None:
    """Counted while they write: never above the limit; what the killed one left behind is removed."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    writers = [subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE) for seed in range(3)]
    most = 0
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        end = time.monotonic() + 3
        while time.monotonic() < end:
            most = max(most, on_disk(tmp_path))
            if time.monotonic() > end - 2 and writers[2].poll() is None:
                writers[2].send_signal(signal.SIGKILL)
                writers[2].wait()
        assert [writer.poll() for writer in writers[:2]] == [None, None]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    assert 3 * BLOCK < most <= 6 * BLOCK
    DiskCache(str(tmp_path), 6 * BLOCK)
    assert not list(tmp_path.glob("*/*/.writing-*"))


def test_later_epochs_are_read_from_cache(
    object_server: ObjectServer, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for all nothing is fetched twice; with room for half, half of it is not fetched again."""
    import obstore

    monkeypatch.setattr(blocks, "BLOCK", 2**18)
    monkeypatch.setattr(blocks, "BUFFER", 2**19)
    tokens = np.random.default_rng(0).integers(0, 60000, 4 * 2**20).astype("<u2")  # 8 MiB
    obstore.put(object_server.store(), "cached/train.bin", tokens.tobytes())
    tokens.tofile(tmp_path / "train.bin")
    options = object_server.options | {"endpoint": proxy.endpoint}
    fetched = {}
    for name, size in (("all", "32 MiB"), ("half", "5 MiB")):
        proxy.reset()
        corpus = lowtide.corpus(
            f"s3://{BUCKET}/cached/train.bin", dtype="<u2", cache_dir=tmp_path / name, cache=size,
            storage_options=options,
        )  # fmt: skip
        assert "of cache in" in corpus._segments._reader(0).how
        batches = corpus.batches(32, 1024, order="blocks", seed=2)
        file = lowtide.corpus(tmp_path / "train.bin", dtype="<u2")
        expected = file.batches(32, 1024, order="blocks", seed=2)
        for step in range(3 * 127):
            np.testing.assert_array_equal(next(batches)[0], expected[step][0])
            assert step % 20 or on_disk(tmp_path / name) <= 5 * 2**20 or name == "all"
        batches.close()
        fetched[name] = proxy.sent / tokens.nbytes
    assert fetched["all"] < 1.3
    assert fetched["half"] < 2.3


def test_short_reads_are_cached_with_surrounding_data(
    object_server: ObjectServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Windows and rows of a KiB: nothing is fetched twice with room for all, and nothing too much without."""
    import obstore

    tokens = np.random.default_rng(0).integers(0, 60000, 4 * 2**20).astype("<u2")  # 8 MiB
    obstore.put(object_server.store(), "short/train.bin", tokens.tobytes())
    tokens.tofile(tmp_path / "train.bin")
    options = object_server.options | {"endpoint": proxy.endpoint}
    address = f"s3://{BUCKET}/short/train.bin"
    expected = lowtide.corpus(tmp_path / "train.bin", dtype="<u2").batches(8, 512, order="shuffle", seed=2)

    def fetched(**cache: Any) -> int:
        proxy.reset()
        corpus = lowtide.corpus(address, dtype="<u2", storage_options=options, **cache)
        with corpus.batches(8, 512, order="shuffle", seed=2) as batches:
            for step in range(256):
                np.testing.assert_array_equal(next(batches)[0], expected[step][0])
        return proxy.sent

    plain = fetched()
    whole: Any = {"cache_dir": tmp_path / "all", "cache": "32 MiB"}
    assert fetched(**whole) < 1.5 * tokens.nbytes  # two requests at the same time may want the same block
    assert fetched(**whole) < 2**17  # its first bytes, when it is opened
    part: Any = {"cache_dir": tmp_path / "part", "cache": "4 MiB"}
    assert fetched(**part) < 4 * 2**20 + plain
    assert fetched(**part) < 0.8 * plain
    assert on_disk(tmp_path / "part") <= 4 * 2**20
    rows = lowtide.open(
        address, dtype="<u2", shape=(4096, 1024), storage_options=options, **whole
    )  # fmt: skip
    proxy.reset()
    np.testing.assert_array_equal(rows[[5, 4000, 70, 5]], tokens.reshape(4096, 1024)[[5, 4000, 70, 5]])
    assert proxy.sent < 2**17


def test_short_reads_do_not_change_next_use_of_piece(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 8 * BLOCK)
    cache.write(KEY, 0, memoryview(DATA[:BLOCK]), Use(1, 7))
    assert content(cache, 10, 20) == (DATA[10:20], [])
    assert [path.name for path in tmp_path.glob("*/*/*")] == [f"0-{BLOCK:x}-7"]


def test_invalid_cache_arguments_raise(object_server: ObjectServer, tmp_path: Path) -> None:
    options: Any = {"storage_options": object_server.options, "cache_dir": tmp_path}
    with refused(ArgumentError, "cache_dir needs cache"):
        lowtide.open(f"s3://{BUCKET}/x.npy", **options)
    with refused(ArgumentError, "at least 4 MiB"):
        lowtide.open(f"s3://{BUCKET}/x.npy", cache="1 MiB", **options)
    with refused(ArgumentError, "cache_dir is for addresses"):
        lowtide.open(tmp_path / "x.npy", cache_dir=tmp_path, cache="1 GiB")
    with refused(ArgumentError, "cache must be 'keep' or 'drop'"):
        np.save(tmp_path / "x.npy", np.zeros(3))
        lowtide.open(tmp_path / "x.npy", cache="1 GiB")
