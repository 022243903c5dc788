"""Exports in the real ``transformers``: the same logits, generation, fine-tuning, the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide
from lowtide._gpt.checkpoint import LAST, Checkpoint
from lowtide._gpt.config import resolve
from lowtide._gpt.folder import write_settings
from lowtide._gpt.model import GPT
from lowtide._prepare.tokenizers import make
from lowtide.errors import ArgumentError
from lowtide.gpt import export, generate
from tests.support.models import ids, model


def run_of(folder: Path, gpt: GPT) -> Path:
    folder.mkdir()
    settings = resolve({"data": "nowhere", "device": "cpu"})
    Checkpoint(0, settings, gpt.config, gpt.state_dict()).save(str(folder / LAST))
    write_settings(str(folder), settings)
    (folder / "tokenizer.json").write_text(make("byte").to_json())
    return folder


@pytest.fixture
def transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with another place for the code of models."""
    import transformers as library
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return library


def loaded(transformers: Any, folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("modern", {}),
        ("modern", {"tied": True, "bias": True}),
        ("rmsnorm", {}),
        ("modern", {"positions": "learned", "activation": "gelu_tanh"}),
        ("nanogpt", {"qk_norm": True, "activation": "gelu"}),
    ],
)
def test_exported_logits_match_lowtide(
    variant: str, changes: dict[str, Any], tmp_path: Path, transformers: Any
) -> None:
    gpt = model(variant, vocab_size=257, **changes)
    files = export(run_of(tmp_path / "run", gpt), tmp_path / "out")
    assert files == sorted(path.name for path in (tmp_path / "out").iterdir())
    theirs = loaded(transformers, tmp_path / "out")
    x = ids(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x).logits, gpt(x)[0], atol=1e-5, rtol=1e-5)
        assert theirs(x, logits_to_keep=1).logits.shape == (3, 1, 257)
    expected = {name: tensor for name, tensor in gpt.state_dict().items() if name != "rotation"}
    assert theirs.state_dict().keys() == expected.keys()
    assert sum(one.numel() for one in theirs.parameters()) >= sum(one.numel() for one in gpt.parameters())


def test_restarting_position_ids_separate_documents(tmp_path: Path, transformers: Any) -> None:
    gpt = model(vocab_size=257)
    export(run_of(tmp_path / "run", gpt), tmp_path / "out")
    theirs, x = loaded(transformers, tmp_path / "out"), ids(2, 16)
    positions = torch.arange(16).repeat(2, 1)
    positions[0, 5:] -= 5
    with torch.no_grad():
        logits = theirs(x, position_ids=positions).logits
        for row, start, stop in ((0, 0, 5), (0, 5, 16), (1, 0, 16)):
            alone = gpt(x[row : row + 1, start:stop])[0][0]
            torch.testing.assert_close(logits[row, start:stop], alone, atol=2e-5, rtol=1e-4)


def test_generation_matches_with_cache_and_padding(tmp_path: Path, transformers: Any) -> None:
    gpt = model(vocab_size=257)
    export(run_of(tmp_path / "run", gpt), tmp_path / "out")
    theirs = loaded(transformers, tmp_path / "out")
    prompt = ids(1, 4)
    expected = list(generate(gpt, prompt[0].tolist(), max_new_tokens=8, temperature=0))
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    for use_cache in (True, False):
        text = theirs.generate(prompt, use_cache=use_cache, **options)
        assert text[0, 4:].tolist() == expected
    # A shorter prompt is padded on the left, and continued as if alone.
    short = ids(1, 2, seed=7)
    batch = torch.cat((prompt, torch.cat((torch.zeros(1, 2, dtype=torch.int64), short), 1)))
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    texts = theirs.generate(batch, attention_mask=mask, **options)
    assert texts[0, 4:].tolist() == expected
    assert texts[1, 4:].tolist() == list(generate(gpt, short[0].tolist(), max_new_tokens=8, temperature=0))


def test_exported_model_can_be_fine_tuned(tmp_path: Path, transformers: Any) -> None:
    gpt = model(vocab_size=257)
    export(run_of(tmp_path / "run", gpt), tmp_path / "out")
    theirs = loaded(transformers, tmp_path / "out").train()
    x = ids(2, 16)
    labels = x.clone()
    labels[:, :3] = -100
    loss = theirs(x, labels=labels).loss
    targets = torch.full_like(x, -1)
    targets[:, 2:-1] = x[:, 3:]
    torch.testing.assert_close(loss, gpt(x, targets)[1], atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(one.grad is not None for one in theirs.parameters())
    theirs.save_pretrained(tmp_path / "saved")
    again = loaded(transformers, tmp_path / "saved")
    assert torch.equal(again.head.weight, theirs.head.weight)


def test_export_includes_tokenizer_and_eos(tmp_path: Path, transformers: Any) -> None:
    for variant in ("modern", "nanogpt"):
        out = tmp_path / f"out-{variant}"
        export(run_of(tmp_path / variant, model(variant, vocab_size=257)), out)
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        assert tokenizer("low tide é")["input_ids"] == list("low tide é".encode())
        assert json.loads((out / "config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id == 256
    assert json.loads((tmp_path / "out-nanogpt" / "config.json").read_text())["model_type"] == "gpt2"


def test_exported_code_does_not_import_lowtide(tmp_path: Path) -> None:
    export(run_of(tmp_path / "run", model(vocab_size=257)), tmp_path / "out")
    code = (tmp_path / "out" / "modeling_lowtide.py").read_text()
    assert not [line for line in code.splitlines() if "import" in line.split() and "lowtide" in line]


def test_export_to_non_empty_folder_raises(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", model(vocab_size=257))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(ArgumentError, match="already exists"):
        export(run, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    assert lowtide.gpt.export is export
