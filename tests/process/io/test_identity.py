"""Workers notice that a file was replaced."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import FileChangedError
from tests.support.process import output

ROWS = np.arange(4000, dtype="<f8").reshape(1000, 4)


def _same_shape(path: Path) -> None:
    np.save(path, ROWS + 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", ROWS)
    return tmp_path / "x.npy"


def _by_rename(path: Path) -> None:
    np.save(path.with_name("new.npy"), ROWS + 1)
    os.replace(path.with_name("new.npy"), path)


def test_spawned_worker_detects_replaced_file(path: Path) -> None:
    code = """
        import pickle, sys, lowtide
        from lowtide.errors import FileChangedError
        try:
            pickle.loads(bytes.fromhex(sys.argv[1]))[0]
        except FileChangedError as error:
            print("refused", error.filename == sys.argv[2])
    """
    with lowtide.open(path) as array:
        data = pickle.dumps(array).hex()
    _by_rename(path)
    assert output(code, data, path) == "refused True\n"


def test_forked_worker_detects_rewritten_file(path: Path) -> None:
    def work(queue: Any) -> None:
        try:
            array[3]
        except FileChangedError:
            queue.put("noticed")
        else:
            queue.put("read")

    context = multiprocessing.get_context("fork")
    with lowtide.open(path) as array:
        array[0]
        _same_shape(path)
        queue = context.Queue()
        worker = context.Process(target=work, args=(queue,))
        worker.start()
        assert queue.get(timeout=30) == "noticed"
        worker.join()
