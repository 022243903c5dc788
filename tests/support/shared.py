"""Fixtures that take long, made once for all worker processes of a test run."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What ``make`` returns for a new folder: the first worker calls it, and the others wait for that.

    Tests in several processes use the folder at once: they must not write to it.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of the run, and not of this worker
    folder = root / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    with open(root / f"shared-{name}.pickle", "ab+") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        record.seek(0)
        if content := record.read():
            result: T = pickle.loads(content)
            return result
        result = make(folder)
        record.write(pickle.dumps(result))
        return result
