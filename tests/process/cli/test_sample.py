"""``lowtide sample`` and ``lowtide export``, from a run folder alone."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from lowtide._gpt.checkpoint import BEST, LAST, Checkpoint
from lowtide._gpt.config import resolve
from lowtide._gpt.folder import TOKENIZER, write_settings
from lowtide._gpt.model import GPT
from lowtide._prepare import tokenizers
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide.cli.export import command as export
from lowtide.cli.sample import command as sample
from lowtide.errors import ArgumentError, LowtideError
from tests.support.models import model

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz"


def make_run(folder: Path, gpt: GPT, tokenizer: tokenizers.Tokenizer | None) -> Path:
    folder.mkdir()
    settings = resolve({"data": "nowhere", "device": "cpu"})
    saved = Checkpoint(0, settings, gpt.config, gpt.state_dict())
    saved.save(str(folder / LAST))
    write_settings(str(folder), settings)
    if tokenizer is not None:
        (folder / TOKENIZER).write_text(tokenizer.to_json())
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", model(vocab_size=28), CharTokenizer(ALPHABET))


def output_of(command: Any, *arguments: object) -> str:
    ended = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_sample_continues_prompt_reproducibly(run: Path) -> None:
    text = output_of(sample, run, "--prompt", "low tide", "--max-new-tokens", 30)
    assert text.startswith("low tide")
    assert len(text) == len("low tide") + 30 + 1
    assert set(text) <= set(ALPHABET)
    assert output_of(sample, run, "--prompt", "low tide", "--max-new-tokens", 30) == text
    assert output_of(sample, run, "--prompt", "low tide", "--max-new-tokens", 30, "--seed", 1) != text


def test_greedy_and_narrow_sampling_agree(run: Path) -> None:
    greedy = output_of(sample, run, "--prompt", "a", "--max-new-tokens", 9, "--temperature", 0)
    assert output_of(sample, run, "--prompt", "a", "--max-new-tokens", 9, "--top-k", 1) == greedy
    assert output_of(sample, run, "--prompt", "a", "--max-new-tokens", 9, "--top-p", 1e-6) == greedy


def test_default_prompt_is_a_new_document(run: Path, tmp_path: Path) -> None:
    assert output_of(sample, run, "--max-new-tokens", 5).startswith("\n")
    other = make_run(tmp_path / "bytes", model(vocab_size=257), tokenizers.make("byte"))
    assert output_of(sample, other, "--max-new-tokens", 0) == "\n"
    assert len(output_of(sample, other, "--max-new-tokens", 5)) > 1


def test_run_folder_is_enough(run: Path) -> None:
    arguments = ["sample", str(run), "--prompt", "sea", "--max-new-tokens", "4"]
    process = subprocess.run(
        [sys.executable, "-m", "lowtide.cli", *arguments], capture_output=True, text=True, check=True
    )
    assert process.stdout == output_of(sample, run, "--prompt", "sea", "--max-new-tokens", 4)
    assert process.stderr == ""


def test_invalid_sample_arguments_raise(run: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        with pytest.raises(LowtideError) as caught:
            output_of(sample, *arguments)
        return str(caught.value)

    assert "no checkpoint there" in refused(tmp_path / "nowhere")
    assert "device 'cuda:7'" in refused(run, "--device", "cuda:7")
    assert "top_p must be a number > 0" in refused(run, "--top-p", 2)
    assert "the prompt has no tokens" in refused(run, "--prompt", "")
    (run / TOKENIZER).unlink()
    assert "pass the tokenizer with --tokenizer" in refused(run)
    assert "no tokenizer 'klingon'" in refused(run, "--tokenizer", "klingon")


def test_tokenizer_option_accepts_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model(vocab_size=257), None)
    assert output_of(sample, run, "--tokenizer", "byte", "--prompt", "x", "--max-new-tokens", 3).startswith(
        "x"
    )


def test_transformers_loads_an_export(tmp_path: Path) -> None:
    import transformers

    gpt = model("nanogpt", vocab_size=28)
    run = make_run(tmp_path / "run", gpt, None)
    text = output_of(export, run, tmp_path / "out")
    assert "config.json, model.safetensors; without a tokenizer" in text
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "gpt2"
    theirs: Any = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    tokens = torch.tensor([[1, 5, 9, 2]])
    torch.testing.assert_close(theirs.eval()(tokens).logits, gpt(tokens)[0], atol=1e-4, rtol=0)
    with pytest.raises(ArgumentError, match="already exists"):
        output_of(export, run, tmp_path / "out")


def test_modern_run_is_exported_with_its_code(run: Path, tmp_path: Path) -> None:
    text = output_of(export, run, tmp_path / "out", "--checkpoint", "last")
    assert text.endswith("tokenizer.json, tokenizer_config.json; load it with trust_remote_code=True\n")
    assert (tmp_path / "out" / "modeling_lowtide.py").exists()


def test_multiple_samples_use_consecutive_seeds(run: Path) -> None:
    options = ("--prompt", "sea", "--max-new-tokens", 5)
    texts = output_of(sample, run, *options, "-n", 3, "--seed", 4).split("-" * 15 + "\n")
    assert texts == [output_of(sample, run, *options, "--seed", seed) for seed in (4, 5, 6)]


def test_checkpoint_option_selects_best_or_last(run: Path) -> None:
    def text(where: Path, *more: str) -> str:
        return output_of(sample, where, "--prompt", "sea", "--max-new-tokens", 9, "--temperature", 0, *more)

    last = text(run)
    with pytest.raises(LowtideError, match="the run was not evaluated, so it has no best checkpoint"):
        text(run, "--checkpoint", "best")
    gpt = model(vocab_size=28, seed=5)
    Checkpoint(0, resolve({"data": "nowhere", "device": "cpu"}), gpt.config, gpt.state_dict()).save(
        str(run / BEST)
    )
    best = text(run)
    assert best == text(run, "--checkpoint", "best") == text(run / BEST)
    assert last == text(run, "--checkpoint", "last") == text(run / LAST) != best


def test_terminal_shows_the_checkpoint_and_its_step(run: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["sample", str(run), "--prompt", "sea", "--max-new-tokens", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "lowtide.cli", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert shown == f"loading the model …\r\x1b[K{run / LAST}, step 0\r\n"
    assert done.stdout.startswith("sea")
