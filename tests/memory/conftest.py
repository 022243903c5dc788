"""Fixtures for tests that measure real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide._memory import helper
from tests.support.cgroup import limited

__all__ = ["limited"]
MIB = 2**20


def written(path: Path, mib: int) -> Path:
    """A file of ``mib`` MiB, on the disk and in the page cache."""
    block = os.urandom(MIB)
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(block)
        os.fsync(file.fileno())
    return path


@pytest.fixture(scope="session")
def gib(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of 1 GiB."""
    path = written(tmp_path_factory.mktemp("data") / "train.bin", 1024)
    yield path
    path.unlink()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of 96 MiB."""
    path = written(tmp_path_factory.mktemp("data") / "small.bin", 96)
    yield path
    path.unlink()


@pytest.fixture(autouse=True, scope="session")
def _no_sampler_left() -> Iterator[None]:
    yield
    helper.shut_down()
