"""The public front: one table of names for users, type checkers and the reference."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

import lowtide
from lowtide import _deprecated
from lowtide._front import front

FRONTS = ["lowtide", "lowtide.memory", "lowtide.gpt"]
fronts = pytest.mark.parametrize("package", FRONTS)


def stub(package: str) -> dict[str, str]:
    """What a type checker sees: each name imported under TYPE_CHECKING, and the module it comes from."""
    path = importlib.import_module(package).__file__
    assert path is not None
    tree = ast.parse(Path(path).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    result = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "not re-exported"
            result[alias.name] = f"lowtide.{alias.name}" if node.module == "lowtide" else str(node.module)
    return result


@fronts
def test_table_stub_and_listings_agree(package: str) -> None:
    module = importlib.import_module(package)
    names = module._NAMES
    assert stub(package) == names
    assert list(names) == sorted(names)
    assert set(module.__all__) - {"__version__"} == set(names)
    assert dir(module) == sorted(names)


@fronts
def test_unknown_name_raises(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        importlib.import_module(package).nonsense  # noqa: B018


def test_types_and_exceptions_are_public() -> None:
    types = {"Array", "Batches", "Chunks", "Corpus", "Mixture", "Watch", "Writer"}
    assert types <= set(lowtide.__all__)
    exceptions = {"BudgetError", "FileChangedError", "FormatError", "LowtideError", "TruncatedFileError"}
    assert exceptions <= set(lowtide.__all__)
    assert lowtide.FormatError is lowtide.errors.FormatError


def test_name_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    get, listing = front("lowtide.memory", {"SRC": "tests.unit.test_import"})
    assert listing() == ["SRC"]
    module = importlib.import_module("lowtide.memory")
    monkeypatch.setattr(module, "SRC", None, raising=False)  # removed again afterwards
    assert get("SRC") == Path(str(lowtide.__file__)).parent
    assert vars(module)["SRC"] == get("SRC")


def test_every_module_is_public_or_underscored() -> None:
    frameworks = {"dask", "grain", "nanochat", "nanogpt", "torch"}
    public = {"cli", "demo", "errors", "gpt", "memory", "mprof", *frameworks}
    folder = Path(str(lowtide.__file__)).parent
    result = {
        path.stem for path in folder.iterdir() if path.suffix in ("", ".py") and path.name != "py.typed"
    }
    assert {name for name in result if not name.startswith("_")} == public


@pytest.mark.parametrize("target", sorted(set(_deprecated._MOVED.values())))
def test_target_of_a_deprecated_path_exists(target: str) -> None:
    assert find_spec(target) is not None, f"{target} has moved: change it in _deprecated.py"
