"""Everything at once: files, views, splits, folds and zips, in any order, on any ranks, stopped and resumed.

One of the arrays of each zip holds its own row numbers, so that NumPy knows what every chunk must be.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide

COLUMNS = 4
ORDERS = ("sequential", "shuffle", "blocks")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for each example."""
    base = tmp_path_factory.mktemp("combinations")
    return (base / str(number) for number in range(10**9))


def saved(folder: Path, name: str, array: np.ndarray, lengths: list[int]) -> lowtide.Array:
    """An array in as many files as there are lengths."""
    if len(lengths) == 1:
        np.save(folder / f"{name}.npy", array)
        return lowtide.open(folder / f"{name}.npy")
    (folder / name).mkdir()
    for number, stop in enumerate(np.cumsum(lengths).tolist()):
        np.save(folder / name / f"{number:03}.npy", array[stop - lengths[number] : stop])
    return lowtide.open(folder / name)


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


@st.composite
def lengths_of(draw: st.DrawFn, total: int) -> list[int]:
    borders = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
    lengths: list[int] = np.diff([0, *borders, total]).tolist()
    return lengths


@st.composite
def derived(draw: st.DrawFn, zipped: Any, ids: np.ndarray) -> tuple[Any, np.ndarray]:
    """A part of a zip and its row numbers; where it is one of several parts, they are compared with NumPy."""
    total = len(ids)
    kind = draw(st.sampled_from(["rows", "list", "mask", "range", "split", "stratified", "folds", "pickle"]))
    if kind == "rows":
        part = draw(st.slices(total))
        return zipped.rows(part.start, part.stop, part.step), ids[part]
    if kind == "list":
        rows = draw(st.lists(st.integers(-total, total - 1), max_size=30)) if total else []
        return zipped.select(rows), ids[np.array(rows, int)]
    if kind == "mask":
        mask = np.random.default_rng(draw(st.integers(0, 9))).random(total) < draw(st.floats(0, 1))
        return zipped.select(mask), ids[mask]
    if kind == "range":
        step = draw(st.integers(1, 5))
        return zipped.select(range(0, total, step)), ids[::step]
    if kind == "pickle":
        return pickle.loads(pickle.dumps(zipped)), ids
    seed = draw(st.integers(-5, 5))
    if kind == "folds" and total >= 2:
        folds = draw(st.integers(2, min(5, total)))
        stratify = ids % 3 if draw(st.booleans()) else None
        pairs = zipped.folds(folds, seed, stratify=stratify)
        validated = np.concatenate([np.asarray(part["id"]) for part in (pair[1][:] for pair in pairs)])
        assert sorted(validated.tolist()) == sorted(ids.tolist())
        parts = pairs[draw(st.integers(0, folds - 1))]
    else:
        stratify = ids % 3 if kind == "stratified" else None
        shuffle = stratify is not None or draw(st.booleans())
        parts = zipped.split(0.3, 0.5, seed=seed, shuffle=shuffle, stratify=stratify)
    contents = [part[:]["id"] for part in parts]
    assert sorted(np.concatenate(contents).tolist()) == sorted(ids.tolist())
    number = draw(st.integers(0, len(parts) - 1))
    return parts[number], contents[number]


@given(data=st.data(), total=st.one_of(st.sampled_from([0, 1, 2, 256, 257]), st.integers(0, 900)))
def test_combined_operations_give_every_row_once(
    folders: Iterator[Path], data: st.DataObject, total: int
) -> None:
    folder = next(folders)
    folder.mkdir(parents=True)
    numbers = np.arange(total, dtype=np.int64)
    features = (numbers[:, None] * COLUMNS + np.arange(COLUMNS)).astype("f4")
    with ExitStack() as stack:
        x = stack.enter_context(saved(folder, "x", features, data.draw(lengths_of(total))))
        ids = stack.enter_context(saved(folder, "id", numbers, data.draw(lengths_of(total))))
        columns: Any = data.draw(st.sampled_from([slice(None), slice(None, None, -2), [3, 0, 3], 1]))
        arrays: dict[str, Any] = {"x": x.columns[columns].astype("f8"), "id": ids}
        if data.draw(st.booleans()):
            arrays["w"] = data.draw(st.sampled_from([x, features]))
        zipped: Any = lowtide.zip(arrays)
        expected = numbers
        for _ in range(data.draw(st.integers(0, 3))):
            zipped, expected = data.draw(derived(zipped, expected))
        assert len(zipped) == len(expected)

        def checked(chunk: Any) -> list[int]:
            np.testing.assert_array_equal(chunk["x"], features[chunk["id"]][:, columns])
            if "w" in chunk:
                np.testing.assert_array_equal(chunk["w"], features[chunk["id"]])
            rows: list[int] = chunk["id"].tolist()
            return rows

        assert checked(zipped[:]) == expected.tolist()  # views keep the order
        if len(expected):
            some = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), max_size=5))
            assert checked(zipped.take(some)) == expected[np.array(some, int)].tolist()
            for row in some:
                assert zipped[row]["id"] == expected[row]
        rows = data.draw(st.integers(3, 200))
        options: dict[str, Any] = {
            "order": data.draw(st.sampled_from(ORDERS)),
            "seed": data.draw(st.integers(0, 3)),
            "epoch": data.draw(st.integers(0, 2)),
            "budget": data.draw(st.sampled_from([None, "1 MiB", "40 MiB"])),
            "prefetch": data.draw(st.integers(0, 1)),
        }

        def passes(world_size: int) -> list[lowtide.Chunks]:
            return [
                stack.enter_context(zipped.chunks(rows, rank=rank, world_size=world_size, **options))
                for rank in range(world_size)
            ]

        reference = [checked(chunk) for chunk in passes(1)[0]]
        assert sorted(flat(reference)) == sorted(expected.tolist())
        if options["order"] == "sequential":
            assert flat(reference) == expected.tolist()
        # Some chunks on one number of ranks, then the rest on another.
        first, second = (passes(data.draw(st.integers(1, 3))) for _ in range(2))
        stop = data.draw(st.integers(0, len(reference)))
        seen = [flat(checked(next(each)) for each in first) for _ in range(stop)]
        state = json.loads(json.dumps(first[-1].state_dict()))
        for each in second:
            each.load_state_dict(state)
        seen += [flat(map(checked, step)) for step in zip(*second, strict=True)]
        assert seen == reference
