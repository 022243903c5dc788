"""Module paths of 0.1: the module at its new place, and a warning that says where its public names are."""

from __future__ import annotations

import pytest

from lowtide import _deprecated
from tests.support.process import output


def test_old_paths_give_moved_module_with_warning() -> None:
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
def test_warning_has_public_name(old: str, message: str) -> None:
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
