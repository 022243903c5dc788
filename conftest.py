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
    np.save(tmp / "a.npy", np.arange(12).reshape(4, 3))
    with lowtide.open(tmp / "a.npy") as array:
        doctest_namespace.update(tmp=tmp, a=array, np=np, lowtide=lowtide)
        yield
