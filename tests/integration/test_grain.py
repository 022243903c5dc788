"""Sources for the real Grain: its loaders, pipelines, workers and checkpoints."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import ArgumentError, IndexingError
from lowtide.grain import BatchSource, WindowSource

LENGTH = 8


@pytest.fixture
def corpus(tmp_path: Path) -> lowtide.Corpus:
    np.random.default_rng(0).integers(0, 50_000, 2000, np.uint16).tofile(tmp_path / "train.bin")
    return lowtide.corpus(tmp_path)


@pytest.fixture(scope="module")
def grain() -> Any:
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns that JAX is not there
    import grain as library

    return library


def test_sources_implement_grain_protocol(corpus: lowtide.Corpus, grain: Any) -> None:
    batches = corpus.batches(4, LENGTH, seed=1)
    for source in (WindowSource(batches), BatchSource(batches)):
        assert isinstance(source, grain.sources.RandomAccessDataSource)
    source = pickle.loads(pickle.dumps(BatchSource(batches, steps=9)))
    assert len(source) == 9
    assert (source[7]["targets"] == batches[7][1]).all()


def test_pipeline_gives_every_window_once(corpus: lowtide.Corpus, grain: Any) -> None:
    """Shuffled and batched by Grain, two shards together have every window once."""
    source = WindowSource(corpus.batches(1, LENGTH, seed=1))
    seen = []
    for shard in range(2):
        data = grain.MapDataset.source(source).shuffle(seed=3)[shard::2].batch(8)
        seen += [row for batch in data for row in batch["inputs"].tolist()]
    assert len(seen) == len(source) == 250
    assert sorted(seen) == sorted(source[n]["inputs"].tolist() for n in range(250))
    assert all((source[n]["inputs"][1:] == source[n]["targets"][:-1]).all() for n in range(250))


def test_getitems_is_one_read(corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    source = WindowSource(corpus.batches(1, LENGTH, seed=1), epoch=2)
    reads: list[Any] = []
    read = lowtide.Batches.read_samples

    def counted(self: lowtide.Batches, *some: Any) -> Any:
        reads.append(some)
        return read(self, *some)

    monkeypatch.setattr(lowtide.Batches, "read_samples", counted)
    records = source._getitems([9, 0, 4])
    assert len(reads) == 1
    windows = corpus.batches(1, LENGTH, seed=1)
    for record, number in zip(records, (9, 0, 4), strict=True):
        assert (record["targets"] == windows[2 * 250 + number][1][0]).all(), "of the third epoch"
    assert [one["inputs"].tolist() for one in records] == [source[n]["inputs"].tolist() for n in (9, 0, 4)]
    assert records[0]["inputs"].dtype == np.int32


def test_restored_iterator_continues_exactly(corpus: lowtide.Corpus, grain: Any) -> None:
    batches = corpus.batches(4, LENGTH, seed=1, start=5)
    data = grain.MapDataset.source(BatchSource(batches, steps=100)).to_iter_dataset()
    running = iter(data)
    for step in range(5, 12):
        assert (next(running)["inputs"] == batches[step][0]).all()
    state = running.get_state()
    again = iter(data)
    again.set_state(state)
    for step in range(12, 105):
        assert (next(again)["inputs"] == batches[step][0]).all()
    with pytest.raises(StopIteration):
        next(again)


def test_ranks_read_their_rows(corpus: lowtide.Corpus) -> None:
    whole = BatchSource(corpus.batches(6, LENGTH, seed=1))
    parts = [BatchSource(corpus.batches(6, LENGTH, seed=1, rank=rank, world_size=3)) for rank in range(3)]
    for step in (0, 17):
        together = np.concatenate([part[step]["inputs"] for part in parts])
        assert (together == whole[step]["inputs"]).all()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_loader_checkpoint_resumes_and_checks_source(corpus: lowtide.Corpus, grain: Any) -> None:
    """The loader compares the name of the source when it is restored: of another corpus it is refused."""
    batches = corpus.batches(4, LENGTH, seed=1)

    def loader(source: Any, workers: int = 0) -> Any:
        sampler = grain.samplers.SequentialSampler(len(source), grain.sharding.NoSharding())
        return grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)

    running = iter(loader(BatchSource(batches, steps=20)))
    seen = [next(running)["inputs"] for _ in range(7)]
    state = running.get_state()
    again = iter(loader(BatchSource(corpus.batches(4, LENGTH, seed=1), steps=20)))
    again.set_state(state)
    seen += [record["inputs"] for record in again]
    assert len(seen) == 20
    assert all((x == batches[step][0]).all() for step, x in enumerate(seen))
    other = iter(loader(BatchSource(corpus.batches(4, LENGTH, seed=2), steps=20)))
    with pytest.raises(ValueError, match="data source"):
        other.set_state(state)


def test_invalid_dtype_or_index_raises(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(4, LENGTH)
    for dtype in ("uint8", "int16", "float32"):
        with pytest.raises(ArgumentError, match="dtype does not hold every token"):
            WindowSource(batches, dtype=dtype)
    source = WindowSource(batches, dtype="uint16")
    for number in (250, 10**12):
        with pytest.raises(IndexingError, match="out of bounds for 250"):
            source[number]
    with pytest.raises(ArgumentError):
        source[-1]
