"""Loaders of token batches, one function each. Random windows of 1,024 tokens, 64 to a batch.

Each is used as its documentation recommends for tokens in a local file, in the configuration that was fastest
here among those that were tried; comments say what was.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import loaders
from benchmarks.loaders import BATCH, LENGTH, MappedWindows
from benchmarks.peers.work import Peer, Place, Stream, endless, shuffled

TRAIN = "train.bin"


def _pair(windows: Any) -> tuple[Any, Any]:
    """Windows of 1,025 tokens as the input and the target of a model, each widened once."""
    import torch

    return (
        torch.from_numpy(windows[:, :-1].astype(np.int64)),
        torch.from_numpy(windows[:, 1:].astype(np.int64)),
    )


def _join(place: Place) -> None:
    """Meet the other ranks as a script under ``torchrun`` does; some loaders find their rank that way."""
    if place.ranks > 1:
        import torch.distributed

        torch.distributed.init_process_group("gloo")


# np.memmap. One fancy index over a sliding window: no way to gather from a map was found to be faster.


def _mapped(
    place: Place, after: Callable[[Any], object] = lambda data: None, *, advice: int | None = None
) -> Stream:
    data = np.memmap(place.path(TRAIN), np.uint16, "r")
    if advice is not None:
        data._mmap.madvise(advice)  # type: ignore[attr-defined]
    return _windows_of(data, after)


def _windows_of(data: Any, after: Callable[[Any], object] = lambda data: None) -> Stream:
    windows = np.lib.stride_tricks.sliding_window_view(data, LENGTH + 1)

    def batches(epoch: int) -> Iterator[Any]:
        for numbers in shuffled(len(data) // LENGTH - 1, BATCH, epoch):
            yield _pair(windows[numbers * LENGTH])
            after(data)

    return Stream(endless(batches))


def memmap_kept(place: Place) -> Stream:
    return _mapped(place)


def memmap_recreated(place: Place) -> Stream:
    def batches(epoch: int) -> Iterator[Any]:
        total = len(np.memmap(place.path(TRAIN), np.uint16, "r"))
        for numbers in shuffled(total // LENGTH - 1, BATCH, epoch):
            data = np.memmap(place.path(TRAIN), np.uint16, "r")
            yield _pair(np.lib.stride_tricks.sliding_window_view(data, LENGTH + 1)[numbers * LENGTH])

    return Stream(endless(batches))


def _release(data: Any) -> None:
    data._mmap.madvise(mmap.MADV_DONTNEED)


def memmap_advised(place: Place) -> Stream:
    return _mapped(place, _release)


def memmap_advised_random(place: Place) -> Stream:
    return _mapped(place, _release, advice=mmap.MADV_RANDOM)


def nanogpt(place: Place) -> Stream:
    """nanoGPT seeds with 1337 plus the rank at every start and keeps no state of the generator."""
    import torch

    torch.manual_seed(1337 + place.rank)
    return Stream(loaders.nanogpt(place.folder, place.batch))


def dataloader(place: Place) -> Stream:
    """In the process: two workers took three times as long on two cores.

    For exact resume PyTorch has ``StatefulDataLoader`` in torchdata, with the same arguments.
    """
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    windows: Any = MappedWindows(place.folder)
    sampler: Any = DistributedSampler(windows, place.ranks, place.rank, seed=0)
    if not place.resumable:
        loader: Any = DataLoader(windows, batch_size=place.batch, sampler=sampler)
    else:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(windows, batch_size=place.batch, sampler=sampler)
    if place.state is not None:
        loader.load_state_dict(place.state)

    def batches(epoch: int) -> Iterator[Any]:
        sampler.set_epoch(epoch)
        yield from loader

    return Stream(endless(batches), loader.state_dict if place.resumable else lambda: None)


def grain(place: Place) -> Stream:
    """Shuffled, sharded by a slice, batched: the order of Grain's own guide. 16 threads read, as by default.

    They keep 16 batches ahead, and not the default of 500 elements, which is meant for single windows.
    """
    import grain as peer

    def pair(taken: Any) -> Any:
        return _pair(taken)

    windows = peer.MapDataset.source(_Windows(place.folder)).seed(0).shuffle().repeat()
    ahead = peer.ReadOptions(num_threads=16, prefetch_buffer_size=16)
    batches = iter(windows[place.rank :: place.ranks].batch(place.batch).map(pair).to_iter_dataset(ahead))
    if place.state is not None:
        batches.set_state(place.state)
    return Stream(batches, batches.get_state)


class _Windows(MappedWindows):
    """Windows of 1,025 tokens as they lie in the map."""

    def __getitem__(self, number: Any) -> Any:
        return self._data[int(number) * LENGTH : (int(number) + 1) * LENGTH + 1]


def _litdata(place: Place, **how: Any) -> Stream:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    _join(place)
    windows = StreamingDataset(
        place.path("litdata"), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True, **how
    )
    loader = StreamingDataLoader(windows, batch_size=place.batch, num_workers=0)
    if place.state is not None:
        loader.load_state_dict(place.state)

    def batches() -> Iterator[Any]:
        for taken in loader:
            wide = taken.long()
            yield wide[:, :-1].contiguous(), wide[:, 1:].contiguous()

    return Stream(endless(lambda epoch: batches()), loader.state_dict)


def litdata(place: Place) -> Stream:
    """``TokensLoader`` over chunks of 64 MB; chunks are shuffled, and then the windows in them."""
    return _litdata(place)


CEILING = 96 * 2**20


def litdata_ceilings(place: Place) -> Stream:
    """The same with its limits on memory set to what a small container has.

    By default LitData keeps four chunks mapped and asks the kernel for them in advance, unless that is more
    than half of the memory available *on the machine*: it does not look at the container's limit. The
    fraction is a setting, so here it is one that leaves room for one chunk of 64 MB.
    """
    from litdata.streaming.posix_fast import available_ram_bytes

    os.environ["LITDATA_POSIX_RAM_FRACTION"] = str(CEILING / (available_ram_bytes() or 2**33))
    return _litdata(place, max_pre_download=1)


class _Reads:
    """Windows by their numbers through ``os.preadv``, which releases the interpreter lock."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self.total = os.fstat(self._file).st_size // 2 // LENGTH - 1

    def pair(self, numbers: list[int]) -> tuple[Any, Any]:
        taken = np.empty((len(numbers), LENGTH + 1), np.uint16)
        for window, number in zip(taken, numbers, strict=True):
            os.preadv(self._file, [window.data], 2 * LENGTH * number)
        return _pair(taken)


def spdl(place: Place) -> Stream:
    """SPDL runs functions in threads; what they read with is ours to choose.

    ``os.preadv`` of whole batches in 16 threads. A gather from a kept map was within a fifth of that, warm,
    with the memory of the map. Its sampler as the source and ``aggregate`` after it, as in its guide, was ten
    times slower: each number goes through the pipeline by itself.
    """
    from spdl.pipeline import PipelineBuilder
    from spdl.source import DistributedRandomSampler

    windows = _Reads(place.path(TRAIN))
    sampler = DistributedRandomSampler(windows.total, rank=place.rank, world_size=place.ranks, seed=0)

    def numbers(epoch: int) -> Iterator[list[int]]:
        sampler.shuffle(seed=epoch)
        ahead = iter(sampler)
        while len(batch := list(itertools.islice(ahead, place.batch))) == place.batch:
            yield batch

    def batches(epoch: int) -> Iterator[Any]:
        builder: Any = PipelineBuilder()  # typed only where SPDL is installed
        builder = builder.add_source(numbers(epoch))
        builder = builder.pipe(windows.pair, concurrency=16, output_order="input").add_sink(4)
        pipeline = builder.build(num_threads=16)
        with pipeline.auto_stop():
            yield from pipeline

    return Stream(endless(batches))


def mosaicml(place: Place) -> Stream:
    """Windows as samples in MDS shards. It meets the other ranks by itself."""
    peer = loaders.streaming()
    windows = peer.StreamingDataset(local=place.path("mds"), shuffle=True, batch_size=place.batch)

    def collate(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
        return _pair(np.stack([sample["tokens"] for sample in samples]))

    loader = peer.StreamingDataLoader(windows, batch_size=place.batch, collate_fn=collate)
    if place.state is not None:
        loader.load_state_dict(place.state)
    return Stream(endless(lambda epoch: loader), loader.state_dict)


def huggingface(place: Place) -> Stream:
    """Arrow in NumPy's format through lists of shuffled numbers: three times as fast as ``shuffle().iter()``.

    The library's own state is that of an ``IterableDataset``, and its own way to share among ranks is
    ``split_dataset_by_node``; both are tested in their place.
    """
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    whole = Dataset.from_file(place.path("windows.arrow")).with_format("numpy")
    if place.ranks > 1:
        own = split_dataset_by_node(whole.shuffle(seed=0), place.rank, place.ranks)
        return Stream(_pair(taken["tokens"]) for taken in own.iter(place.batch))
    if place.resumable:
        stream = whole.to_iterable_dataset(num_shards=16).shuffle(seed=0, buffer_size=1000)
        if place.state is not None:
            stream.load_state_dict(place.state)
        return Stream((_pair(np.stack(taken["tokens"])) for taken in stream.iter(BATCH)), stream.state_dict)

    def batches(epoch: int) -> Iterator[Any]:
        for numbers in shuffled(len(whole), BATCH, epoch):
            yield _pair(whole[numbers.tolist()]["tokens"])

    return Stream(endless(batches))


def _lowtide(place: Place, cache: Any = "keep", order: Any = "shuffle") -> Stream:
    import lowtide

    corpus = lowtide.corpus(place.path(TRAIN), cache=cache)
    batches = corpus.batches(BATCH, LENGTH, order=order, rank=place.rank, world_size=place.ranks).torch()
    if place.state is not None:
        batches.load_state_dict(place.state)
    return Stream(batches, batches.state_dict)


def lowtide_keep(place: Place) -> Stream:
    return _lowtide(place)


def lowtide_drop(place: Place) -> Stream:
    return _lowtide(place, cache="drop")


def lowtide_blocks(place: Place) -> Stream:
    return _lowtide(place, order="blocks")


def ram(place: Place) -> Stream:
    """Windows of an array in memory: what no loader can be faster than."""
    return _windows_of(np.fromfile(place.path(TRAIN), np.uint16))


_TORCH = ("torch",)
_LOWTIDE = ("torch", "lowtide.torch")

RAM = Peer(
    "tokens/ram", "RAM", "one fancy index a batch of an array in memory", ram, _TORCH, "numpy", reads=TRAIN
)

PEERS = [
    Peer("tokens/memmap", "np.memmap, kept", "one map, one fancy index a batch", memmap_kept,
         _TORCH, "numpy", reads=TRAIN),
    Peer("tokens/memmap-recreated", "np.memmap, re-created", "a new map for each batch", memmap_recreated,
         _TORCH, "numpy", reads=TRAIN),
    Peer("tokens/memmap-advised", "np.memmap, DONTNEED", "MADV_DONTNEED after each batch", memmap_advised,
         _TORCH, "numpy", reads=TRAIN),
    Peer("tokens/memmap-random", "np.memmap, RANDOM + DONTNEED", "MADV_RANDOM, and DONTNEED after each batch",
         memmap_advised_random, _TORCH, "numpy", reads=TRAIN),
    Peer("tokens/nanogpt", "nanoGPT's get_batch", "as published", nanogpt,
         _TORCH, "torch", reads=TRAIN, ranks=True, state=True),
    Peer("tokens/dataloader", "torch DataLoader", "over a kept np.memmap", dataloader,
         _TORCH, "torch", reads=TRAIN, ranks=True, state=True, state_of="torchdata"),
    Peer("tokens/grain", "Grain", "MapDataset over a kept np.memmap", grain,
         ("torch", "grain"), "grain", reads=TRAIN, ranks=True, state=True),
    Peer("tokens/spdl", "SPDL", "16 threads, os.preadv of whole batches", spdl,
         ("torch", "spdl.pipeline", "spdl.source"), "spdl-core", reads=TRAIN, ranks=True),
    Peer("tokens/litdata", "LitData", "TokensLoader, chunks of 64 MB", litdata,
         ("torch", "litdata"), "litdata", loaders.to_litdata, "litdata", ranks=True, state=True),
    Peer("tokens/litdata-ceilings", "LitData, memory ceilings", "the same, room for one chunk of 64 MB",
         litdata_ceilings, ("torch", "litdata"), "litdata", loaders.to_litdata, "litdata",
         ranks=True, state=True),
    Peer("tokens/mosaicml", "MosaicML Streaming", "StreamingDataset over MDS", mosaicml,
         ("torch", "streaming"), "mosaicml-streaming", loaders.to_mds, "mds", ranks=True, state=True),
    Peer("tokens/huggingface", "Hugging Face datasets", "Arrow, lists of shuffled numbers", huggingface,
         ("torch", "datasets"), "datasets", loaders.to_arrow, "windows.arrow",
         ranks=True, state=True, state_of="IterableDataset"),
    Peer("tokens/lowtide", "lowtide", "corpus.batches(…).torch()", lowtide_keep,
         _LOWTIDE, "lowtide", reads=TRAIN, ranks=True, state=True),
    Peer("tokens/lowtide-drop", "lowtide, cache=drop", "the same, leaving no page cache", lowtide_drop,
         _LOWTIDE, "lowtide", reads=TRAIN, ranks=True, state=True),
    Peer("tokens/lowtide-blocks", "lowtide, order=blocks", "shuffled in blocks, as LitData and MosaicML do",
         lowtide_blocks, _LOWTIDE, "lowtide", reads=TRAIN, ranks=True, state=True),
]  # fmt: skip
