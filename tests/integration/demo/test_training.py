"""What the demo's training needs, and that its settings are those of ``lowtide train``."""

from __future__ import annotations

import sys

import pytest

from lowtide._gpt.config import Settings, resolve
from lowtide.demo import training
from lowtide.errors import MissingExtraError


@pytest.mark.parametrize("name", ["torch", "tokenizers"])
def test_missing_package_error_has_both_remedies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training.require()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"{name}.*pip install 'lowtide\[gpt\]'.*--quick"):
        training.require()


@pytest.mark.parametrize(
    ("speed", "n_layer", "batch_size"), [(1.0, 4, 8), (2.0, 4, 4), (3.5, 3, 4), (1e9, 2, 4)]
)
def test_model_size_fits_machine_speed(speed: float, n_layer: int, batch_size: int) -> None:
    """On a machine on which a step of the largest model takes ``speed`` times the limit of 69 ms."""

    def step_seconds(settings: Settings) -> float:
        tokens = settings.batch_size * settings.length
        return speed * 0.068 * (tokens / 1024) * (settings.n_layer / 4) * (settings.n_embd / 128) ** 2

    settings = training.fit(training.SETTINGS, step_seconds)
    assert (settings["n_layer"], settings["batch_size"]) == (n_layer, batch_size)
    assert settings["max_iters"] == training.SETTINGS["max_iters"]


def test_step_time_is_measured() -> None:
    tiny = {"n_layer": 1, "n_head": 1, "n_embd": 8, "length": 4, "batch_size": 1, "vocab_size": 8}
    assert 0 < training._step_seconds(resolve({"data": "-", "device": "cpu", **tiny})) < 1


def test_demo_settings_are_valid() -> None:
    settings = resolve({"data": "corpus", "device": "cpu", **training.SETTINGS})
    assert settings.max_minutes == 1.0
    assert settings.preset == "modern"


def test_signalled_training_interrupts_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide import gpt

    outcome = gpt.Outcome(3, "signal", None, None, None, 2)
    monkeypatch.setattr(gpt, "train", lambda out, **settings: outcome, raising=False)
    with pytest.raises(KeyboardInterrupt):
        training.train("corpus", "run", {"device": "cpu"})
