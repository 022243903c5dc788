"""Many files as one array, beside ``np.concatenate``."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import files, formats
from lowtide._io.descriptors import POOL
from lowtide.errors import ArgumentError, ClosedError, FormatError, NotFoundError
from tests.unit.arrays.test_indexing import assert_like_numpy, indices


def save(folder: Path, lengths: list[int], width: int = 3, dtype: str = "i4") -> np.ndarray:
    array = np.arange(sum(lengths) * width).reshape(-1, width).astype(dtype)
    for i, start in enumerate(np.cumsum([0, *lengths[:-1]]).tolist()):
        np.save(folder / f"part-{i:03}.npy", array[start : start + lengths[i]])
    return array


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    dtype=st.sampled_from(["i4", ">f8", "u1"]),
    together=st.integers(1, 5),
    kept=st.integers(1, 20),
    longest=st.sampled_from([5, 2**20]),
    data=st.data(),
)
def test_multiple_files_match_np_concatenate(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    dtype: str,
    together: int,
    kept: int,
    longest: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    expected = save(folder, lengths, dtype=dtype)
    limits = mock.patch.multiple(files, _TOGETHER=together, _OPEN=kept, LONGEST=longest)
    with limits, lowtide.open(str(folder / "part-*.npy")) as a:
        view = pickle.loads(pickle.dumps(a)) if data.draw(st.booleans()) else a
        assert (view.shape, view.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(view[:], expected)
        assert_like_numpy(view, expected, data.draw(indices(expected.shape)))
        for shuffle in (False, True, "blocks"):
            budget = data.draw(st.sampled_from([None, "16 MiB"]))
            chunks = view.chunks(
                data.draw(st.integers(1, 20)), shuffle=shuffle, budget=budget, with_rows=True
            )
            seen = []
            for rows, chunk in chunks:
                np.testing.assert_array_equal(chunk, expected[rows])
                seen += rows.tolist()
            assert sorted(seen) == list(range(len(expected)))
        if len(expected) > 4:
            np.testing.assert_array_equal(view.windows(4)[:, 0], expected[: len(expected) - 3])
            train, validation = view.split(0.5)
            assert len(train) + len(validation) == len(expected)


def test_files_of_lists_folders_and_patterns_are_joined(tmp_path: Path) -> None:
    expected = save(tmp_path, [4, 2, 5])
    paths = sorted(tmp_path.glob("*.npy"))
    with lowtide.open(tmp_path) as a:
        np.testing.assert_array_equal(a[:], expected)
        assert "view: 3 files" in repr(a)
    with lowtide.open([paths[2], str(paths[0])]) as a:
        np.testing.assert_array_equal(a[:], np.concatenate([expected[6:], expected[:4]]))
    for i in range(2):
        expected[i * 5 : i * 5 + 5].tofile(tmp_path / f"{i}.bin")
    with lowtide.open(str(tmp_path / "?.bin"), dtype="i4", shape=(-1, 3)) as a:
        np.testing.assert_array_equal(a[:], expected[:10])
    np.savez(tmp_path / "x.npz", x=expected[:3], y=np.arange(3))
    with lowtide.open([tmp_path / "x.npz"] * 2, name="x") as a:
        np.testing.assert_array_equal(a[:], np.concatenate([expected[:3]] * 2))


def test_file_name_with_glob_characters_is_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a[1].npy", np.arange(3))
    with lowtide.open(tmp_path / "a[1].npy") as a:
        np.testing.assert_array_equal(a[:], np.arange(3))


def test_only_first_of_equal_headers_is_parsed(tmp_path: Path) -> None:
    save(tmp_path, [3] * 20)
    with mock.patch.object(formats, "inspect", wraps=formats.inspect) as inspect:
        lowtide.open(tmp_path).close()
    assert inspect.call_count == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_descriptors_are_bounded(tmp_path: Path) -> None:
    expected = save(tmp_path, [1] * 700, width=1)
    with lowtide.open(tmp_path) as a:
        before = len(os.listdir("/proc/self/fd"))
        assert sorted(np.concatenate(list(a.chunks(350, shuffle=True))).ravel().tolist()) == list(range(700))
        np.testing.assert_array_equal(a.take(np.arange(699, -1, -1)), expected[::-1])
        assert len(os.listdir("/proc/self/fd")) - before <= POOL.limit + files._TOGETHER


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4), "i4"), r"rows of shape \(4,\) and dtype int32, expected \(3,\) and int32"),
        (np.zeros((2, 3), "f4"), "dtype float32, expected"),
        (np.asfortranarray(np.zeros((2, 3), "i4")), "Fortran order"),
    ],
)
def test_files_with_different_rows_raise_at_open(tmp_path: Path, array: np.ndarray, message: str) -> None:
    save(tmp_path, [2, 2])
    np.save(tmp_path / "part-999.npy", array)
    with pytest.raises(FormatError, match=message) as caught:
        lowtide.open(tmp_path)
    assert "part-999.npy" in str(caught.value)


def test_truncated_and_changed_files_raise(tmp_path: Path) -> None:
    save(tmp_path, [2, 2, 2])
    with lowtide.open(tmp_path) as a:
        np.save(tmp_path / "part-001.npy", np.ones((2, 3), "i4"))
        np.testing.assert_array_equal(a[0], [0, 1, 2])
        with pytest.raises(lowtide.FileChangedError, match=r"part-001.npy"):
            a[2]
    os.truncate(tmp_path / "part-002.npy", 140)
    with pytest.raises(lowtide.TruncatedFileError, match=r"part-002.npy"):
        lowtide.open(tmp_path)
    with pytest.raises(ClosedError):
        a[0]


@pytest.mark.parametrize(
    ("path", "options", "error", "message"),
    [
        ("nothing-*.npy", {}, NotFoundError, "nothing-"),
        (".", {}, IsADirectoryError, "is a folder"),
        ([], {}, ArgumentError, "at least one file"),
        (iter(["scalar.npx"]), {}, ArgumentError, "pass a list, as in sorted"),
        (["missing.npy"], {}, NotFoundError, "missing.npy"),
        (["scalar.npx"], {}, ArgumentError, "no dimensions"),
        (["scalar.npx"], {"mode": "r+"}, ArgumentError, "one by one"),
    ],
)
def test_bad_paths_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, options: Any, error: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "scalar.npx").open("wb") as file:
        np.save(file, np.array(5))
    with pytest.raises(error, match=message):
        lowtide.open(path, **options)
