"""Windows beside slices of an ndarray."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import windows
from lowtide.errors import ArgumentError


@given(
    rows=st.integers(0, 60),
    width=st.sampled_from([(), (3,), (0,), (2, 1)]),
    length=st.integers(1, 12),
    stride=st.integers(1, 9),
    stage=st.sampled_from([1, 200, 2**20]),
    step=st.integers(1, 3),
    data=st.data(),
)
def test_windows_match_slices(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    width: tuple[int, ...],
    length: int,
    stride: int,
    stage: int,
    step: int,
    data: st.DataObject,
) -> None:
    array = np.arange(rows * math.prod(width)).reshape(rows, *width)
    path = tmp_path_factory.mktemp("windows") / "x.npy"
    np.save(path, array)
    array = array[::step]
    if len(array) >= length:
        starts = range(0, len(array) - length + 1, stride)
        expected = np.stack([array[start : start + length] for start in starts])
    else:
        expected = np.empty((0, length, *width), array.dtype)
    with lowtide.open(path) as a, mock.patch.multiple(windows, _STAGE=stage, _AT_ONCE=5):
        view = pickle.loads(pickle.dumps(a.rows(step=step).windows(length, stride)))
        assert (view.shape, view.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(view[:], expected)
        for shuffle in (False, True, "blocks"):
            seen = [(rows.tolist(), chunk) for rows, chunk in view.chunks(7, shuffle=shuffle, with_rows=True)]
            assert sorted(number for numbers, _ in seen for number in numbers) == list(range(len(expected)))
            for numbers, chunk in seen:
                np.testing.assert_array_equal(chunk, expected[numbers])
        if len(expected):
            numbers = data.draw(st.lists(st.integers(0, len(expected) - 1)))
            np.testing.assert_array_equal(view.take(numbers), expected[np.array(numbers, int)])


def test_overlapping_windows_are_read_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10_000))
    with lowtide.open(tmp_path / "x.npy") as a:
        with mock.patch.object(a._reader, "submit", wraps=a._reader.submit) as submit:
            assert a.windows(100)[:].shape == (9901, 100)
        assert sum(call.args[0].nbytes for call in submit.call_args_list) < 2 * a.nbytes


@pytest.mark.parametrize(("length", "stride"), [(0, 1), (1, 0), (2.5, 1), (3, -1)])
def test_bad_windows_raise(tmp_path: Path, length: int, stride: int) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    with lowtide.open(tmp_path / "x.npy") as a, pytest.raises(ArgumentError):
        a.windows(length, stride)
