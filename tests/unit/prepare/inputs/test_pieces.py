"""Cuts: where they lie, and that nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._prepare.inputs.pieces import cut, pieces, reach

TEXTS = st.text(alphabet="ab \n\r\té漢😀", max_size=200)


@pytest.mark.parametrize(
    ("text", "mark", "expected"),
    [
        ("the low tide", 9, 7),  # before the last single space
        ("the low tide", 7, 7),
        ("one  two\tx\ny", 11, 11),  # no single space: behind the newline
        ("aaaaaaaaaaaa", 9, 9),
        ("aaaaaaaa\r\naa", 9, 8),  # never between \r and \n
        ("aaaaaaaaé", 9, 8),  # nor inside a character
        ("aaaaaaa😀aa", 10, 7),
    ],
)
def test_cut_has_expected_position(text: str, mark: int, expected: int) -> None:
    data = text.encode()
    assert cut(data, mark, len(data), size=16) == expected


@given(TEXTS, st.integers(8, 40))
def test_pieces_join_to_text_and_are_bounded(text: str, size: int) -> None:
    parts = list(pieces(text, size))
    assert "".join(parts) == text
    assert all(len(piece.encode()) < size + reach(size) for piece in parts)
    if len(text.encode()) <= size:
        assert parts == [text]
    else:
        assert all(parts), "a piece is empty"


@given(TEXTS, TEXTS, st.integers(8, 40))
def test_cut_depends_only_on_surrounding_bytes(before: str, after: str, size: int) -> None:
    data = (before + after).encode()
    for mark in range(size, len(data), size):
        low, high = mark - reach(size), min(mark + 2, len(data))
        seen = b"\0" * low + data[low:high] + b"\0" * (len(data) - high)
        assert cut(seen, mark, len(data), size) == cut(data, mark, len(data), size)


def test_invalid_utf8_is_cut_at_mark() -> None:
    assert cut(b"\x80" * 20, 12, 20, size=16) == 12
