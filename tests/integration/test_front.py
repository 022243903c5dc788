"""Every public name, PyTorch's and Dask's included, is what its module holds."""

from __future__ import annotations

import importlib

import pytest

NAMES = [
    (package, name, home)
    for package in ("lowtide", "lowtide.memory", "lowtide.gpt")
    for name, home in importlib.import_module(package)._NAMES.items()
]


@pytest.mark.parametrize(("package", "name", "home"), NAMES, ids=[f"{p}.{n}" for p, n, _ in NAMES])
def test_public_name_is_object_of_home_module(package: str, name: str, home: str) -> None:
    module = importlib.import_module(home)
    expected = module if home == f"{package}.{name}" else getattr(module, name)
    assert getattr(importlib.import_module(package), name) is expected
