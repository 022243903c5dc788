"""Splits and folds: every row exactly once, the same for every array of as many rows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import splits
from lowtide._arrays.selections import Selection, Stride, selected
from lowtide._arrays.splits import Fold, Local, Share
from lowtide.errors import ArgumentError

fractions = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4).map(
    lambda parts: [part / (sum(parts) * 1.01) for part in parts] if sum(parts) > 1 else parts
)


def numbered(path: Path, rows: int, dtype: str = "i8") -> lowtide.Array:
    """An array whose rows are their own numbers."""
    np.save(path, np.arange(rows, dtype=dtype))
    return lowtide.open(path)


@given(n=st.integers(0, 3000), seed=st.integers(-(2**70), 2**70))
def test_rows_are_permuted_within_blocks(n: int, seed: int) -> None:
    rows = Local(n, seed)(np.arange(n))
    assert sorted(rows.tolist()) == list(range(n))
    assert (rows // 256 == np.arange(n) // 256).all()


@given(total=st.integers(1, 500), data=st.data())
def test_share_or_fold_and_its_rest_cover_all_rows(total: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, total))
    share, rest = Share(total, n, False), Share(total, total - n, True)
    assert sorted([*share(np.arange(n)), *rest(np.arange(total - n))]) == list(range(total))
    folds = data.draw(st.integers(2, 9))
    number = data.draw(st.integers(0, folds - 1))
    fold, others = Fold(total, folds, number, False), Fold(total, folds, number, True)
    assert sorted([*fold(np.arange(fold.n)), *others(np.arange(others.n))]) == list(range(total))


def test_selections_of_huge_arrays_do_not_overflow() -> None:
    total = 10**12
    share, rest = Share(total, total // 3, False), Share(total, total - total // 3, True)
    numbers = np.array([0, 5, 10**11, total // 3 - 1])
    assert not set(share(numbers).tolist()) & set(rest(numbers * 2).tolist())
    assert int(share(numbers)[-1]) == total - 1
    rows = Local(total, 0)(numbers)
    assert (rows // 256 == numbers // 256).all()


@given(
    rows=st.integers(0, 1500),
    parts=fractions,
    seed=st.integers(0, 9),
    classes=st.integers(0, 6),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_split_puts_every_row_in_one_part(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    parts: list[float],
    seed: int,
    classes: int,
    shuffle: bool,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("splits")
    labels = np.random.default_rng(seed).integers(0, max(1, classes), rows)
    options: dict[str, Any] = {"seed": seed, "shuffle": shuffle}
    if classes and shuffle:
        options["stratify"] = labels
    with numbered(folder / "x.npy", rows) as x, numbered(folder / "y.npy", rows, "f4") as y:
        views = x.split(*parts, **options)
        assert len(views) == len(parts) + (sum(parts) < 1 - 1e-9)
        content = [view[:] for view in views]
        assert sorted(np.concatenate(content).tolist()) == list(range(rows))
        for view, other in zip(views, y.split(*parts, **options), strict=True):
            np.testing.assert_array_equal(view[:], other[:])
            again = pickle.loads(pickle.dumps(view))
            shuffled = np.concatenate([*again.chunks(7, shuffle=True), np.empty(0, int)])
            assert sorted(shuffled.tolist()) == sorted(view[:].tolist())
        share = parts[0]
        if "stratify" in options:
            for label in range(classes):
                expected = share * np.count_nonzero(labels == label)
                assert abs(np.count_nonzero(labels[content[0]] == label) - expected) <= 1.01
        else:
            assert abs(len(views[0]) - share * rows) <= 0.51


@given(rows=st.integers(2, 1500), folds=st.integers(2, 7), seed=st.integers(0, 9), stratified=st.booleans())
def test_folds_validate_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, rows: int, folds: int, seed: int, stratified: bool
) -> None:
    folds = min(folds, rows)
    labels = np.random.default_rng(seed).integers(0, 3, rows) if stratified else None
    with numbered(tmp_path_factory.mktemp("folds") / "x.npy", rows) as x:
        pairs = x.folds(folds, seed, stratify=labels)
        assert len(pairs) == len(list(pairs)) == len(pairs[:]) == folds
        validated = []
        for train, validation in pairs:
            assert sorted([*train[:], *validation[:]]) == list(range(rows))
            validated += validation[:].tolist()
        assert sorted(validated) == list(range(rows))


def test_parts_depend_on_seed_and_keep_block_order(tmp_path: Path) -> None:
    with numbered(tmp_path / "x.npy", 100_000) as x:
        train, validation = x.split(0.9, seed=1)
        assert (len(train), len(validation)) == (90_000, 10_000)
        assert not np.array_equal(validation[:], x.split(0.9, seed=2)[1][:])
        assert (np.diff(train[:] // 256) >= 0).all()
        assert len(pickle.dumps(train)) < 2000
        # Neither every tenth row nor a run of them.
        steps = np.diff(np.sort(validation[:]))
        assert len(np.unique(steps)) > 20


def test_labels_on_disk_split_like_labels_in_memory(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 4, 5000)
    np.save(tmp_path / "y.npy", labels)
    with numbered(tmp_path / "x.npy", 5000) as x, lowtide.open(tmp_path / "y.npy") as y:
        expected = [part[:].tolist() for part in x.split(0.7, stratify=labels)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(splits, "_LABELS", 333)
            assert [part[:].tolist() for part in x.split(0.7, stratify=y)] == expected


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda a: a.split(1.5), "above 0 and below 1, got 1.5"),
        (lambda a: a.split(0), "above 0 and below 1, got 0"),
        (lambda a: a.split("0.5"), "above 0 and below 1"),
        (lambda a: a.split(), "add up to at most 1"),
        (lambda a: a.split(0.7, 0.6), "add up to at most 1"),
        (lambda a: a.split(0.5, stratify=[1, 2]), r"one label per row \(shape \(2,\), expected \(10,\)\)"),
        (lambda a: a.split(0.5, shuffle=False, stratify=range(10)), "leave shuffle=False out"),
        (lambda a: a.folds(1), "folds must be"),
        (lambda a: a.folds(11), "10 rows cannot be divided into 11 folds"),
    ],
)
def test_bad_splits_raise(tmp_path: Path, use: Any, message: str) -> None:
    with numbered(tmp_path / "x.npy", 10) as a, pytest.raises(ArgumentError, match=message):
        use(a)


def test_too_many_label_classes_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "_CLASSES", 5)
    with numbered(tmp_path / "x.npy", 10) as a, pytest.raises(ArgumentError, match="more than 5 different"):
        a.split(0.5, stratify=np.arange(10))


@given(total=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), data=st.data())
def test_selection_at_matches_selection_of_array(total: int, seed: int, data: st.DataObject) -> None:
    n, folds = data.draw(st.integers(1, total)), data.draw(st.integers(2, 9))
    number = data.draw(st.integers(0, folds - 1))
    rest = data.draw(st.booleans())
    selections: list[Selection] = [
        Local(total, seed),
        Share(total, n, rest),
        Share(10**15 + total, n, rest),
        Fold(total, folds, number, rest),
        Stride(total, -1, total),
        selected(data.draw(st.lists(st.integers(0, total - 1))), total, "x.npy"),
        selected(np.arange(total) % folds == number, total, "x.npy"),
    ]
    for selection in selections:
        for row in data.draw(st.lists(st.integers(0, selection.n - 1), max_size=5)) if selection.n else []:
            assert selection.at(row) == selection(np.array([row]))[0], selection
