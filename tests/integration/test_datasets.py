"""The data sets in PyTorch's DataLoader and torchdata's StatefulDataLoader, with real workers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import lowtide
from lowtide._tokens.batches import Batches
from lowtide.errors import ArgumentError, IndexingError, StateError
from lowtide.torch import IterableDataset, MapDataset
from tests.support.corpora import numbered
from tests.support.examples import examples

LENGTH = 16

# Since 3.12 Python warns of fork in a process with threads, such as PyTorch's own. Workers are forked here
# because that is what DataLoader does on Linux before 3.14, and what its users meet.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
workers = pytest.mark.parametrize(
    ("num_workers", "context"),
    [
        pytest.param(0, None, id="no workers"),
        pytest.param(2, "fork", id="2 forked", marks=forks),
        pytest.param(2, "spawn", id="2 spawned"),
    ],
)
counts = pytest.mark.parametrize(
    "num_workers", [pytest.param(0, id="no workers"), pytest.param(2, id="2 workers", marks=forks)]
)


@pytest.fixture
def corpus(tmp_path: Path) -> lowtide.Corpus:
    return numbered(tmp_path / "corpus", 5_003, shards=3)


def rows(loader: Any) -> list[list[int]]:
    """Each window of each batch, in the order in which they came."""
    return [row.tolist() for x, _ in loader for row in x]


def scrambled(worker: int) -> None:
    """What a user's worker_init_fn may do; data must not depend on any generator."""
    torch.manual_seed(worker)
    np.random.seed(worker)
    random.seed(worker)


def end_workers() -> None:
    """After an exception in a worker PyTorch waits five seconds for each of them."""
    children = multiprocessing.active_children()
    for child in children:
        with suppress(RuntimeError):  # its handler of SIGCHLD complains, here and not later in a finaliser
            child.terminate()
    for child in children:
        while child.exitcode is None:
            with suppress(RuntimeError):
                child.join()


# Whole batches in the order of their steps


@workers
def test_iterable_batches_come_in_step_order(
    corpus: lowtide.Corpus, num_workers: int, context: str | None
) -> None:
    """Nine steps from step 3: an odd number, so that one worker has more to do."""
    batches = corpus.batches(4, LENGTH, seed=1, start=3)
    loader = DataLoader(
        IterableDataset(batches, steps=9),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=context,
        worker_init_fn=scrambled,
    )
    for _ in range(1 if context == "spawn" else 2):  # every iter starts again
        result = list(loader)
        assert len(result) == 9
        for step, (x, y) in enumerate(result, start=3):
            assert x.dtype == y.dtype == torch.int64
            assert x.is_contiguous()
            assert y.is_contiguous()
            assert (x.numpy() == batches[step][0]).all()
            assert (y.numpy() == batches[step][1]).all()


@forks
@pytest.mark.parametrize("order", ["blocks", "documents"])
def test_workers_forked_during_read_do_not_hang(tmp_path: Path, order: str) -> None:
    """These orders hold locks while they read; a fork that copies a held one would hang its worker."""
    tokens = np.arange(50_000, dtype=np.uint16) % 1000
    tokens.tofile(tmp_path / "train.bin")
    corpus = lowtide.corpus(tmp_path / "train.bin", eos=999)
    batches = corpus.batches(4, LENGTH, order=order, seed=1)
    expected = [batches[step][0] for step in range(3)]
    stop = threading.Event()

    def read() -> None:
        step = 0
        while not stop.is_set():
            batches[step]
            step += 100

    thread = threading.Thread(target=read)
    thread.start()
    try:
        dataset = IterableDataset(batches, steps=3)
        for _ in range(3):
            result = [x for x, _ in DataLoader(dataset, batch_size=None, num_workers=2, timeout=30)]
            assert all((x.numpy() == old).all() for x, old in zip(result, expected, strict=True))
    finally:
        stop.set()
        thread.join()


def test_data_set_is_independent_of_callers_batches(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = IterableDataset(batches, steps=2)
    next(batches)
    next(batches)
    batches.close()
    assert rows(dataset) == rows(IterableDataset(corpus.batches(4, LENGTH, seed=1), steps=2))


def test_iterable_epochs_are_consecutive(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = IterableDataset(batches, steps=3)
    result = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        result += rows(DataLoader(dataset, batch_size=None))
    assert result == rows(IterableDataset(batches, steps=9))
    assert rows(IterableDataset(batches, steps=3, epoch=2)) == result[-12:]


def test_iterable_without_steps_is_endless(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    result = iter(DataLoader(IterableDataset(batches), batch_size=None))
    for step in range(2 * batches.epoch_steps + 3):
        assert (next(result)[0].numpy() == batches[step][0]).all()


def test_iterable_with_rank_gives_rows_of_rank(corpus: lowtide.Corpus) -> None:
    whole = rows(IterableDataset(corpus.batches(5, LENGTH, seed=1), steps=1))
    parts = [
        rows(IterableDataset(corpus.batches(5, LENGTH, seed=1, rank=rank, world_size=2), steps=1))
        for rank in (0, 1)
    ]
    assert parts[0] + parts[1] == whole


def test_masking_labels_does_not_change_the_input(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    [batch] = IterableDataset(batches, steps=1, as_dict=True, single=False)
    item = MapDataset(batches, as_dict=True)[0]
    for named in (batch, item):
        assert set(named) == {"input_ids", "labels"}
        assert torch.equal(named["input_ids"], named["labels"])
        named["labels"][:] = -100
        assert (named["input_ids"] >= 0).all()


def test_iterable_length_is_epoch_length(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH)
    assert len(IterableDataset(batches, steps=9)) == 9
    assert len(DataLoader(IterableDataset(batches, steps=9), batch_size=None)) == 9
    assert len(IterableDataset(batches, steps=9, single=True)) == 36
    with pytest.raises(TypeError, match="has no end"):
        len(IterableDataset(batches))


@forks
@pytest.mark.parametrize("kind", ["iterable", "map"])
def test_set_epoch_reaches_persistent_workers(corpus: lowtide.Corpus, kind: str) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset: Any = IterableDataset(batches, steps=6) if kind == "iterable" else MapDataset(batches)
    size = None if kind == "iterable" else 4
    loader = DataLoader(dataset, batch_size=size, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 3):
        dataset.set_epoch(epoch)
        fresh: Any = (
            IterableDataset(batches, steps=6, epoch=epoch)
            if kind == "iterable"
            else MapDataset(batches, epoch=epoch)
        )
        assert rows(loader) == rows(DataLoader(fresh, batch_size=size))


@counts
def test_single_windows_collate_to_same_batches(corpus: lowtide.Corpus, num_workers: int) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = IterableDataset(batches, steps=5, as_dict=True)
    loader = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    result = list(loader)
    assert len(result) == 5
    for step, batch in enumerate(result):
        assert batch["input_ids"].shape == (4, LENGTH)
        assert (batch["input_ids"].numpy() == batches[step][0]).all()


def test_state_of_single_windows_resumes_within_a_step(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    expected = [x.tolist() for x, _ in IterableDataset(batches, steps=3, single=True)]
    for taken in range(13):
        dataset = IterableDataset(batches, steps=3, single=True)
        running = iter(dataset)
        for _ in range(taken):
            next(running)
        resumed = IterableDataset(batches, steps=3, single=True)
        resumed.load_state_dict(dataset.state_dict())
        assert [x.tolist() for x, _ in resumed] == expected[taken:]


def test_auto_rank_is_resolved_when_iterating(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = corpus.batches(5, LENGTH, seed=1)
    dataset = IterableDataset(batches, steps=2, rank="auto")
    parts = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        parts.append([x for x, _ in dataset])
    for step in range(2):
        assert (np.concatenate([part[step] for part in parts]) == batches[step][0]).all()


# Single windows


@workers
def test_sequential_map_windows_match_batches(
    corpus: lowtide.Corpus, num_workers: int, context: str | None
) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = MapDataset(batches)
    loader = DataLoader(
        dataset,
        batch_sampler=BatchSampler(SequentialSampler(dataset), 4, drop_last=False),
        num_workers=num_workers,
        multiprocessing_context=context,
        worker_init_fn=scrambled,
    )
    result = list(loader)
    assert sum(len(x) for x, _ in result) == len(dataset)
    for step, (x, y) in enumerate(result):
        assert x.dtype == torch.int64
        assert (x.numpy() == batches[step][0][: len(x)]).all()
        assert (y.numpy() == batches[step][1][: len(x)]).all()


@counts
@pytest.mark.parametrize("order", ["shuffle", "blocks", "sequential", "random"])
def test_loader_shuffle_gives_every_window_once(corpus: lowtide.Corpus, num_workers: int, order: str) -> None:
    dataset = MapDataset(corpus.batches(4, LENGTH, order=order, seed=1))
    expected = [dataset[number][0].tolist() for number in range(len(dataset))]
    loader = DataLoader(dataset, batch_size=7, shuffle=True, num_workers=num_workers)
    result = rows(loader)
    assert result != expected
    assert sorted(result) == sorted(expected)
    assert rows(loader) != result  # the sampler has moved on


def test_map_windows_of_batch_are_one_read(corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = MapDataset(corpus.batches(4, LENGTH, seed=1))
    asked: list[int] = []
    segments: Any = dataset._batches._samples._corpus._segments  # type: ignore[attr-defined]
    submit = segments.submit_windows

    def counted(starts: Any, out: Any, *more: Any) -> Any:
        asked.append(len(starts))
        return submit(starts, out, *more)

    monkeypatch.setattr(segments, "submit_windows", counted)
    numbers = [250, 3, 4, 5, 100, 3]
    items = dataset.__getitems__(numbers)
    assert asked == [6]
    for number, (x, y) in zip(numbers, items, strict=True):
        assert torch.equal(x, dataset[number][0])
        assert torch.equal(y, dataset[number][1])


@pytest.mark.parametrize("order", ["shuffle", "blocks", "sequential", "random", "documents", "packed"])
@pytest.mark.parametrize("tokens", [3_000, 300_000])
def test_windows_by_number_match_sequential_reads(tmp_path: Path, order: str, tokens: int) -> None:
    """In several epochs, in any order and twice; by table, and by network for many windows."""
    where = np.arange(1, tokens + 1, dtype="<u4")  # a token is its position, but zeros end documents
    np.where(where % 47, where, 0).astype("<u4").tofile(tmp_path / "part.bin")
    corpus = lowtide.corpus(tmp_path / "part.bin", dtype="<u4", eos=0)
    batches = corpus.batches(1, LENGTH, order=order, seed=1)
    numbers = np.random.default_rng(0).integers(0, 3 * batches.epoch_samples, 200)
    numbers[7] = numbers[3]
    result = batches.read_samples(numbers)
    expected = np.concatenate([batches.read(int(number)) for number in numbers])
    assert (result == expected).all()


def test_map_windows_of_mixture_match_batches(corpus: lowtide.Corpus, tmp_path: Path) -> None:
    mixed = lowtide.mix({"a": corpus, "b": numbered(tmp_path / "b", 900)}, {"a": 0.75, "b": 0.25})
    batches = mixed.batches(4, LENGTH, seed=1)
    dataset = MapDataset(batches)
    result = rows(DataLoader(dataset, batch_size=4))
    assert result[:12] == [row for step in range(3) for row in batches[step][0].tolist()]
    assert [x.tolist() for x, _ in dataset.__getitems__([9, 2, 0])] == [result[9], result[2], result[0]]


def test_map_epochs_match_batches(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(1, LENGTH, seed=1)
    dataset = MapDataset(batches)
    for epoch in (0, 3, 1):
        dataset.set_epoch(epoch)
        for number in (0, 17, len(dataset) - 1):
            expected = batches[epoch * batches.epoch_samples + number]
            assert dataset[number][0].tolist() == expected[0][0].tolist()
    assert torch.equal(MapDataset(batches, epoch=1)[5][0], dataset[5][0])


@pytest.mark.parametrize("number", [-1, 312, 10**9])
def test_window_out_of_bounds_raises(corpus: lowtide.Corpus, number: int) -> None:
    dataset = MapDataset(corpus.batches(4, LENGTH))
    assert len(dataset) == 312
    with pytest.raises(IndexingError, match=f"window {number} is out of bounds for the 312 of an epoch"):
        dataset[number]
    with pytest.raises(IndexError):
        dataset.__getitems__([0, number])


@forks
def test_worker_error_reaches_caller(tmp_path: Path) -> None:
    dataset = IterableDataset(numbered(tmp_path, 5000).batches(4, LENGTH), steps=4)
    os.truncate(tmp_path / "part-000.bin", 100)
    with pytest.raises(lowtide.LowtideError, match=r"part-000\.bin.*was truncated"):
        list(DataLoader(dataset, batch_size=None, num_workers=2))
    end_workers()


# Pickles


@pytest.mark.parametrize("order", ["shuffle", "random", "blocks", "sequential", "documents", "packed"])
def test_pickle_holds_only_settings_and_step(tmp_path: Path, order: str) -> None:
    """Also when a thread has read ahead and a buffer of blocks is held."""
    (np.arange(2**20, dtype="<u4") % 5000).tofile(tmp_path / "part.bin")
    corpus = lowtide.corpus(tmp_path / "part.bin", dtype="<u4", eos=4999)
    batches = corpus.batches(4, 1024, order=order, seed=1, start=5)
    next(batches)
    again: Batches
    for thing in (batches, MapDataset(batches), IterableDataset(batches)):
        assert len(pickle.dumps(thing)) < 2500
    again = pickle.loads(pickle.dumps(batches))
    assert again.step == batches.step == 6
    assert again.state_dict() == batches.state_dict()
    for _ in range(3):
        assert (next(again)[0] == next(batches)[0]).all()
    again.close()
    batches.close()


def test_pickled_mixture_continues(corpus: lowtide.Corpus) -> None:
    mixed = lowtide.mix({"a": corpus, "b": corpus}, {"a": 0.5, "b": 0.5}).batches(4, LENGTH, start=2)
    again = pickle.loads(pickle.dumps(mixed))
    assert again.shares(0) == mixed.shares(0)
    assert (next(again)[0] == next(mixed)[0]).all()
    again.close()
    mixed.close()


# State

# torchdata 0.11 calls what PyTorch 2.13 asks not to call.
vital = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def torchdata(dataset: Any, num_workers: int, **more: Any) -> Any:
    return StatefulDataLoader(dataset, num_workers=num_workers, **more)


@vital
@counts
@pytest.mark.parametrize("taken", [0, 1, 4, 9])
def test_stateful_iterable_resumes_exactly(corpus: lowtide.Corpus, num_workers: int, taken: int) -> None:
    def fresh() -> Any:
        dataset = IterableDataset(corpus.batches(4, LENGTH, seed=1, start=3), steps=9, epoch=1)
        return torchdata(dataset, num_workers, batch_size=None)

    expected = [x.tolist() for x, _ in fresh()]
    loader = fresh()
    running = iter(loader)
    assert [next(running)[0].tolist() for _ in range(taken)] == expected[:taken]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = fresh()
    resumed.load_state_dict(state)
    assert [x.tolist() for x, _ in resumed] == expected[taken:]
    assert [x.tolist() for x, _ in resumed] == expected  # the epoch after starts again
    assert [x.tolist() for x, _ in running] == expected[taken:]


@vital
@forks
def test_stateful_iterable_repeats_with_persistent_workers(corpus: lowtide.Corpus) -> None:
    dataset = IterableDataset(corpus.batches(4, LENGTH, seed=1), steps=5)
    loader = torchdata(dataset, 2, batch_size=None, persistent_workers=True)
    first = rows(loader)
    assert rows(loader) == first == rows(dataset)


@vital
@counts
@pytest.mark.parametrize("shuffle", [False, True])
def test_stateful_map_resumes_exactly(corpus: lowtide.Corpus, num_workers: int, shuffle: bool) -> None:
    def fresh(epoch: int) -> Any:
        dataset = MapDataset(corpus.batches(4, LENGTH, seed=1), epoch=epoch)
        return torchdata(dataset, num_workers, batch_size=7, shuffle=shuffle)

    torch.manual_seed(4)
    loader = fresh(epoch=2)
    running = iter(loader)
    for _ in range(5):
        next(running)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    expected = rows(running)
    torch.manual_seed(99)
    resumed = fresh(epoch=0)  # the state knows the epoch
    resumed.load_state_dict(state)
    assert rows(resumed) == expected


@vital
@counts
def test_state_of_another_corpus_is_rejected(
    corpus: lowtide.Corpus, tmp_path: Path, num_workers: int
) -> None:
    loader = torchdata(IterableDataset(corpus.batches(4, LENGTH)), num_workers, batch_size=None)
    next(iter(loader))
    other = IterableDataset(numbered(tmp_path / "other", 700).batches(4, LENGTH))
    resumed = torchdata(other, num_workers, batch_size=None)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="corpus_tokens was 5003 and is 700"):
        next(iter(resumed))
    end_workers()


def test_data_set_state_resumes_without_workers(corpus: lowtide.Corpus) -> None:
    """The data set's own state is the step, so a run may resume with another number of workers."""
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = IterableDataset(batches, steps=8)
    running = iter(dataset)
    for _ in range(3):
        next(running)
    state = dataset.state_dict()
    assert state["step"] == 3
    resumed = IterableDataset(batches, steps=8)
    resumed.load_state_dict(state)
    assert rows(resumed) == rows(running)


@forks
def test_state_without_workers_resumes_with_two_workers(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    resumed = IterableDataset(batches, steps=8)
    resumed.load_state_dict({**batches.state_dict(), "step": 3, "epoch": 0})
    expected = [row for step in range(3, 8) for row in batches[step][0].tolist()]
    assert rows(DataLoader(resumed, batch_size=None, num_workers=2)) == expected


def test_set_epoch_resets_state_only_for_another_epoch(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    dataset = IterableDataset(batches, steps=4)
    state = {**batches.state_dict(), "step": 6, "epoch": 1}
    dataset.load_state_dict(state)
    dataset.set_epoch(1)  # as Accelerate does when it starts an epoch
    assert dataset.state_dict() == state
    assert len(rows(dataset)) == 2 * 4
    dataset.load_state_dict(state)
    dataset.set_epoch(2)
    assert len(rows(dataset)) == 4 * 4


@pytest.mark.parametrize("kind", [MapDataset, IterableDataset])
@pytest.mark.parametrize("wrong", [{}, {"epoch": None}, {"epoch": -1}])
def test_invalid_state_raises(corpus: lowtide.Corpus, kind: Any, wrong: dict[str, Any]) -> None:
    batches = corpus.batches(4, LENGTH)
    with pytest.raises(StateError, match="expected an 'epoch'"):
        kind(batches).load_state_dict({**batches.state_dict(), **wrong})
    with pytest.raises(StateError, match="expected 'step' and 'settings'"):
        kind(batches).load_state_dict(wrong)


@pytest.mark.parametrize("arguments", [{"steps": 0}, {"steps": 1.5}, {"epoch": -1}])
def test_invalid_settings_raise(corpus: lowtide.Corpus, arguments: dict[str, Any]) -> None:
    [(name, value)] = arguments.items()
    with pytest.raises(ArgumentError, match=f"{name} must be an integer.*got {value}"):
        IterableDataset(corpus.batches(4, LENGTH), **arguments)


class Worker(NamedTuple):
    """A worker process of a loader, as PyTorch describes it."""

    id: int
    num_workers: int


SCHEDULE = st.dictionaries(st.integers(1, 12), st.sampled_from([3, 4, 6]), max_size=3).map(
    lambda later: {0: 3, **later}
)


@examples(1)
@given(
    sizes=SCHEDULE,
    lengths=SCHEDULE,
    ranks=st.integers(1, 3),
    workers=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    stop=st.integers(0, 14),
)
def test_schedules_match_for_any_ranks_workers_and_restarts(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[int, int],
    lengths: dict[int, int],
    ranks: int,
    workers: list[int],
    stop: int,
) -> None:
    """As a loader takes turns among its workers; a state of step n is loaded by any number of them."""
    folder = tmp_path_factory.getbasetemp() / "scheduled"
    corpus = numbered(folder, 400) if not folder.exists() else lowtide.corpus(folder / "*.bin", dtype="<u4")
    expected = [corpus.batches(sizes, lengths, seed=4, prefetch=0)[step][0] for step in range(14)]

    def turns(state: dict[str, Any] | None, count: int, rank: int) -> Iterator[np.ndarray]:
        batches = corpus.batches(sizes, lengths, seed=4, rank=rank, world_size=ranks, prefetch=0)
        walks = []
        for number in range(count):
            dataset = IterableDataset(batches, steps=14)
            if state is not None:
                dataset.load_state_dict(state)
            with mock.patch("torch.utils.data.get_worker_info", lambda number=number: Worker(number, count)):
                walk = iter(dataset)
                first = list(itertools.islice(walk, 1))  # it asks which worker it is when it starts
            walks.append(itertools.chain(first, walk))
        for turn in itertools.count():
            batch = next(walks[turn % count], None)
            if batch is None:
                return
            yield batch[0].numpy()

    result = [
        np.concatenate(parts)
        for parts in zip(
            *(itertools.islice(turns(None, workers[0], rank), stop) for rank in range(ranks)), strict=True
        )
    ]
    state = {**corpus.batches(sizes, lengths, seed=4).state_dict(), "step": stop, "epoch": 0}
    result += [
        np.concatenate(parts)
        for parts in zip(*(turns(state, workers[1], rank) for rank in range(ranks)), strict=True)
    ]
    assert len(result) == 14
    assert all(np.array_equal(x, y) for x, y in zip(result, expected, strict=True))


@pytest.mark.filterwarnings("ignore:.*set_vital")
@pytest.mark.parametrize("workers", [0, 2])
def test_schedules_resume_in_stateful_loader(tmp_path: Path, workers: int) -> None:
    """Shapes that change, in any number of workers, resumed in the middle."""
    corpus = numbered(tmp_path, 5000)
    batches = corpus.batches({0: 3, 4: 5}, {0: 8, 6: 16}, seed=2)
    expected = [batches[step][0] for step in range(9)]
    loader: Any = StatefulDataLoader(IterableDataset(batches, steps=9), batch_size=None, num_workers=workers)
    first = []
    for x, _ in loader:
        first.append(x)
        if len(first) == 5:
            state = loader.state_dict()
            break
    loader = StatefulDataLoader(IterableDataset(batches, steps=9), batch_size=None, num_workers=workers)
    loader.load_state_dict(state)
    result = [*first, *(x for x, _ in loader)]
    assert [tuple(x.shape) for x in result] == [tuple(x.shape) for x in expected]
    assert all((x.numpy() == y).all() for x, y in zip(result, expected, strict=True))
    tensors = batches.torch()
    assert all((next(tensors)[0].numpy() == x).all() for x in expected)
    single = IterableDataset(batches, steps=9, single=True)
    assert len(single) == len(list(single)) == 4 * 3 + 5 * 5
    with pytest.raises(ArgumentError, match="pass one length"):
        MapDataset(batches)
