"""lowtide.gpt.checkpoints: complete or not there, and never code from a stranger's file."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.errors import ArgumentError, DiskFullError, FormatError, NotFoundError, TruncatedFileError
from lowtide.gpt import checkpoints
from lowtide.gpt.checkpoints import Checkpoint
from lowtide.gpt.model import GPT
from lowtide.gpt.train import model_config
from tests.support.training import tiny


def made(step: int = 3, **changes: Any) -> Checkpoint:
    torch.manual_seed(step)
    settings = tiny("corpus", vocab_size=31, **changes)
    model = GPT(model_config(settings))
    return Checkpoint(step, settings, model.config, model.state_dict(), best_val_loss=2.5)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint.pt")


def test_what_was_saved_is_loaded(path: str) -> None:
    saved = made()
    saved.save(path)
    found = checkpoints.load(path)
    assert (found.step, found.settings, found.config) == (3, saved.settings, saved.config)
    assert found.best_val_loss == 2.5
    assert found.model.keys() == saved.model.keys()
    assert all(torch.equal(found.model[name], saved.model[name]) for name in saved.model)
    assert os.listdir(os.path.dirname(path)) == ["checkpoint.pt"]


@pytest.mark.parametrize("keep", [0, 10, 1000, -1, -1000])
def test_a_checkpoint_cut_short_says_so(path: str, keep: int) -> None:
    made().save(path)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:keep])
    with pytest.raises(TruncatedFileError, match=r"checkpoint\.pt: .*cut short or damaged"):
        checkpoints.load(path)


def test_code_in_a_checkpoint_is_not_run(path: str, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    torch.save({"format": checkpoints.FORMAT, "version": 1, "step": Attack()}, path)
    with pytest.raises(FormatError, match="something else than tensors and plain values"):
        checkpoints.load(path)
    assert not (tmp_path / "attacked").exists()


def test_files_of_others_are_told_apart(path: str) -> None:
    torch.save({"model": {}}, path)
    with pytest.raises(FormatError, match="is a PyTorch file, but no checkpoint of lowtide train"):
        checkpoints.load(path)
    torch.save({"format": checkpoints.FORMAT, "version": 9}, path)
    with pytest.raises(FormatError, match="version 9 is not known, 1 is"):
        checkpoints.load(path)
    torch.save({"format": checkpoints.FORMAT, "version": 1, "settings": {"n_layer": 1}, "config": {}}, path)
    with pytest.raises(FormatError, match="does not hold what a checkpoint has"):
        checkpoints.load(path)
    with pytest.raises(NotFoundError, match="no checkpoint there"):
        checkpoints.load(path + ".no")


def test_another_architecture_is_refused_by_what_differs(path: str) -> None:
    saved = made()
    other = GPT(model_config(tiny("corpus", vocab_size=31, n_layer=2, preset="nanogpt")))
    with pytest.raises(
        FormatError, match=r"another architecture: n_layer is 1 in it and 2 here; .*positions is 'rotary"
    ):
        checkpoints.fill(other, saved, path)
    broken = dataclasses.replace(saved, model={**saved.model, "embedding.weight": torch.zeros(3, 16)})
    with pytest.raises(FormatError, match=r"do not fit its own architecture: .*embedding\.weight"):
        checkpoints.fill(GPT(saved.config), broken, path)


def test_no_space_leaves_the_last_good_one(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(step=3).save(path)
    full, real, written = os.open("/dev/full", os.O_RDWR), os.pwrite, 0

    def pwrite(fd: int, data: Any, offset: int) -> int:
        nonlocal written
        written += len(data)
        return real(full if written > 4000 else fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DiskFullError, match=r"no space left on the device; .*checkpoint\.pt"):
        made(step=4).save(path)
    monkeypatch.undo()
    os.close(full)
    assert checkpoints.load(path).step == 3
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_the_best_weights_are_what_is_sampled_from(tmp_path: Path) -> None:
    made(step=9).save(str(tmp_path / "checkpoint.pt"))
    assert _first(checkpoints.load_model(tmp_path)) == _first_of(made(step=9))
    made(step=5).save(str(tmp_path / "best.pt"))
    assert _first(checkpoints.load_model(tmp_path)) == _first_of(made(step=5))
    assert _first(checkpoints.load_model(tmp_path, "last")) == _first_of(made(step=9))
    assert not checkpoints.load_model(tmp_path).training
    with pytest.raises(ArgumentError, match="which must be 'best' or 'last', got 'first'"):
        checkpoints.load_model(tmp_path, "first")  # type: ignore[arg-type]


def _first(model: GPT) -> float:
    return float(model.embedding.weight.detach()[0, 0])


def _first_of(saved: Checkpoint) -> float:
    return float(saved.model["embedding.weight"][0, 0])


def test_settings_that_are_no_settings(tmp_path: Path) -> None:
    checkpoints.write_settings(str(tmp_path), tiny("corpus"))
    assert checkpoints.read_settings(tmp_path) == tiny("corpus")
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(FormatError, match=r"settings\.json: does not hold the settings of a run"):
        checkpoints.read_settings(tmp_path)
