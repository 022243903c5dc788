"""Arrays in memory that are zipped with arrays on disk."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._arrays.loaded import LoadedArray
from lowtide.errors import ArgumentError, ClosedError


@pytest.mark.parametrize("dtype", ["i8", ">f4", "M8[s]", "S3", [("a", "i2"), ("b", "f8")]])
@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_labels_in_memory_match_rows_on_disk(tmp_path: Path, dtype: Any, shuffle: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    labels = np.zeros(1000, dtype)
    labels[:] = np.arange(1000).astype("i2").astype(dtype) if labels.dtype.names is None else 0
    with lowtide.open(tmp_path / "x.npy") as x:
        pair = pickle.loads(pickle.dumps(lowtide.zip(x, labels)))
        for part in pair.split(0.7, seed=2):
            for rows, y in part.chunks(64, shuffle=shuffle):
                assert y.dtype == labels.dtype.newbyteorder("=")  # as pickle makes it
                np.testing.assert_array_equal(y, labels[rows])
        rows, window = pair.rows(5, 50, 3)[:]
        np.testing.assert_array_equal(window, labels[rows])
        assert "an array in memory" in repr(pair)


def test_array_in_memory_is_not_copied() -> None:
    source = np.arange(40.0).reshape(10, 4)
    array = LoadedArray(source)
    np.testing.assert_array_equal(array.windows(3, 2)[:], [source[i : i + 3] for i in range(0, 8, 2)])
    np.testing.assert_array_equal(array.columns[1].mean(), source[:, 1].mean())
    np.testing.assert_array_equal(array[[3, -1], 1:], source[[3, -1], 1:])
    source[0, 0] = 99
    assert array[0, 0] == 99
    assert array.take([])[:].shape == (0, 4)
    assert list(LoadedArray(np.zeros((0, 2))).chunks(3)) == []
    array.close()
    with pytest.raises(ClosedError, match="an array in memory"):
        array[0]


@pytest.mark.parametrize("array", [np.array(5), np.array(["a", None], object)])
def test_zip_of_scalar_or_object_array_raises(array: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match="must have rows of numbers"):
        lowtide.zip(array)
