"""Extents: every byte goes where it belongs, in the order of the file."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide._io import extents
from lowtide._io.extents import Extents, of_records


def bytes_of(some: Extents) -> list[tuple[int, int]]:
    """(byte of the buffer, byte of the file), one by one."""
    rows = zip(some.offsets.tolist(), some.targets.tolist(), some.lengths.tolist(), strict=True)
    return sorted((target + i, offset + i) for offset, target, length in rows for i in range(length))


def some_extents(lengths: list[int]) -> Extents:
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - np.array(lengths, np.int64)
    return Extents(starts * 3, starts, np.array(lengths, np.int64))


@given(
    places=st.lists(st.integers(0, 30), max_size=40),
    width=st.integers(1, 9),
    step=st.integers(1, 12),
    longest=st.integers(1, 20),
)
@example(places=[3, 0, 1, 2], width=5, step=5, longest=100)  # neighbours in the file, not in the buffer
@example(places=[0, 1, 2, 3], width=5, step=5, longest=100)
def test_records_fill_buffer_consecutively(places: list[int], width: int, step: int, longest: int) -> None:
    offsets = np.array(places, np.int64) * step  # a step below the width overlaps, at the width joins
    with mock.patch.object(extents, "LONGEST", longest):
        result = of_records(offsets, width)
    assert bytes_of(result) == [
        (i * width + j, int(o) + j) for i, o in enumerate(offsets) for j in range(width)
    ]
    assert result.nbytes == len(places) * width
    assert (np.diff(result.offsets) >= 0).all()
    assert (result.lengths <= longest).all()
    assert (result.lengths > 0).all()


def test_offsets_argument_is_not_modified() -> None:
    offsets = np.array([30, 0, 10, 20])
    of_records(offsets, 10)
    assert offsets.tolist() == [30, 0, 10, 20]


def test_contiguous_block_takes_few_long_requests() -> None:
    result = of_records(np.arange(5000, dtype=np.int64) * 648 + 128, 648)
    assert result.lengths.tolist() == [2**20, 2**20, 2**20, 5000 * 648 - 3 * 2**20]


def test_offsets_beyond_32_bits_stay_exact() -> None:
    result = of_records(np.array([2**45, 2**45 + 3 * 2**20]), 3 * 2**20)
    assert bool((result.offsets == 2**45 + np.arange(6) * 2**20).all())


def windows(whole: Extents, count: int, nbytes: int, overhead: int = 0) -> list[Extents]:
    """One window after another."""
    parts: list[Extents] = []
    while (first := sum(len(part) for part in parts)) < len(whole):
        parts.append(whole.window(first, count, nbytes, overhead))
    return parts


@given(
    lengths=st.lists(st.integers(1, 50), max_size=60),
    count=st.integers(1, 10),
    nbytes=st.integers(0, 120),
    overhead=st.integers(0, 10),
)
def test_windows_respect_limits(lengths: list[int], count: int, nbytes: int, overhead: int) -> None:
    whole = some_extents(lengths)
    parts = windows(whole, count, nbytes, overhead)
    assert [pair for part in parts for pair in bytes_of(part)] == bytes_of(whole)
    for part in parts:
        assert len(part) <= count
        assert len(part) <= 1 or part.nbytes + overhead * len(part) <= nbytes


def test_windows_are_filled_up_to_limits() -> None:
    assert [len(part) for part in windows(some_extents([10] * 10), 100, 40)] == [4, 4, 2]
    assert [len(part) for part in windows(some_extents([10] * 10), 3, 1000)] == [3, 3, 3, 1]


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60), parts=st.integers(1, 6))
def test_shares_cover_all_extents_and_are_balanced(lengths: list[int], parts: int) -> None:
    whole = some_extents(lengths)
    shares = whole.shares(parts)
    assert 1 <= len(shares) <= parts
    assert all(len(share) for share in shares)
    assert [pair for share in shares for pair in bytes_of(share)] == bytes_of(whole)
    assert max(share.nbytes for share in shares) <= whole.nbytes / parts + 2 * max(lengths)


@pytest.mark.parametrize("width", [1, 3 * 2**20])
def test_no_offsets_give_no_extents(width: int) -> None:
    assert len(of_records(np.empty(0, np.int64), width)) == 0


def test_unordered_records_keep_given_order() -> None:
    some = of_records(np.array([30, 0, 10, 20]), 10, ordered=False)
    assert some.offsets.tolist() == [30, 0, 10, 20]
    assert some.targets.tolist() == [0, 10, 20, 30]
