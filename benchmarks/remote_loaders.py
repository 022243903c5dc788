"""Loaders of token batches from a bucket, one function each, and the process that runs one of them.

Each gives pairs of 64 x 1,024 int64 tokens, without end, from the object ``bench/train.bin`` (uint16 and
nothing else) or from what a peer's own writer made of it. Libraries without orders have both that a user
would write: windows at random offsets, a request each, and blocks of 1 MiB, 16 of them shuffled
together, with the next 16 on the way.

``python -m benchmarks.remote_loaders NAME TASK`` prints one line of JSON: batches and their seconds, seconds
to the first of them (imports are no part of it), the highest memory above that of the imports, and bytes on
disk.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH, LENGTH = 64, 1024
KEY = "bench/train.bin"
_BLOCK, _GROUP, _WINDOW = 2**20, 16, 2 * (LENGTH + 1)


@dataclass(frozen=True)
class Task:
    """Where to read from, and for how long."""

    bucket: str
    seconds: float
    disk: str
    """The folder for what is kept on disk."""
    in_flight: int
    """Requests of 1 MiB under way."""

    @property
    def address(self) -> str:
        return f"s3://{self.bucket}/{KEY}"


Batches = Iterator[Any]
Fetch = Callable[[list[int], int], list[Any]]
"""From offsets and a length to the bytes at each."""


def _pair(tokens: Any) -> tuple[Any, Any]:
    wide = tokens.astype(np.int64)
    return wide[:, :-1], wide[:, 1:]


def _windows(size: int, fetch: Fetch) -> Batches:
    """Batches of windows anywhere, as nanoGPT takes them; the next batch is fetched while one is used."""
    random = np.random.default_rng(0)

    def batch() -> Any:
        starts = (random.integers(0, (size - _WINDOW) // 2, BATCH) * 2).tolist()
        return _pair(np.stack([np.frombuffer(part, "<u2") for part in fetch(starts, _WINDOW)]))

    with ThreadPoolExecutor(1) as ahead:
        pending = ahead.submit(batch)
        while True:
            ready, pending = pending, ahead.submit(batch)
            yield ready.result()


def _blocks(size: int, fetch: Fetch) -> Batches:
    """Blocks in a shuffled order, the windows of 16 of them shuffled; the next 16 are fetched meanwhile."""
    random = np.random.default_rng(0)

    def group(numbers: Any) -> Any:
        parts = fetch((numbers * _BLOCK).tolist(), _BLOCK)
        per_block = _BLOCK // _WINDOW
        tokens = [np.frombuffer(part, "<u2", per_block * (LENGTH + 1)) for part in parts]
        return np.concatenate(tokens).reshape(-1, LENGTH + 1)

    with ThreadPoolExecutor(1) as ahead:
        while True:
            order = random.permutation(size // _BLOCK)
            groups = [order[first : first + _GROUP] for first in range(0, len(order), _GROUP)]
            pending = ahead.submit(group, groups[0])
            for following in [*groups[1:], groups[0][:0]]:
                tokens = pending.result()
                if len(following):
                    pending = ahead.submit(group, following)
                chosen = random.permutation(len(tokens))
                for first in range(0, len(chosen) - BATCH + 1, BATCH):
                    yield _pair(tokens[chosen[first : first + BATCH]])


def obstore_gets(task: Task) -> Batches:
    """The yardstick: what plain concurrent gets of 1 MiB reach. Nothing is made of the bytes."""
    import obstore
    from obstore.store import S3Store

    store: Any = S3Store(task.bucket, client_options={"allow_http": True})
    size = obstore.head(store, KEY)["size"]
    starts = np.random.default_rng(0).permutation(size // _BLOCK) * _BLOCK

    def get(start: int) -> Any:
        data: Any = obstore.get_range(store, KEY, start=start, length=_BLOCK)
        return np.frombuffer(data, "<u2")

    with ThreadPoolExecutor(task.in_flight) as pool:
        while True:
            pending: list[Any] = []
            for start in starts.tolist():
                pending.append(pool.submit(get, start))
                if len(pending) == task.in_flight:
                    tokens = pending.pop(0).result()
                    for _ in range(_BLOCK // (2 * BATCH * LENGTH)):
                        yield tokens


def lowtide_blocks(task: Task, **options: Any) -> Batches:
    import lowtide

    corpus = lowtide.corpus(task.address, dtype="uint16", **options)
    yield from corpus.batches(BATCH, LENGTH, order="blocks", seed=1)


def lowtide_cached(task: Task) -> Batches:
    return lowtide_blocks(task, cache_dir=task.disk, cache="1 GiB")


def lowtide_shuffle(task: Task) -> Batches:
    import lowtide

    corpus = lowtide.corpus(task.address, dtype="uint16")
    yield from corpus.batches(BATCH, LENGTH, order="shuffle", seed=1)


def _boto3(task: Task, threads: int) -> tuple[int, Fetch]:
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", config=Config(max_pool_connections=threads))
    pool = ThreadPoolExecutor(threads)

    def get(start: int, length: int) -> Any:
        where = {"Bucket": task.bucket, "Key": KEY, "Range": f"bytes={start}-{start + length - 1}"}
        return client.get_object(**where)["Body"].read()

    def fetch(starts: list[int], length: int) -> list[Any]:
        return list(pool.map(get, starts, [length] * len(starts)))

    return client.head_object(Bucket=task.bucket, Key=KEY)["ContentLength"], fetch


def boto3_windows(task: Task) -> Batches:
    return _windows(*_boto3(task, 32))


def boto3_blocks(task: Task) -> Batches:
    return _blocks(*_boto3(task, task.in_flight))


def _s3fs(task: Task) -> tuple[int, Fetch]:
    """``cat_ranges`` makes its requests at the same time; ``open``, ``seek`` and ``read`` one by one."""
    import s3fs

    fs = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    path = f"{task.bucket}/{KEY}"

    def fetch(starts: list[int], length: int) -> list[Any]:
        parts: list[Any] = fs.cat_ranges([path] * len(starts), starts, [start + length for start in starts])
        return parts

    return fs.size(path), fetch


def s3fs_windows(task: Task) -> Batches:
    return _windows(*_s3fs(task))


def s3fs_blocks(task: Task) -> Batches:
    return _blocks(*_s3fs(task))


def litdata(task: Task) -> Batches:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server has no TLS
    windows = StreamingDataset(
        f"s3://{task.bucket}/litdata",
        cache_dir=task.disk,
        shuffle=True,
        item_loader=TokensLoader(block_size=LENGTH + 1),
        max_cache_size="1GB",
    )
    loader = StreamingDataLoader(windows, batch_size=BATCH, num_workers=1)
    while True:
        for taken in loader:
            yield _pair(taken.numpy())


def mosaicml(task: Task) -> Batches:
    """In one process, with its threads that download: with a forked worker it hung here.

    The worker has its parent's client.
    """
    from torch.utils.data import DataLoader

    from benchmarks.loaders import streaming

    peer = streaming()
    windows = peer.StreamingDataset(
        remote=f"s3://{task.bucket}/mds",
        local=task.disk,
        shuffle=True,
        batch_size=BATCH,
        cache_limit="1gb",
    )

    def collate(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
        return _pair(np.stack([sample["tokens"] for sample in samples]))

    while True:
        yield from DataLoader(windows, batch_size=BATCH, collate_fn=collate)


@dataclass(frozen=True)
class Loader:
    """A row of the table."""

    make: Callable[[Task], Batches]
    imports: tuple[str, ...]
    converted: str = ""
    """The loader of ``benchmarks.loaders`` whose writer it needs."""
    folder: str = ""
    """What that writes, and the prefix in the bucket."""
    python: str = sys.executable


OBSTORE, BLOCKS = "obstore, gets of 1 MiB", "lowtide, order=blocks"
_OURS = (
    "lowtide._tokens.batches",
    "lowtide._tokens.blocks",
    "lowtide._tokens.corpus",
    "lowtide._io.remote.reader",
    "obstore",
)
_MOSAICML = str(Path(__file__).parents[1] / ".venv-mosaicml" / "bin" / "python")
LOADERS = {
    OBSTORE: Loader(obstore_gets, ("obstore.store",)),
    BLOCKS: Loader(lowtide_blocks, _OURS),
    "lowtide, blocks, cached": Loader(lowtide_cached, _OURS),
    "lowtide, order=shuffle": Loader(lowtide_shuffle, _OURS),
    "boto3, windows": Loader(boto3_windows, ("boto3",)),
    "boto3, blocks": Loader(boto3_blocks, ("boto3",)),
    "s3fs, windows": Loader(s3fs_windows, ("s3fs",)),
    "s3fs, blocks": Loader(s3fs_blocks, ("s3fs",)),
    "LitData": Loader(litdata, ("litdata",), "LitData, converted", "litdata"),
    "MosaicML Streaming": Loader(
        mosaicml, ("torch.utils.data", "boto3"), "MosaicML Streaming, converted", "mds", _MOSAICML
    ),
}
PEERS = [name for name in LOADERS if not name.startswith(("lowtide", "obstore"))]


def _status(name: str, pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def _workers() -> int:
    """Bytes that other processes below this one have to themselves."""
    total, pids = 0, [os.getpid()]
    while pids:
        pid = pids.pop()
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                children = (task / "children").read_text().split()
                pids += map(int, children)
                for child in children:
                    lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                    total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
            except OSError:  # it has ended
                continue
    return total


def _disk(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # evicted or renamed meanwhile
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total


def main(name: str, text: str) -> None:
    """Run a loader for a while."""
    loader, task = LOADERS[name], Task(**json.loads(text))
    for module in loader.imports:
        importlib.import_module(module)
    if loader.make is mosaicml:
        from benchmarks.loaders import streaming

        streaming()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory is counted from here on
    started = time.perf_counter()
    batches = iter(loader.make(task))
    next(batches)
    first = time.perf_counter() - started
    count, disk, workers, measured = 0, _disk(task.disk), _workers(), time.perf_counter()
    looked = 0.0
    while (seconds := time.perf_counter() - measured) < task.seconds:
        next(batches)
        count += 1
        if seconds - looked > 0.5:  # seldom: it takes milliseconds
            looked = seconds
            disk, workers = max(disk, _disk(task.disk)), max(workers, _workers())
    figures = {
        "batches": count,
        "seconds": seconds,
        "first": first,
        "disk": max(disk, _disk(task.disk)),
        "peak": _status("VmHWM") - before + max(workers, _workers()),
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)  # whatever is under way


if __name__ == "__main__":
    main(*sys.argv[1:])
