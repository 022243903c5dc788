"""Loaders of token batches, one function each, and the process that runs one of them.

Every loader gives pairs of contiguous int64 tensors of 64 x 1,024 tokens, without end, from a folder that
holds ``train.bin`` (nanoGPT's: uint16 and nothing else) or what a peer's own writer made of it.

``python -m benchmarks.loaders NAME FOLDER`` says "ready" once its imports are done, and then answers each
line ``{"batches": N}`` or ``{"seconds": S}`` on its standard input with what that took. The loader is made
at the first such line, so that whoever asks can empty the page cache between the imports and the first read.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH, LENGTH = 64, 1024
Pairs = Iterator[tuple[Any, Any]]


def _tokens(folder: str) -> str:
    return os.path.join(folder, "train.bin")


def nanogpt(folder: str, batch: int = BATCH) -> Pairs:
    """nanoGPT's algorithm as published: a new np.memmap for each batch, two copies of each window."""
    import torch

    def get_batch() -> tuple[Any, Any]:
        data = np.memmap(_tokens(folder), dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - LENGTH, (batch,))
        x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in ix])
        return x, y

    while True:
        yield get_batch()


def _gather(data: Any) -> Pairs:
    """The fastest way found to take windows from an array: one fancy index, each copy widened once."""
    import torch

    windows = np.lib.stride_tricks.sliding_window_view(data, LENGTH + 1)
    while True:
        taken = windows[torch.randint(len(data) - LENGTH, (BATCH,)).numpy()]
        yield (
            torch.from_numpy(taken[:, :-1].astype(np.int64)),
            torch.from_numpy(taken[:, 1:].astype(np.int64)),
        )


def ram(folder: str) -> Pairs:
    """The whole corpus in memory: what no loader can be faster than."""
    return _gather(np.fromfile(_tokens(folder), np.uint16))


def kept_map(folder: str) -> Pairs:
    """The same gather from an np.memmap that is kept: every page touched stays in RSS."""
    return _gather(np.memmap(_tokens(folder), np.uint16, "r"))


def released_map(folder: str) -> Pairs:
    """A kept map with MADV_RANDOM, released by MADV_DONTNEED after each batch: flat RSS by hand."""
    import mmap

    data = np.memmap(_tokens(folder), np.uint16, "r")
    mapped: mmap.mmap = data._mmap  # type: ignore[attr-defined]
    mapped.madvise(mmap.MADV_RANDOM)
    for pair in _gather(data):
        mapped.madvise(mmap.MADV_DONTNEED)
        yield pair


def bare(folder: str) -> Pairs:
    """64 reads in one system call and two widening copies, all prepared beforehand: the least that it takes.

    Into the same two tensors each time, so that only a benchmark can use them.
    """
    import torch

    from lowtide._io import aio
    from lowtide._io.extents import Extents

    fd = os.open(_tokens(folder), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    context = aio._new()
    assert context is not None, "needs Linux AIO"
    taken = np.empty((BATCH, LENGTH + 1), np.uint16)
    wide = np.empty((2, BATCH, LENGTH), np.int64)
    pair = torch.from_numpy(wide[0]), torch.from_numpy(wide[1])
    count = os.path.getsize(_tokens(folder)) // 2 - LENGTH
    starts = np.random.default_rng(0).integers(0, count, (4096, BATCH)) * 2
    address, step = taken.ctypes.data, 0
    while True:
        extents = Extents.of_rows(starts[step % len(starts)], 2 * (LENGTH + 1))
        context.read(fd, extents, address, os.RWF_NOWAIT)
        np.copyto(wide[0], taken[:, :-1])
        np.copyto(wide[1], taken[:, 1:])
        step += 1
        yield pair


def _lowtide(folder: str, cache: Any = "keep", **how: Any) -> Pairs:
    import lowtide

    return (
        lowtide.corpus(os.path.join(folder, "train.bin"), cache=cache).batches(BATCH, LENGTH, **how).torch()
    )


def lowtide_alone(folder: str) -> Pairs:
    """One thread: each batch is read when it is asked for."""
    return _lowtide(folder, prefetch=0)


def lowtide_default(folder: str) -> Pairs:
    """As ``batches`` comes: two batches prefetched by a thread."""
    return _lowtide(folder)


def lowtide_drop(folder: str) -> Pairs:
    """Leaving nothing in the page cache."""
    return _lowtide(folder, cache="drop")


def lowtide_blocks(folder: str) -> Pairs:
    """Shuffled in blocks, as LitData and MosaicML do."""
    return _lowtide(folder, order="blocks")


def lowtide_budget(folder: str) -> Pairs:
    """With memory of an eighth of the corpus for the windows of many steps."""
    return _lowtide(folder, budget=os.path.getsize(_tokens(folder)) // 8)


def lowtide_half(folder: str) -> Pairs:
    """With memory of half of the corpus."""
    return _lowtide(folder, budget=os.path.getsize(_tokens(folder)) // 2)


def lowtide_get_batch(folder: str) -> Pairs:
    """The replacement for nanoGPT's function: the same offsets, the same batches."""
    from lowtide.nanogpt import get_batch_for

    get_batch = get_batch_for(folder, LENGTH, BATCH)
    while True:
        yield get_batch("train")


class MappedWindows:
    """Windows of a kept np.memmap by number, as data sets over token files are usually written."""

    def __init__(self, folder: str) -> None:
        self._data = np.memmap(_tokens(folder), np.uint16, "r")

    def __len__(self) -> int:
        return (len(self._data) - 1) // LENGTH

    def __getitem__(self, number: Any) -> tuple[Any, Any]:
        taken = self._data[int(number) * LENGTH : (int(number) + 1) * LENGTH + 1].astype(np.int64)
        return taken[:-1], taken[1:]


def dataloader(folder: str) -> Pairs:
    from torch.utils.data import DataLoader

    return iter(DataLoader(MappedWindows(folder), batch_size=BATCH, shuffle=True))  # type: ignore[arg-type]


def grain(folder: str) -> Pairs:
    import grain as peer
    import torch

    windows = peer.MapDataset.source(MappedWindows(folder)).shuffle(seed=0).batch(BATCH)
    for x, y in windows.to_iter_dataset():
        yield torch.from_numpy(x), torch.from_numpy(y)


def litdata(folder: str) -> Pairs:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    windows = StreamingDataset(
        os.path.join(folder, "litdata"), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True
    )
    for taken in StreamingDataLoader(windows, batch_size=BATCH, num_workers=0):
        wide = taken.long()
        yield wide[:, :-1].contiguous(), wide[:, 1:].contiguous()


def streaming() -> Any:
    """MosaicML Streaming, without its data sets of images, which want torchvision."""
    sys.modules.setdefault("streaming.vision", types.ModuleType("streaming.vision"))
    return importlib.import_module("streaming")


def mosaicml(folder: str) -> Pairs:
    import torch
    from torch.utils.data import DataLoader

    windows = streaming().StreamingDataset(local=os.path.join(folder, "mds"), shuffle=True, batch_size=BATCH)

    def collate(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
        taken = np.stack([sample["tokens"] for sample in samples])
        return (
            torch.from_numpy(taken[:, :-1].astype(np.int64)),
            torch.from_numpy(taken[:, 1:].astype(np.int64)),
        )

    yield from DataLoader(windows, batch_size=BATCH, collate_fn=collate)


def huggingface(folder: str) -> Pairs:
    import torch
    from datasets import Dataset

    windows = Dataset.from_file(os.path.join(folder, "windows.arrow")).with_format("numpy")
    while True:
        taken = windows[torch.randint(len(windows), (BATCH,)).tolist()]["tokens"]
        yield (
            torch.from_numpy(taken[:, :-1].astype(np.int64)),
            torch.from_numpy(taken[:, 1:].astype(np.int64)),
        )


# What the peers' own writers make of train.bin


def _blocks(folder: str, windows: int) -> Iterator[Any]:
    """So many windows of 1,025 tokens at a time, from beginning to end."""
    size = windows * (LENGTH + 1)
    with open(_tokens(folder), "rb") as file:
        while len(taken := np.fromfile(file, np.uint16, size)) == size:
            yield taken.reshape(windows, LENGTH + 1)


def _some_tokens(task: tuple[str, int, int]) -> Iterator[Any]:
    import torch

    path, start, count = task
    yield torch.from_numpy(np.fromfile(path, np.uint16, count, offset=2 * start))


def to_litdata(folder: str) -> None:
    from litdata import TokensLoader, optimize

    total, step = os.path.getsize(_tokens(folder)) // 2, 1024 * (LENGTH + 1)
    optimize(
        fn=_some_tokens,
        inputs=[(_tokens(folder), start, step) for start in range(0, total - step + 1, step)],
        output_dir=os.path.join(folder, "litdata"),
        item_loader=TokensLoader(),
        chunk_bytes="64MB",
        num_workers=1,
    )


def to_mds(folder: str) -> None:
    columns = {"tokens": f"ndarray:uint16:{LENGTH + 1}"}
    with streaming().MDSWriter(out=os.path.join(folder, "mds"), columns=columns) as writer:
        for block in _blocks(folder, 1024):
            for window in block:
                writer.write({"tokens": window})


def to_arrow(folder: str) -> None:
    import pyarrow

    schema = pyarrow.schema([("tokens", pyarrow.list_(pyarrow.uint16(), LENGTH + 1))])
    path = os.path.join(folder, "windows.arrow")
    with pyarrow.OSFile(path, "wb") as sink, pyarrow.ipc.new_stream(sink, schema) as writer:
        for block in _blocks(folder, 1024):
            column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(block.ravel()), LENGTH + 1)
            writer.write_batch(pyarrow.record_batch([column], schema=schema))


@dataclass(frozen=True)
class Loader:
    """A row of the tables."""

    make: Callable[[str], Pairs]
    package: str | None = None
    """What must be installed, where that is not lowtide, NumPy and PyTorch."""
    convert: Callable[[str], None] | None = None
    reads: str = "train.bin"
    """What of the folder is read, to be put out of the page cache."""

    @property
    def version(self) -> str | None:
        """The version of the peer, or None where it is not installed."""
        try:
            return importlib.metadata.version(self.package or "torch")
        except importlib.metadata.PackageNotFoundError:
            return None


LOADERS = {
    "nanoGPT as published": Loader(nanogpt),
    "gather from RAM": Loader(ram),
    "gather from a kept np.memmap": Loader(kept_map),
    "map with MADV_RANDOM and MADV_DONTNEED": Loader(released_map),
    "bare: 64 reads and widening": Loader(bare),
    "lowtide": Loader(lowtide_default),
    "lowtide, no prefetch": Loader(lowtide_alone),
    "lowtide, cache=drop": Loader(lowtide_drop),
    "lowtide, order=blocks": Loader(lowtide_blocks),
    "lowtide, budget 1/8": Loader(lowtide_budget),
    "lowtide, budget 1/2": Loader(lowtide_half),
    "lowtide's get_batch for nanoGPT": Loader(lowtide_get_batch),
    "DataLoader over np.memmap": Loader(dataloader),
    "Grain over np.memmap": Loader(grain, "grain"),
    "LitData, converted": Loader(litdata, "litdata", to_litdata, "litdata"),
    "MosaicML Streaming, converted": Loader(mosaicml, "mosaicml-streaming", to_mds, "mds"),
    "Hugging Face datasets, converted": Loader(huggingface, "datasets", to_arrow, "windows.arrow"),
}
PEERS = [name for name, loader in LOADERS.items() if loader.package]


def status() -> dict[str, int]:
    """Resident memory of this process, now and at its peak."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {"rss": int(fields["VmRSS"].split()[0]) * 1024, "peak": int(fields["VmHWM"].split()[0]) * 1024}


def _run(pairs: Pairs, batches: int, seconds: float) -> dict[str, Any]:
    done, pending = 0, time.perf_counter()
    while done < batches:
        x, y = next(pairs)
        done += 1
        if time.perf_counter() - pending >= seconds:
            break
    taken = time.perf_counter() - pending
    if (
        x.shape != (BATCH, LENGTH)
        or y.shape != x.shape
        or str(x.dtype) != "torch.int64"
        or x[0, 1] != y[0, 0]
    ):
        raise SystemExit(f"not a batch of the kind to be compared: {x.shape}, {y.shape}, {x.dtype}")
    return {"batches": done, "seconds": taken, **status()}


def main(name: str, folder: str) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print their progress
    loader = LOADERS[name]
    if folder.startswith("convert:"):
        assert loader.convert is not None
        loader.convert(folder.removeprefix("convert:"))
        return
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1337)
    if name.startswith(("lowtide", "bare")):
        import lowtide.nanogpt  # noqa: F401  imports are no part of any figure
    elif loader.package == "mosaicml-streaming":
        streaming()
    elif loader.package:
        __import__(loader.package)
    print(json.dumps({"ready": True, **status()}), file=answers, flush=True)
    pairs: Pairs | None = None
    for line in sys.stdin:
        expected = json.loads(line)
        pending = time.perf_counter()
        pairs = loader.make(folder) if pairs is None else pairs
        built = time.perf_counter() - pending
        message = _run(
            pairs, expected.get("batches", sys.maxsize), expected.get("seconds", float("inf")) - built
        )
        message["seconds"] += built
        print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
