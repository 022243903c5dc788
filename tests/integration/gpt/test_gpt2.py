"""GPT-2's weights: from ``transformers`` and back to it, and what cannot be loaded."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lowtide import errors
from lowtide._gpt.gpt2 import from_gpt2, to_gpt2
from tests.support.models import ids, model


def small_gpt2(seed: int = 0, **changed: Any) -> Any:
    """As ``transformers`` makes them, with biases that are not all zero."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 24, "n_layer": 3, "n_head": 4}
    special = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(**{**sizes, **special, **changed})
    gpt2: Any = transformers.GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    gpt2.eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return gpt2


def scores(theirs: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = theirs(tokens).logits
    return logits


@pytest.mark.parametrize(
    "changed",
    [{}, {"activation_function": "gelu"}, {"tie_word_embeddings": False}, {"n_inner": 96}],
    ids=lambda changed: next(iter(changed), "as it is"),
)
def test_saved_transformers_model_loads(changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = small_gpt2(**changed)
    theirs.save_pretrained(tmp_path / "gpt2")
    ours = from_gpt2(tmp_path / "gpt2")
    tokens = ids(3, 16)
    torch.testing.assert_close(ours(tokens)[0], scores(theirs, tokens), atol=1e-4, rtol=0)
    assert not ours.training
    assert ours.config.tied is changed.get("tie_word_embeddings", True)
    assert from_gpt2(tmp_path / "gpt2", dropout=0.1).config.dropout == 0.1


def test_sharded_weights_load(tmp_path: Path) -> None:
    theirs = small_gpt2()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = ids(1, 8)
    torch.testing.assert_close(from_gpt2(tmp_path)(tokens)[0], scores(theirs, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", ["nanogpt", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_an_export(variant: str, tied: bool, tmp_path: Path) -> None:
    ours = model(variant, tied=tied)
    to_gpt2(ours, tmp_path / "new" / "exported")
    kind: Any = transformers.GPT2LMHeadModel
    theirs, info = kind.from_pretrained(tmp_path / "new" / "exported", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokens = ids(3, 16)
    torch.testing.assert_close(scores(theirs.eval(), tokens), ours(tokens)[0], atol=1e-4, rtol=0)
    again = from_gpt2(tmp_path / "new" / "exported")
    torch.testing.assert_close(again(tokens)[0], ours(tokens)[0], atol=1e-6, rtol=0)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["exported"]


def test_modern_model_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match=r"positions 'rotary'.*--preset nanogpt"):
        to_gpt2(model("modern"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    with pytest.raises(errors.ArgumentError, match="already exists"):
        to_gpt2(model("nanogpt"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_export_follows_links(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "large disk")
    to_gpt2(model("nanogpt"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "large disk" / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large disk", "link"]


def test_file_is_not_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.npy").touch()
    with pytest.raises(errors.ReadError, match=r"model\.npy: .* is a file, not a folder"):
        from_gpt2("model.npy")


def test_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.DiskFullError, match="no space left"):
        to_gpt2(model("nanogpt"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_killed_export_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    ours = model("nanogpt")
    child = os.fork()
    if not child:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        to_gpt2(ours, tmp_path / "out")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    to_gpt2(ours, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model_type", "llama", r"model_type is not supported \('llama', expected 'gpt2'\)"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx is not supported"),
        ("n_inner", 33, r"n_inner is not supported \(33, expected 96\)"),
        ("layer_norm_epsilon", 1e-6, r"layer_norm_epsilon is not supported \(1e-06"),
        (
            "activation_function",
            "silu",
            r"activation_function is not supported \('silu'",
        ),
        ("n_layer", 4, "lacks 12 of the model's tensors, such as blocks.3.attention.out.bias"),
        ("n_layer", 2, "has transformer.h.2.attn.c_attn.bias twice, or it is not part"),
        (
            "vocab_size",
            51,
            re.escape("wte.weight does not match config.json (shape (50, 24), expected (51, 24))"),
        ),
    ],
)
def test_unsupported_model_config_raises(name: str, value: Any, message: str, tmp_path: Path) -> None:
    small_gpt2().save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**record, name: value}))
    with pytest.raises((errors.UnsupportedError, errors.FormatError), match=message):
        from_gpt2(tmp_path)


def test_damaged_folders_raise(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match=r"config\.json"):
        from_gpt2(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(errors.FormatError, match="cannot read the configuration of a GPT-2"):
        from_gpt2(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(errors.FormatError, match="no integer for vocab_size, n_layer"):
        from_gpt2(tmp_path)
    small_gpt2().save_pretrained(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(errors.FormatError, match="is not a complete safetensors file"):
        from_gpt2(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(errors.FormatError, match=r"has no model\.safetensors"):
        from_gpt2(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with pytest.raises(errors.FormatError, match=r"lists files outside its folder"):
        from_gpt2(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"vocab_size": 10**12},
        {"n_layer": 10**9},
        {"n_embd": 2**62, "n_head": 1},
        {"n_positions": 10**15},
        {"n_head": 0},
        {"n_embd": -24},
        {"n_layer": "3"},
        {"n_head": 4.0},
        {"vocab_size": True},
        {"tie_word_embeddings": "no"},
        {"activation_function": ["gelu"]},
        {"n_inner": [[]] * 5000},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_impossible_configuration_raises_without_allocating(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_gpt2().save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**record, **changed}))
    monkeypatch.setattr("lowtide._gpt.gpt2.GPT", lambda config: pytest.fail("a model was gpt2"))
    with pytest.raises((errors.FormatError, errors.UnsupportedError)) as caught:
        from_gpt2(tmp_path)
    assert "config.json" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_integer_weights_raise(tmp_path: Path) -> None:
    small_gpt2().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "transformer.wpe.weight"
    save_file({**tensors, name: tensors[name].to(torch.int32)}, path)
    with pytest.raises(errors.UnsupportedError, match=r"wpe\.weight has an unsupported dtype \(I32"):
        from_gpt2(tmp_path)


@pytest.mark.parametrize(
    "index", ['{"weight_map": {"a": "config.json"}}', '{"weight_map": {}}', "[" * 10_000]
)
def test_invalid_index_raises(index: str, tmp_path: Path) -> None:
    small_gpt2().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(errors.FormatError, match=r"index\.json"):
        from_gpt2(tmp_path)


def test_model_name_is_looked_up_in_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the Hub's client lays its cache out, with no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(errors.ReadError, match=r"gpt2: not a folder.*hf download gpt2 --local-dir"):
        from_gpt2("gpt2")
    kept = tmp_path / "models--gpt2"
    theirs = small_gpt2()
    theirs.save_pretrained(kept / "snapshots" / "0123456789abcdef0123456789abcdef01234567")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123456789abcdef0123456789abcdef01234567")
    tokens = ids(1, 5)
    torch.testing.assert_close(from_gpt2("gpt2")(tokens)[0], scores(theirs, tokens), atol=1e-4, rtol=0)
    with pytest.raises(errors.NotFoundError, match="no such folder"):
        from_gpt2(str(tmp_path / "nowhere"))
