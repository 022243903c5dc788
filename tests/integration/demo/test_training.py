"""What the demo's training needs, and that its settings are those of ``lowtide train``."""

from __future__ import annotations

import sys

import pytest

from lowtide._gpt.config import resolve
from lowtide.demo import training
from lowtide.errors import MissingExtraError


@pytest.mark.parametrize("name", ["torch", "tokenizers"])
def test_missing_package_is_reported_with_both_remedies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training.require()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"{name}.*pip install 'lowtide\[gpt\]'.*--quick"):
        training.require()


def test_the_settings_are_complete_and_agree() -> None:
    settings = resolve({"data": "corpus", "device": "cpu", **training.SETTINGS})
    assert settings.max_minutes == 1.0
    assert settings.preset == "modern"


def test_a_run_that_was_asked_to_end_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide import gpt

    outcome = gpt.Outcome(3, "signal", None, None, None, 2)
    monkeypatch.setattr(gpt, "train", lambda out, **settings: outcome, raising=False)
    with pytest.raises(KeyboardInterrupt):
        training.train("corpus", "run", {"device": "cpu"})
