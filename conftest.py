"""What the examples in docstrings find: a temporary folder ``tmp`` and a small open array ``a``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[None]:
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    tmp: Path = request.getfixturevalue("tmp_path")
    (tmp / "given").mkdir()
    np.save(tmp / "given" / "a.npy", np.arange(12).reshape(4, 3))
    with lowtide.open(tmp / "given" / "a.npy") as array:
        doctest_namespace.update(tmp=tmp, a=array, np=np, lowtide=lowtide)
        np.arange(1000, dtype=np.uint16).tofile(tmp / "given" / "train.bin")
        doctest_namespace["corpus"] = lowtide.corpus(tmp / "given" / "train.bin")
        yield
