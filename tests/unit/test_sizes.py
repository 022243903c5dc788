"""Sizes as people write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._sizes import format_size, parse_size, whole
from lowtide.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("7", 7),
        ("7 b", 7),
        ("64 MiB", 64 * 2**20),
        ("64mib", 64 * 2**20),
        (" 64  MiB ", 64 * 2**20),
        ("64M", 64 * 2**20),
        ("64 MB", 64 * 10**6),
        ("1.5k", 1536),
        (".5 KiB", 512),
        ("2. GB", 2 * 10**9),
        ("3TiB", 3 * 2**40),
        ("0.3 b", 0),
        ("9007199254740993", 2**53 + 1),  # one that no float can hold
        ("9" * 400, int("9" * 400)),  # a float would be infinite
    ],
)
def test_size_with_a_unit_is_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "1 PiB", "-1", "1e3", "1,5 k", "64 Mi B", "0x10", "1.2.3 k", "."]
)
def test_invalid_size_error_quotes_text(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not understood") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


def test_negative_size_raises() -> None:
    with pytest.raises(ArgumentError, match="-5"):
        parse_size(-5)


@given(st.integers(0, 2**70))
def test_whole_bytes_are_exact(size: int) -> None:
    assert parse_size(size) == parse_size(str(size)) == size
    assert parse_size(f"{size} KiB") == size * 1024


@given(st.integers(0, 2**50))
def test_formatted_size_can_be_parsed(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= max(1, size) * 0.051


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, "1", None])
def test_non_integer_values_raise(value: object) -> None:
    with pytest.raises(ArgumentError, match="rows must be an integer, got"):
        whole("rows", value)


def test_numpy_integers_become_python_integers() -> None:
    assert type(whole("rows", np.uint16(5), least=1)) is int
