"""lowtide._arrays.shuffling: the same rows in another order, in bounded memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._permutation import Shuffled
from lowtide.errors import ArgumentError, BudgetError, UnsupportedError
from tests.support.examples import examples


@given(
    rows=st.integers(0, 500),
    columns=st.integers(0, 5),
    seed=st.integers(0, 2**70),
    budget=st.integers(2_000, 100_000),
    fortran=st.booleans(),
    suffix=st.sampled_from([".npy", ".bin"]),
)
@examples(0.8)
def test_shuffled_file_matches_shuffled_pass(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    seed: int,
    budget: int,
    fortran: bool,
    suffix: str,
) -> None:
    folder = tmp_path_factory.mktemp("shuffle")
    whole = np.arange(rows * columns, dtype="<i8").reshape(rows, columns)
    np.save(folder / "in.npy", np.asfortranarray(whole) if fortran else whole)
    reports: list[int] = []
    with lowtide.open(folder / "in.npy") as array:
        lowtide.shuffle(array, folder / f"out{suffix}", seed=seed, budget=budget, progress=reports.append)
    expected = whole[Shuffled(rows, seed)(0, rows)]
    raw = np.fromfile(folder / f"out{suffix}", "<i8") if suffix == ".bin" else np.load(folder / "out.npy")
    np.testing.assert_array_equal(raw.reshape(expected.shape), expected)
    assert sum(reports) == 2 * whole.nbytes
    assert sorted(os.listdir(folder)) == ["in.npy", f"out{suffix}"]


def test_file_is_shuffled_onto_itself(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10_000))
    with lowtide.open(tmp_path / "a.npy") as array:
        lowtide.shuffle(array, tmp_path / "a.npy", seed=1, budget=100_000)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), Shuffled(10_000, 1)(0, 10_000))


def test_shuffle_accepts_path(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    for path in (tmp_path / "a.npy", str(tmp_path / "a.npy")):
        lowtide.shuffle(path, tmp_path / "b.npy", seed=2)
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), Shuffled(100, 2)(0, 100))
    with pytest.raises(ArgumentError, match=r"an array of lowtide\.open or a path, got ndarray"):
        lowtide.shuffle(np.arange(3), tmp_path / "c.npy")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such file"):
        lowtide.shuffle(tmp_path / "nothing.npy", tmp_path / "c.npy")
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy"]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".h5", ".HDF5", ".parquet"])
def test_unsupported_output_format_raises(tmp_path: Path, suffix: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    with pytest.raises(UnsupportedError, match="files are read and not written"):
        lowtide.shuffle(tmp_path / "a.npy", tmp_path / f"out{suffix}")
    assert os.listdir(tmp_path) == ["a.npy"]


def test_shuffle_writes_through_link(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "out.npy").symlink_to("blob")
    lowtide.shuffle(tmp_path / "a.npy", tmp_path / "out.npy")
    assert (tmp_path / "out.npy").is_symlink()
    assert sorted(np.load(tmp_path / "blob").tolist()) == list(range(100))


def test_too_small_budget_error_shows_smallest_that_works(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 1000)))
    with lowtide.open(tmp_path / "a.npy") as array:
        with pytest.raises(BudgetError, match="the smallest that works is 21419 bytes"):
            lowtide.shuffle(array, tmp_path / "b.npy", budget=21_418)
        assert not (tmp_path / "b.npy").exists()
        lowtide.shuffle(array, tmp_path / "b.npy", budget=21_419)
    assert np.load(tmp_path / "b.npy").shape == (4, 1000)


def test_shuffling_0d_array_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float64(3))
    with lowtide.open(tmp_path / "a.npy") as array, pytest.raises(ArgumentError, match="no dimensions"):
        lowtide.shuffle(array, tmp_path / "b.npy")


def test_interrupted_shuffle_leaves_no_files(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.arange(1000))

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with lowtide.open(tmp_path / "in.npy") as array, pytest.raises(KeyboardInterrupt):
        lowtide.shuffle(array, tmp_path / "out.npy", progress=interrupt)
    time.sleep(0)  # let the reader's thread end
    assert os.listdir(tmp_path) == ["in.npy"]
