"""What the tests of every format share: reading in place without lowtide, and damaging files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from lowtide._arrays import formats
from lowtide._arrays.formats import Layout
from lowtide.errors import LowtideError


def read_in_place(layout: Layout) -> np.ndarray:
    """The array that a layout promises, by nothing but seek and read."""
    with open(layout.path, "rb") as file:
        file.seek(layout.offset)
        data = file.read(layout.nbytes)
    assert len(data) == layout.nbytes
    return np.ndarray(layout.shape, layout.dtype, data, order="F" if layout.fortran else "C")


def assert_same(layout: Layout, expected: np.ndarray) -> None:
    """Dtype, shape and every byte of every element."""
    result = read_in_place(layout)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.tobytes() == expected.tobytes()
    assert layout.file_size == os.path.getsize(layout.path)


@contextmanager
def refused(kind: type[LowtideError], *parts: object) -> Iterator[None]:
    """The block raises ``kind``, and its message holds every one of ``parts``."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    missing = [str(part) for part in parts if str(part) not in message]
    assert not missing, f"{missing} not in: {message}"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def assert_honest(path: Path) -> None:
    """Any file either gives layouts that lie inside it, or a LowtideError and nothing else."""
    size = path.stat().st_size
    try:
        result = [member.layout for member in formats.members(path) if member.layout is not None]
    except LowtideError:
        result = []
    with suppress(LowtideError):
        result.append(formats.inspect(path))
    for layout in result:
        assert layout.offset >= 0
        assert layout.offset + layout.nbytes <= size
        assert not layout.dtype.hasobject
        assert layout.dtype.itemsize > 0


@st.composite
def damaged(draw: st.DrawFn, originals: list[bytes], head: int = 512) -> bytes:
    """A valid file with bytes flipped, put in, taken out or cut off, mostly where its headers are."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        # From either end: a zip has its directory at the end.
        place = draw(st.one_of(st.integers(0, head), st.integers(-head, -1)))
        position = min(max(place if place >= 0 else len(data) + place, 0), len(data))
        kind = draw(st.sampled_from(["set", "flip", "insert", "delete", "cut"]))
        if kind == "insert":
            data[position:position] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "delete":
            del data[position : position + draw(st.integers(1, 8))]
        elif kind == "cut":
            del data[position:]
        elif position < len(data):
            mask = 1 << draw(st.integers(0, 7))
            data[position] = draw(st.integers(0, 255)) if kind == "set" else data[position] ^ mask
    return bytes(data)
