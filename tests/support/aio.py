"""Requests for kernel AIO, and a file to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide._io import aio
from lowtide._io.aio import Aio
from lowtide._io.extents import Extents


def extents(offsets: list[int], lengths: list[int]) -> Extents:
    ends = np.cumsum(lengths, dtype=np.int64)
    return Extents(np.array(offsets, np.int64), ends - lengths, np.array(lengths, np.int64))


def context() -> Aio:
    """The one that the next read will use."""
    assert aio.available()
    return aio._IDLE[-1]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(i % 251 for i in range(100_000)))
    number = os.open(path, os.O_RDONLY)
    yield number
    os.close(number)
