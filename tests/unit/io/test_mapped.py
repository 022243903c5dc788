"""The mapped readers: what is theirs alone. What they share with ``pread`` is in test_reader.py."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lowtide import errors
from lowtide._io import mapped
from lowtide._io.extents import of_records
from lowtide._io.mapped import AdviseReader, MemmapReader, RemapReader
from lowtide._io.reader import ReaderName, open_reader
from tests.unit.io.test_reader import written


@pytest.mark.parametrize("reader", ["remap", "advise", "memmap"])
def test_failed_mapping_raises_read_error(tmp_path: Path, reader: ReaderName) -> None:
    written(tmp_path / "x", 1000)
    one = open_reader(str(tmp_path / "x"), 1000, reader)
    refused = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    with (
        mock.patch("mmap.mmap", side_effect=refused),
        pytest.raises(errors.ReadError, match="Cannot allocate memory") as caught,
    ):
        one.submit(of_records(np.array([0]), 10), np.zeros(10, np.uint8)).wait()
    assert caught.value.filename == str(tmp_path / "x")
    one.close()


@pytest.mark.parametrize("reader", ["remap", "advise", "memmap"])
def test_interrupt_while_copying_is_not_masked(tmp_path: Path, reader: ReaderName) -> None:
    """The traceback still refers to the mapping, so that closing it would fail."""
    written(tmp_path / "x", 1000)
    one = open_reader(str(tmp_path / "x"), 1000, reader)
    copy = mapped._copy
    kept = []

    def interrupted(mapping: Any, *rest: Any) -> None:
        kept.append(np.frombuffer(mapping, np.uint8))
        copy(mapping, *rest)
        raise KeyboardInterrupt

    extents, out = of_records(np.array([0]), 10), np.zeros(10, np.uint8)
    with mock.patch.object(mapped, "_copy", interrupted), pytest.raises(KeyboardInterrupt):
        one.submit(extents, out).wait()
    one.close()
    one.submit(extents, out).wait()
    one.close()


def test_mapped_readers_release_their_maps(tmp_path: Path) -> None:
    written(tmp_path / "x", 2**20)
    for kind, maps in [(RemapReader, 0), (AdviseReader, 1), (MemmapReader, 1)]:
        reader = kind(str(tmp_path / "x"), 2**20, False)
        reader.submit(of_records(np.array([5000]), 100), np.zeros(100, np.uint8)).wait()
        assert Path("/proc/self/maps").read_text().count(str(tmp_path / "x")) == maps
        reader.close()
        assert str(tmp_path / "x") not in Path("/proc/self/maps").read_text()
