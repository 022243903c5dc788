"""Steps that are read together: the same tokens as alone, whatever is cached, in any order of asking."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide
from lowtide._io.pending import Outcome, Pending
from lowtide._tokens.segments import Segments

COUNT = 40_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ahead")
    tokens = np.random.default_rng(0).integers(0, 50_000, COUNT, dtype=np.uint16)
    for number, part in enumerate(np.split(tokens, [7_000, 7_010, 30_000])):
        part.tofile(path / f"part_{number}.bin")
    return path


@pytest.fixture
def corpus(folder: Path) -> Iterator[lowtide.Corpus]:
    with lowtide.corpus(sorted(folder.glob("*.bin")), dtype="uint16") as one:
        yield one


class Reads:
    """Counts reads, and says of all of them that they went to the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, cached: bool) -> None:
        self.count = 0
        self.cached = cached
        gather = Segments._gather

        def counted(segments: Segments, which: Any, *arguments: Any, **more: Any) -> Pending[Outcome]:
            self.count += 1
            return gather(segments, which, *arguments, **more).then(self._outcome)

        monkeypatch.setattr(Segments, "_gather", counted)

    def _outcome(self, outcome: Outcome) -> Outcome:
        return Outcome(0 if self.cached else outcome.total, outcome.total)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("order", ["shuffle", "random", "sequential", "blocks"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_match_unprefetched_batches(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch, cached: bool, order: str, rank: int
) -> None:
    Reads(monkeypatch, cached=cached)
    how: dict[str, Any] = {"order": order, "rank": rank, "world_size": rank + 1, "seed": 5}
    alone = corpus.batches(8, 64, prefetch=0, **how)
    with corpus.batches(8, 64, budget="1 MiB", **how) as batches:
        for step in range(100):  # more than an epoch
            x, y = next(batches)
            tokens = alone.read(step)
            assert (x == tokens[:, :-1]).all()
            assert (y == tokens[:, 1:]).all()


@settings(deadline=None, max_examples=20)
@given(
    steps=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    length=st.sampled_from([1, 5, 64, 300]),
    batch_size=st.integers(1, 9),
    cached=st.booleans(),
)
def test_steps_can_be_read_in_any_order(
    folder: Path, steps: list[int], length: int, batch_size: int, cached: bool
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        lowtide.corpus(sorted(folder.glob("*.bin")), dtype="uint16") as corpus,
    ):
        Reads(patch, cached=cached)
        alone = corpus.batches(batch_size, length, prefetch=0)
        batches = corpus.batches(batch_size, length, budget="1 MiB")
        for first in steps:
            for step in range(first, first + 4):
                assert (batches.read(step) == alone.read(step)).all()


def test_budget_merges_many_reads_into_few(corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, cached=False)
    with corpus.batches(8, 64, prefetch=0, budget="1 MiB") as batches:
        for _ in range(70):
            next(batches)
    assert reads.count < 10


def test_cached_steps_are_read_in_groups(corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, cached=True)
    with corpus.batches(8, 64) as batches:
        for _ in range(70):
            next(batches)
    assert reads.count < 10


def test_nothing_is_read_ahead_without_prefetch(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch, cached=True)
    with corpus.batches(8, 64, prefetch=0, order="sequential") as batches:
        for _ in range(7):
            next(batches)
    assert reads.count == 7


def test_kept_batch_retains_only_its_own_memory(corpus: lowtide.Corpus) -> None:
    with corpus.batches(8, 64) as batches:
        kept = [next(batches) for _ in range(20)]
    for x, y in kept:
        base: Any = x.base
        while base is not None and getattr(base, "base", None) is not None:
            base = base.base
        assert base is None or memoryview(base).nbytes == 8 * 65 * 2
        assert (x[:, 1:] == y[:, :-1]).all()


def test_modified_batch_does_not_affect_later_batches(corpus: lowtide.Corpus) -> None:
    alone = corpus.batches(8, 64, prefetch=0)
    with corpus.batches(8, 64) as batches:
        for step in range(20):
            x, _ = next(batches)
            assert (x == alone.read(step)[:, :-1]).all()
            x[:] = 0


def test_reader_does_not_wait_while_another_thread_loads(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    Reads(monkeypatch, cached=False)
    alone = corpus.batches(8, 64, prefetch=0)
    batches = corpus.batches(8, 64, prefetch=0, budget="1 MiB")
    ahead = batches._steps.at(0).ahead
    assert ahead is not None
    with ahead._lock:
        other = threading.Thread(target=lambda: seen.append(batches.read(1)))
        seen: list[Any] = []
        other.start()
        other.join()
    assert (seen[0] == alone.read(1)).all()


def test_failed_read_raises_and_is_retried_on_next_request(
    corpus: lowtide.Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch, cached=False)
    alone = corpus.batches(8, 64, prefetch=0)
    expected = [alone.read(step) for step in range(10)]
    batches = corpus.batches(8, 64, prefetch=0, budget="1 MiB")
    first = [next(batches) for _ in range(3)]
    ahead = batches._steps.at(0).ahead
    assert ahead is not None
    ahead.release()
    gather = Segments._gather
    monkeypatch.setattr(Segments, "_gather", lambda *_, **__: Pending(_broken))
    with pytest.raises(OSError, match="broken"):
        next(batches)
    monkeypatch.setattr(Segments, "_gather", gather)
    rest = [next(batches) for _ in range(7)]
    for (x, _), tokens in zip(first + rest, expected, strict=True):
        assert (x == tokens[:, :-1]).all()
    assert reads.count


def _broken() -> Outcome:
    raise OSError(5, "broken")


def test_pickle_has_settings_but_no_read_data(corpus: lowtide.Corpus) -> None:
    batches = corpus.batches(8, 64, budget="1 MiB")
    first = [next(batches) for _ in range(5)]
    assert batches._steps.at(0).ahead is not None
    copy = pickle.loads(pickle.dumps(batches))
    assert len(pickle.dumps(batches._steps.at(0).ahead)) < 100_000
    assert (next(copy)[0] == next(batches)[0]).all()
    del first
