"""lowtide._gpt.checkpoint: complete or absent, verified, and never run."""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide._gpt import checkpoint, folder, optim
from lowtide._gpt.checkpoint import Checkpoint
from lowtide._gpt.loop import model_config
from lowtide._gpt.model import GPT
from lowtide.errors import ArgumentError, DiskFullError, FormatError, NotFoundError, TruncatedFileError
from tests.support.training import tiny


def example(step: int = 3, **changes: Any) -> Checkpoint:
    torch.manual_seed(step)
    settings = tiny("corpus", vocab_size=31, **changes)
    model = GPT(model_config(settings))
    return Checkpoint(step, settings, model.config, model.state_dict(), best_val_loss=2.5)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint.pt")


def test_checkpoint_round_trip(path: str) -> None:
    saved = example()
    saved.save(path)
    loaded = checkpoint.load(path)
    assert (loaded.step, loaded.settings, loaded.config) == (3, saved.settings, saved.config)
    assert loaded.best_val_loss == 2.5
    assert loaded.model.keys() == saved.model.keys()
    assert all(torch.equal(loaded.model[name], saved.model[name]) for name in saved.model)
    assert os.listdir(os.path.dirname(path)) == ["checkpoint.pt"]


def test_checkpoint_of_version_0_1_loads(path: str) -> None:
    saved = example(muon_dtype="bfloat16")
    saved.save(path)
    content = torch.load(path, weights_only=True)
    content["version"] = 1
    for part in ("settings", "config"):
        content[part]["block_size"] = content[part].pop("length")
    del content["settings"]["muon_dtype"]
    torch.save(content, path)
    loaded = checkpoint.load(path)
    assert (loaded.settings, loaded.config) == (saved.settings, saved.config)


@pytest.mark.parametrize("keep", [0, 10, 1000, -1, -1000])
def test_truncated_checkpoint_raises(path: str, keep: int) -> None:
    example().save(path)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:keep])
    with pytest.raises(TruncatedFileError, match=r"checkpoint\.pt: .*truncated or damaged"):
        checkpoint.load(path)


def test_code_in_checkpoint_is_not_run(path: str, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    torch.save({"format": checkpoint.FORMAT, "version": 1, "step": Attack()}, path)
    with pytest.raises(FormatError, match="something other than tensors and plain values"):
        checkpoint.load(path)
    assert not (tmp_path / "attacked").exists()


def test_invalid_or_missing_checkpoint_raises(path: str) -> None:
    torch.save({"model": {}}, path)
    with pytest.raises(FormatError, match="is a PyTorch file, but not a checkpoint of lowtide train"):
        checkpoint.load(path)
    torch.save({"format": checkpoint.FORMAT, "version": 9}, path)
    with pytest.raises(FormatError, match=r"version of the checkpoint is not known \(9, expected 1 to 2\)"):
        checkpoint.load(path)
    torch.save({"format": checkpoint.FORMAT, "version": 1, "settings": {"n_layer": 1}, "config": {}}, path)
    with pytest.raises(FormatError, match="its contents are not those of a checkpoint"):
        checkpoint.load(path)
    with pytest.raises(NotFoundError, match="no checkpoint there"):
        checkpoint.load(path + ".no")


def deep(depth: int = 100_000) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def endless() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["again"] = state
    return state


LIES: dict[str, dict[str, Any]] = {
    "a text for the step": {"step": "3"},
    "a step that is not a number": {"step": float("nan")},
    "a negative step": {"step": -1},
    "a step beyond PyTorch's integers": {"step": 10**30},
    "a tensor for the version": {"version": torch.ones(2)},
    "a best loss of text": {"best_val_loss": "low"},
    "no model": {"model": None},
    "weights that are lists": {"model": {"embedding.weight": [1.0]}},
    "weights of another name": {"model": {"x": torch.ones(2)}},
    "weights of integers": {"model": {"embedding.weight": torch.ones(31, 16, dtype=torch.int64)}},
    "settings nested too deep": {"settings": {"data": deep()}},
    "settings that are a list": {"settings": [1]},
    "batches that hold themselves": {"batches": endless()},
    "batches nested too deep": {"batches": {"step": deep()}},
    "batches with tensors": {"batches": {"step": torch.ones(2)}},
    "a scaler of text": {"scaler": "x"},
    "a scaler without a scale": {"scaler": {"growth_factor": 2.0}},
    "an optimiser of text": {"optimiser": "x"},
    "a vocabulary beyond memory": {"config": {"vocab_size": 10**12}},
    "layers without end": {"config": {"n_layer": 10**9}},
    "a window beyond memory": {"config": {"length": 10**12}},
    "a width beyond integers": {"config": {"n_embd": 2**70}},
    "no heads": {"config": {"n_head": 0}},
    "a bias of text": {"config": {"bias": "yes"}},
}


@pytest.mark.parametrize("lie", LIES)
def test_impossible_values_raise(lie: str, path: str) -> None:
    example().save(path)
    content = torch.load(path, weights_only=True)
    for name, value in LIES[lie].items():
        content[name] = {**content[name], **value} if name == "config" else value
    try:
        torch.save(content, path)
    except RecursionError:  # PyTorch cannot write deep nesting; another program can
        Path(path).write_bytes(_saved_deep(content, path))
    with pytest.raises(FormatError) as caught:
        checkpoint.load(path)
    assert path in str(caught.value)
    assert len(str(caught.value)) < 1500


def _saved_deep(content: dict[str, Any], path: str) -> bytes:
    """The file with each deep list as opcodes of a pickle."""
    marker = "deep-list-here"
    for name in ("settings", "batches"):
        if isinstance(content[name], dict):
            content[name] = {k: marker if isinstance(v, list) and v else v for k, v in content[name].items()}
    torch.save(content, path)
    nested = b"]" * 100_000 + b"a" * 99_999
    files = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            files[name] = archive.read(name)
    text = b"X" + len(marker).to_bytes(4, "little") + marker.encode()
    assert any(text in data for data in files.values())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data.replace(text, nested))
    return buffer.getvalue()


def test_weights_sharing_storage_raise(path: str) -> None:
    example(n_layer=4, n_embd=64).save(path)
    content = torch.load(path, weights_only=True)
    whole = content["model"]["blocks.0.feed_forward.up.weight"].flatten()
    content["model"] = {
        name: whole[: tensor.numel()].view(tensor.shape) for name, tensor in content["model"].items()
    }
    torch.save(content, path)
    with pytest.raises(FormatError, match=r"is damaged \(\d+ weights, expected at most"):
        checkpoint.load(path)


def test_checkpoint_without_optimiser_cannot_be_resumed(path: str) -> None:
    example().save(path)
    saved = checkpoint.load(path)
    with pytest.raises(FormatError, match=r"holds weights only, as best\.pt does"):
        checkpoint.restore(optim.Optimiser([]), saved, path)
    saved = dataclasses.replace(saved, optimiser={"parts": [1, 2, 3]}, batches={})
    with pytest.raises(FormatError, match=r"checkpoint\.pt: not the state of this optimiser"):
        checkpoint.restore(optim.Optimiser([]), saved, path)


def test_weights_of_another_architecture_raise(path: str) -> None:
    saved = example()
    dataclasses.replace(saved, model={**saved.model, "embedding.weight": torch.zeros(3, 16)}).save(path)
    with pytest.raises(FormatError, match=r"do not fit its own architecture .*embedding\.weight"):
        checkpoint.load(path)


def test_full_disk_keeps_the_last_checkpoint(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example(step=3).save(path)
    full, real, written = os.open("/dev/full", os.O_RDWR), os.pwrite, 0

    def pwrite(fd: int, data: Any, offset: int) -> int:
        nonlocal written
        written += len(data)
        return real(full if written > 4000 else fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DiskFullError, match=r"checkpoint\.pt: no space left on the device; "):
        example(step=4).save(path)
    monkeypatch.undo()
    os.close(full)
    assert checkpoint.load(path).step == 3
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_load_model_prefers_the_best_weights(tmp_path: Path) -> None:
    example(step=9).save(str(tmp_path / "checkpoint.pt"))
    assert _first(folder.load_model(tmp_path)) == _first_of(example(step=9))
    example(step=5).save(str(tmp_path / "best.pt"))
    assert _first(folder.load_model(tmp_path)) == _first_of(example(step=5))
    assert _first(folder.load_model(tmp_path, "last")) == _first_of(example(step=9))
    assert not folder.load_model(tmp_path).training
    with pytest.raises(ArgumentError, match="which must be 'best' or 'last', got 'first'"):
        folder.load_model(tmp_path, "first")  # type: ignore[arg-type]


def _first(model: GPT) -> float:
    return float(model.embedding.weight.detach()[0, 0])


def _first_of(saved: Checkpoint) -> float:
    return float(saved.model["embedding.weight"][0, 0])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"data": "corpus", "n_layer": 1e400}', '{"n_layer": [[[]]]}', "[]", '{"nope": 1}', "\0"],
)
def test_damaged_settings_raise(text: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(FormatError, match=r"settings\.json: .*settings of a run"):
        folder.read_settings(tmp_path)


def test_settings_round_trip(tmp_path: Path) -> None:
    folder.write_settings(str(tmp_path), tiny("corpus"))
    assert folder.read_settings(tmp_path) == tiny("corpus")
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(FormatError, match=r"settings\.json: does not hold the settings of a run"):
        folder.read_settings(tmp_path)
