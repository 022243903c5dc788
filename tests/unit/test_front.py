"""The public front: one table of names, the same for users, type checkers and old programs."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import lowtide
from lowtide import _deprecated
from tests.support.process import output

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
def test_table_stub_and_modules_agree(package: str) -> None:
    module = importlib.import_module(package)
    names = module._NAMES
    assert stub(package) == names
    assert list(names) == sorted(names)
    assert set(module.__all__) - {"__version__"} == set(names)
    assert dir(module) == sorted(names)
    for name, home in names.items():
        module_itself = home == f"{package}.{name}"
        held = importlib.import_module(home)
        assert getattr(module, name) is (held if module_itself else getattr(held, name))


@fronts
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        importlib.import_module(package).nonsense  # noqa: B018


def test_submodules_need_no_separate_import() -> None:
    code = """
        import lowtide
        print(lowtide.memory.snapshot().rss > 0, lowtide.errors.FormatError.__name__)
    """
    assert output(code) == "True FormatError\n"


def test_every_module_is_public_or_underscored() -> None:
    public = {"cli", "dask", "demo", "errors", "gpt", "memory", "nanogpt", "torch"}
    folder = Path(str(lowtide.__file__)).parent
    result = {
        path.stem for path in folder.iterdir() if path.suffix in ("", ".py") and path.name != "py.typed"
    }
    assert {name for name in result if not name.startswith("_")} == public


# Paths of 0.1


def test_every_old_path_gives_the_module_at_its_new_place_and_a_warning() -> None:
    code = """
        import importlib, sys, warnings
        import lowtide
        from lowtide import _deprecated
        for old, new in _deprecated._MOVED.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module = importlib.import_module(old)
            assert module is importlib.import_module(new), old
            assert module.__spec__.name == new, (old, module.__spec__)
            if old not in ("lowtide.adapters", "lowtide.formats", "lowtide.preparing"):
                assert caught or old in sys.modules, old
            assert all(w.category is DeprecationWarning and "lowtide" in str(w.message) for w in caught)
        print(len(_deprecated._MOVED))
    """
    assert output(code) == f"{len(_deprecated._MOVED)}\n"


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("from lowtide.array import Array", "use lowtide.Array or lowtide.open"),
        ("from lowtide.adapters.nanogpt import get_batch_for", "import lowtide.nanogpt"),
        ("from lowtide.memory.guard import watch", "use lowtide.Watch or lowtide.watch"),
        ("from lowtide.gpt.model import GPT", "use lowtide.gpt.GPT or lowtide.gpt.ModelConfig"),
        ("from lowtide.prefetch import Prefetcher", "it is not a part of the public interface"),
    ],
)
def test_the_warning_names_the_public_place(old: str, message: str) -> None:
    code = f"""
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            {old}
        print(*[w.message for w in caught], sep="\\n")
        print(*{{w.filename for w in caught}})
    """
    text = output(code)
    assert message in text
    assert "removed in the next version" in text
    assert text.endswith("<string>\n")  # the line that has to be changed, not one of ours


def test_old_and_new_names_are_the_same_objects() -> None:
    code = """
        import warnings
        warnings.simplefilter("ignore")
        import pickle, lowtide
        from lowtide.errors import LowtideError
        from lowtide.array import Array
        from lowtide.formats.npy import read_header
        from lowtide._arrays.formats.npy import read_header as moved
        from lowtide.adapters.torch import MapDataset
        import lowtide.torch
        print(Array is lowtide.Array, read_header is moved, MapDataset is lowtide.torch.MapDataset)
    """
    assert output(code) == "True True True\n"
