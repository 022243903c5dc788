"""What the fronts import at once: nothing but the standard library and each other."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import lowtide

SRC = Path(str(lowtide.__file__)).parent
FILES = ["__init__.py", "_deprecated.py", "_front.py", "errors.py", "memory/__init__.py", "gpt/__init__.py"]


@pytest.mark.parametrize("name", FILES)
def test_front_imports_only_the_standard_library_and_fronts(name: str) -> None:
    modules = set()
    for node in ast.parse((SRC / name).read_text()).body:  # not inside TYPE_CHECKING, nor in functions
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    light = {"lowtide", "lowtide._front"}
    assert {one for one in modules if one.partition(".")[0] not in sys.stdlib_module_names} <= light
