"""``lowtide train``: options, precedence, errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lowtide._gpt import checkpoint, folder
from lowtide._gpt.config import FIELDS
from lowtide._gpt.gpt2 import to_gpt2
from lowtide._gpt.model import GPT, ModelConfig
from lowtide.cli import cli
from tests.support.process import output
from tests.support.training import TINY, arguments, corpus, losses


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def invoke(out: Path, **options: Any) -> Result:
    return CliRunner().invoke(cli, arguments(out, **options))


def test_help_has_every_setting_and_imports_no_torch() -> None:
    code = """
        import sys
        from click.testing import CliRunner
        from lowtide.cli import cli
        print(CliRunner().invoke(cli, ["train", "--help"]).output)
        assert "torch" not in sys.modules
    """
    text = output(code)
    for name in FIELDS:
        assert f"--{name.replace('_', '-')}" in text


def test_precedence_of_options_file_and_preset(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('preset = "nanogpt"\nmax_iters = 3\nn_layer = 9\nbias = true\n')
    options = {**TINY, "n_layer": 2}
    del options["max_iters"]
    done = invoke(tmp_path / "run", data=data, config=tmp_path / "run.toml", **options)
    assert done.exit_code == 0, done.output
    settings = folder.read_settings(tmp_path / "run")
    assert (settings.preset, settings.max_iters, settings.n_layer, settings.bias) == ("nanogpt", 3, 2, True)
    assert len(losses(tmp_path / "run")) == 3


def test_resuming_needs_only_the_folder(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert invoke(out, data=data, **{**TINY, "max_iters": 3}).exit_code == 0
    done = invoke(out, resume=True, max_iters=5)
    assert done.exit_code == 0, done.output
    assert len(losses(out)) == 5
    refused = invoke(out, resume=True, n_layer=4)
    assert refused.exit_code == 1
    assert "--n-layer was 1 and is 4" in refused.stderr


def test_resuming_a_missing_run_fails(tmp_path: Path) -> None:
    done = invoke(tmp_path / "nothing", resume=True)
    assert done.exit_code == 1
    assert "no checkpoint there" in done.stderr
    assert not os.path.exists(tmp_path / "nothing")


def test_unknown_options_and_choices_fail_with_hints(data: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["train", "--out", str(tmp_path), "--n-layers", "3"])
    assert done.exit_code == 2
    assert "--n-layer" in done.output
    done = invoke(tmp_path, data=data, preset="gpt5")
    assert done.exit_code == 2
    assert "'modern', 'nanogpt'" in done.output


def test_training_starts_from_gpt2_weights(data: Path, tmp_path: Path) -> None:
    config = ModelConfig(
        vocab_size=40, length=16, n_layer=2, n_head=2, n_embd=8, dropout=0.0, bias=True, norm="layernorm",
        positions="learned", activation="gelu_tanh", qk_norm=False, tied=True, zero_init=False,
    )  # fmt: skip
    to_gpt2(GPT(config), tmp_path / "gpt2")
    options = {"device": "cpu", "init": tmp_path / "gpt2", "max_iters": 2, "batch_size": 2}
    done = invoke(tmp_path / "run", data=data, length=12, **options)
    assert done.exit_code == 0, done.output
    saved = checkpoint.load(str(tmp_path / "run" / "checkpoint.pt"))
    assert saved.config == config
    assert (saved.settings.n_layer, saved.settings.length, saved.settings.vocab_size) == (2, 12, 40)
    assert invoke(tmp_path / "run", resume=True, max_iters=3).exit_code == 0
    for wrong, message in (
        ({"n_layer": 3}, "--n-layer is 3, but the weights of --init have 2"),
        ({"length": 17}, "length is too large for the weights of --init (17, expected at most 16)"),
    ):
        done = invoke(tmp_path / "other", data=data, **options, **wrong)
        assert done.exit_code == 1
        assert message in done.stderr


def test_exceeded_memory_budget_exits_with_3(data: Path, tmp_path: Path) -> None:
    done = invoke(tmp_path / "run", data=data, **TINY, memory_budget="1MiB")
    assert done.exit_code == 3
    assert "the budget is 1.0 MiB" in done.output
