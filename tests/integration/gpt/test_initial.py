"""``--init RUN``: the weights of a run, a new corpus, new settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lowtide
from lowtide._gpt import checkpoint, folder
from lowtide.errors import ArgumentError, LowtideError
from lowtide.gpt import load_model, sample, train
from tests.support.training import TINY, losses

TEXT = "the low tide leaves the sand bare, the high tide takes it back.\n" * 60


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a run on it, and another corpus with the same tokenizer."""
    place = tmp_path_factory.mktemp("base")
    (place / "text.txt").write_text(TEXT)
    (place / "more.txt").write_text(TEXT[::-1])
    lowtide.prepare(place / "text.txt", place / "corpus", tokenizer="char", val_fraction=0.2)
    tokenizer = str(place / "corpus" / "tokenizer.json")
    lowtide.prepare(place / "more.txt", place / "more", tokenizer=tokenizer, val_fraction=0.2)
    train(place / "run", data=str(place / "corpus"), **TINY)
    return place


def tuned(base: Path, out: Path, **changes: Any) -> checkpoint.Checkpoint:
    options = {"device": "cpu", "data": str(base / "more"), "init": str(base / "run"), "max_iters": 2}
    train(out, **{**options, "batch_size": 4, "eval_interval": 0, **changes})
    return checkpoint.load(str(out / checkpoint.LAST))


def test_init_loads_weights_of_run(base: Path, tmp_path: Path) -> None:
    saved = tuned(base, tmp_path / "fine", learning_rate=0.0, min_lr=0.0)
    expected = load_model(base / "run").state_dict()
    assert all(torch.equal(saved.model[name], expected[name]) for name in expected)
    assert saved.step == 2
    assert (saved.settings.n_layer, saved.settings.length) == (TINY["n_layer"], TINY["length"])
    assert saved.settings.init == str(base / "run")


def test_initial_loss_is_below_fresh_run(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "fine", data=str(base / "corpus"))
    fresh = tmp_path / "fresh"
    train(fresh, data=str(base / "corpus"), **{**TINY, "max_iters": 1, "eval_interval": 0})
    assert losses(tmp_path / "fine")[0] < losses(fresh)[0] - 0.01


def test_init_from_checkpoint_with_changed_settings(base: Path, tmp_path: Path) -> None:
    """Rotary positions are computed: the windows of the new run may be longer."""
    last = base / "run" / "checkpoint.pt"
    saved = tuned(base, tmp_path / "fine", init=str(last), length=16, dropout=0.25, optimiser="adamw")
    assert (saved.config.length, saved.config.dropout) == (16, 0.25)
    assert saved.settings.optimiser == "adamw"
    assert train(tmp_path / "fine", resume=True, max_iters=3).step == 3
    assert "".join(sample(tmp_path / "fine", "the", max_new_tokens=4)).startswith("the")


def test_init_inherits_preset_of_run(base: Path, tmp_path: Path) -> None:
    train(tmp_path / "old", data=str(base / "corpus"), **{**TINY, "preset": "nanogpt", "eval_interval": 0})
    settings = tuned(base, tmp_path / "fine", init=str(tmp_path / "old")).settings
    assert (settings.preset, settings.optimiser, settings.positions) == ("nanogpt", "adamw", "learned")
    with pytest.raises(ArgumentError, match="length is too large for the weights"):
        tuned(base, tmp_path / "long", init=str(tmp_path / "old"), length=16)


def test_init_with_auto_resume_continues(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    tuned(base, tmp_path / "fine", init="run", resume="auto")
    assert tuned(base, tmp_path / "fine", init="run", resume="auto", max_iters=3).step == 3


def test_data_without_tokenizer_keeps_tokenizer_of_run(base: Path, tmp_path: Path) -> None:
    np.zeros(500, np.uint16).tofile(tmp_path / "train.bin")
    np.zeros(100, np.uint16).tofile(tmp_path / "val.bin")
    outcome = train(
        tmp_path / "fine", data=str(tmp_path), init=str(base / "run"), device="cpu", max_iters=1, batch_size=2
    )
    assert outcome.val_bpb is not None
    assert train(tmp_path / "fine", resume=True, max_iters=2).val_bpb is not None
    assert folder.load_tokenizer(tmp_path / "fine").decode([1]) == folder.load_tokenizer(base / "run").decode(
        [1]
    )


def test_tokenizer_mismatch_error_has_remedy(base: Path, tmp_path: Path) -> None:
    lowtide.prepare(base / "text.txt", tmp_path / "bytes", tokenizer="byte", val_fraction=0.2)
    with pytest.raises(ArgumentError, match=r"more ids than the weights of --init know .* of .*run"):
        tuned(base, tmp_path / "fine", data=str(tmp_path / "bytes"))
    (tmp_path / "short.txt").write_text("abc, abd " * 200)
    lowtide.prepare(tmp_path / "short.txt", tmp_path / "short", tokenizer="char", val_fraction=0.2)
    with pytest.raises(ArgumentError, match=r"another tokenizer .* --tokenizer .*run/tokenizer\.json"):
        tuned(base, tmp_path / "fine", data=str(tmp_path / "short"))
    assert not (tmp_path / "fine").exists()


def test_missing_or_mismatched_init_raises(base: Path, tmp_path: Path) -> None:
    with pytest.raises(LowtideError, match="pass that of a run, one that save_pretrained"):
        tuned(base, tmp_path / "fine", init="./nowhere")
    with pytest.raises(ArgumentError, match="n_layer is 7, but the weights of --init have 1"):
        tuned(base, tmp_path / "fine", n_layer=7)


@pytest.mark.parametrize(("name", "value"), [("init", Path("run")), ("dropout", "none"), ("length", 1.5)])
def test_settings_are_checked_before_the_weights_are_read(
    base: Path, tmp_path: Path, name: str, value: Any
) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be "):
        tuned(base, tmp_path / "fine", **{name: value})


def test_block_size_is_an_alias_beside_init(base: Path, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="block_size is deprecated"):
        assert tuned(base, tmp_path / "fine", block_size=4).settings.length == 4
