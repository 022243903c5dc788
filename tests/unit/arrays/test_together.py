"""Zips, ranks and restarts: one order over several arrays, every row exactly once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import ArgumentError, BudgetError, ClosedError, IndexingError, StateError

SHUFFLES: tuple[Any, ...] = (False, True, "blocks")


def save(folder: Path, rows: int, names: str = "xyw") -> list[lowtide.Array]:
    """Arrays of different widths and dtypes whose rows hold their own number."""
    arrays = []
    for name, width, dtype in zip(names, (5, 1, 300), ("f8", "i4", "i2"), strict=False):
        np.save(folder / f"{name}.npy", np.repeat(np.arange(rows, dtype=dtype)[:, None], width, axis=1))
        arrays.append(lowtide.open(folder / f"{name}.npy"))
    return arrays


@pytest.fixture
def arrays(tmp_path: Path) -> Iterator[list[lowtide.Array]]:
    opened = save(tmp_path, 1000)
    yield opened
    for array in opened:
        array.close()


def numbers(chunk: Any) -> list[int]:
    """The rows of a chunk of a zip, if all arrays agree on them."""
    parts = list(chunk.values()) if isinstance(chunk, dict) else list(chunk)
    first = parts[0][:, 0].tolist()
    for part in parts:
        assert (part == np.array(first)[:, None]).all()
    return [int(number) for number in first]


@given(
    rows=st.integers(0, 900),
    chunk=st.integers(3, 100),
    shuffle=st.sampled_from(SHUFFLES),
    epoch=st.integers(0, 2),
    budget=st.sampled_from([None, "2 MiB", "40 MiB"]),
    part=st.sampled_from(["all", "split", "fold", "rows", "stratified"]),
    named=st.booleans(),
    data=st.data(),
)
def test_zips_splits_ranks_and_restarts_give_every_row_once(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    chunk: int,
    shuffle: Any,
    epoch: int,
    budget: Any,
    part: str,
    named: bool,
    data: st.DataObject,
) -> None:
    x, y, w = save(tmp_path_factory.mktemp("zips"), rows)
    zipped: Any = lowtide.zip(x=x, y=y, w=w) if named else lowtide.zip(x, y, w)
    if part == "rows":
        zipped = zipped.rows(rows // 3, None, 2)
    elif part == "split":
        zipped = zipped.split(0.6, seed=5)[data.draw(st.integers(0, 1))]
    elif part == "fold" and rows >= 3:
        zipped = zipped.folds(3, seed=5)[1][data.draw(st.integers(0, 1))]
    elif part == "stratified":
        zipped = zipped.split(0.5, stratify=np.arange(rows) % 3)[0]
    everything = sorted(numbers(zipped[:]))
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "epoch": epoch, "budget": budget, "prefetch": 0}

    def ranks(world_size: int) -> list[lowtide.Chunks]:
        return [
            zipped.chunks(chunk, rank=rank, world_size=world_size, **options) for rank in range(world_size)
        ]

    # Some steps on one number of ranks, the rest on another.
    [whole] = ranks(1)
    reference = [numbers(each) for each in whole]
    first = ranks(data.draw(st.integers(1, 3)))
    stop = data.draw(st.integers(0, len(reference)))
    seen = [[number for each in first for number in numbers(next(each))] for _ in range(stop)]
    state = json.loads(json.dumps(first[0].state_dict()))
    second = ranks(data.draw(st.integers(1, 3)))
    for each in second:
        each.load_state_dict(state)
        assert len(each) == len(reference) - stop
    seen += [[number for part in step for number in numbers(part)] for step in zip(*second, strict=True)]
    assert seen == reference
    assert sorted(number for step in seen for number in step) == everything
    for number in range(len(reference)):
        assert numbers(second[0][number]) == reference[number][: len(numbers(second[0][number]))]
    for array in (x, y, w):
        array.close()


def test_zip_with_rows_yields_row_numbers_once(arrays: list[lowtide.Array]) -> None:
    for rows, chunk in lowtide.zip(*arrays).chunks(64, shuffle=True, with_rows=True, rank=1, world_size=2):
        assert numbers(chunk) == rows.tolist()


def test_budget_of_zip_covers_all_arrays(arrays: list[lowtide.Array]) -> None:
    zipped = lowtide.zip(*arrays)
    for shuffle in SHUFFLES:
        for budget in (200_000, 2**20, 2**25):
            assert zipped.chunks(budget=budget, shuffle=shuffle).nbytes_in_flight <= budget
            assert zipped.chunks(10, budget=budget, shuffle=shuffle).nbytes_in_flight <= budget
    with pytest.raises(BudgetError, match="smallest that works is"):
        zipped.chunks(1000, budget="100 KiB")


def test_zip_supports_indexing_and_views(arrays: list[lowtide.Array]) -> None:
    x, y, w = arrays
    zipped = lowtide.zip(x, y, weights=w)
    assert (len(zipped), zipped.row_nbytes) == (1000, 40 + 4 + 600)
    assert zipped[7].keys() == {"0", "1", "weights"}
    assert numbers(lowtide.zip(x, y).take([5, 3, -1])) == [5, 3, 999]
    assert [int(row[0]) for row, _ in lowtide.zip(x, y).__getitems__([4, 2])] == [4, 2]
    assert numbers(pickle.loads(pickle.dumps(lowtide.zip(x, y).select([9, 1])))[:]) == [9, 1]
    assert [int(one[0]) for one, _ in lowtide.zip(x, y).rows(0, 3)] == [0, 1, 2]
    parts = lowtide.zip(x.rows(100), y.rows(100)).split(0.5, shuffle=False)
    assert numbers(parts[0][:]) == list(range(100, 550))
    assert "lowtide.Zip" in repr(zipped)
    assert lowtide.zip({"x": x, "y": y})[3].keys() == {"x", "y"}
    assert numbers(lowtide.zip((x, y))[5:7]) == numbers(lowtide.zip([x, y])[5:7]) == [5, 6]
    assert len(lowtide.zip(x, y).folds(5)[1:3]) == 2


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_chunk_by_number_matches_pass(arrays: list[lowtide.Array], shuffle: Any) -> None:
    x = arrays[0]
    chunks = x.chunks(64, shuffle=shuffle, seed=2)
    expected = list(x.chunks(64, shuffle=shuffle, seed=2))
    next(chunks)
    for number in (3, 0, -1, 15):
        np.testing.assert_array_equal(chunks[number], expected[number])
    np.testing.assert_array_equal(next(chunks), expected[1])
    with pytest.raises(IndexingError, match="chunk 16 is out of bounds for 16 chunks"):
        chunks[16]


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda x, y: lowtide.zip(), ArgumentError, "at least one array"),
        (lambda x, y: lowtide.zip({}), ArgumentError, "at least one array"),
        (lambda x, y: lowtide.zip([x], y), ArgumentError, "got list"),
        (lambda x, y: lowtide.zip(x, y).folds(4)[4], IndexingError, "no fold 4 of 4"),
        (
            lambda x, y: lowtide.zip(x, y.rows(1)),
            ArgumentError,
            "equally many rows: .*x.npy has 1000, .* has 999",
        ),
        (lambda x, y: lowtide.zip(x, np.zeros(9)), ArgumentError, "an array in memory has 9"),
        (lambda x, y: lowtide.zip(x, "y.npy"), ArgumentError, "got str; open the"),  # type: ignore[arg-type]
        (lambda x, y: lowtide.zip(x, y, **{"0": y}), ArgumentError, "names .* must differ"),
        (lambda x, y: lowtide.zip(x, y)[0, 1], ArgumentError, "by rows alone"),
        (lambda x, y: x.chunks(8, rank=2, world_size=2), ArgumentError, "rank must be below world_size"),
        (lambda x, y: x.chunks(1, world_size=2), ArgumentError, "rows of at least 2 for 2 ranks, got 1"),
        (lambda x, y: x.chunks(world_size=2), ArgumentError, "got None"),
    ],
)
def test_bad_zips_and_ranks_raise(
    arrays: list[lowtide.Array], use: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        use(*arrays[:2])


def test_states_of_other_zips_and_closed_arrays_raise(arrays: list[lowtide.Array]) -> None:
    x, y, _ = arrays
    state = lowtide.zip(x, y).chunks(8).state_dict()
    for other in (lowtide.zip(y, x), lowtide.zip(x=x, y=y), x):
        with pytest.raises(StateError):
            other.chunks(8).load_state_dict(state)
    chunks = lowtide.zip(x, y).chunks(8, prefetch=0)
    next(chunks)
    y.close()
    with pytest.raises(ClosedError):
        next(chunks)
