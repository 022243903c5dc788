"""lowtide._gpt.config: settings of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from lowtide._gpt import model
from lowtide._gpt.aliases import upgrade
from lowtide._gpt.config import FIELDS, Settings, changeable, read_file, resolve, type_of, validate
from lowtide._gpt.loop import model_config
from lowtide._gpt.optim import fastest_dtype
from lowtide._gpt.presets import ARCHITECTURES, OPTIMISERS, SIZES
from lowtide.errors import ArgumentError, FormatError, NotFoundError

GIVEN = {"data": "corpus", "device": "cpu"}


def test_settings_include_nanogpt_names() -> None:
    names = (
        "n_layer n_head n_embd length batch_size max_iters learning_rate warmup_iters lr_decay_iters "
        "min_lr beta1 beta2 weight_decay grad_clip gradient_accumulation_steps eval_interval eval_iters "
        "dropout dtype compile device seed init preset"
    )
    assert set(names.split()) <= set(FIELDS)
    assert all(one.metadata["help"] for one in FIELDS.values())


def test_choices_match_the_model() -> None:
    for name, kind in (
        ("norm", model.Norm),
        ("positions", model.Positions),
        ("activation", model.Activation),
    ):
        assert type_of(name)[1] == get_args(kind)
    assert type_of("preset")[1] == tuple(sorted(ARCHITECTURES)) == tuple(sorted(OPTIMISERS))


def test_precedence_of_options_file_and_preset(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('preset = "nanogpt"\nn_layer = 3\nn_head = 2\nnorm = "rmsnorm"\n')
    settings = resolve({**GIVEN, "n_layer": 5}, str(tmp_path / "run.toml"))
    assert (settings.n_layer, settings.n_head, settings.n_embd) == (5, 2, SIZES["cpu"]["n_embd"])
    assert settings.norm == "rmsnorm"
    assert settings.positions == ARCHITECTURES["nanogpt"]["positions"]
    assert settings.learning_rate == OPTIMISERS["nanogpt"]["learning_rate"]


def test_default_sizes_depend_on_the_device() -> None:
    small, large = resolve(GIVEN), resolve({**GIVEN, "device": "cuda"})
    assert (small.n_embd, small.length, small.dtype) == (128, 64, "float32")
    assert (large.n_embd, large.length, large.dtype) == (384, 256, "bfloat16")


def test_settings_are_derived_from_others() -> None:
    settings = resolve({**GIVEN, "max_iters": 50, "learning_rate": 0.02})
    assert settings.lr_decay_iters == 50
    assert settings.warmup_iters == 5
    assert settings.cooldown_iters == 20
    assert settings.min_lr == pytest.approx(0.002)


def test_settings_round_trip() -> None:
    settings = resolve({**GIVEN, "memory_budget": "2GiB", "max_minutes": 3})
    assert Settings(**settings.to_json()) == settings
    assert settings.max_minutes == 3.0


@pytest.mark.parametrize("name", ["nanogpt", "modern"])
def test_preset_decides_the_architecture(name: str) -> None:
    config = model_config(resolve({**GIVEN, "preset": name, "vocab_size": 65}))
    assert {key: getattr(config, key) for key in ARCHITECTURES[name]} == ARCHITECTURES[name]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"n_layers": 4}, r"no setting 'n_layers'; did you mean n_layer", id="name"),
        pytest.param({"xyzzy": 4}, r"no setting 'xyzzy'; known are data, val_data", id="nothing like it"),
        pytest.param({"n_layer": 0}, "n_layer must be an integer >= 1, got 0", id="range"),
        pytest.param({"n_layer": 1.5}, "n_layer must be an integer >= 1, got 1.5", id="float for int"),
        pytest.param({"n_layer": True}, "n_layer must be an integer >= 1, got True", id="bool for int"),
        pytest.param({"bias": 1}, "bias must be true or false, got 1", id="int for bool"),
        pytest.param({"dropout": 1.0}, "dropout must be a number >= 0 and < 1, got 1.0", id="dropout"),
        pytest.param(
            {"learning_rate": float("nan")}, "learning_rate must be a number >= 0, got nan", id="nan"
        ),
        pytest.param({"preset": "gpt5"}, "preset must be one of modern, nanogpt, got 'gpt5'", id="choice"),
        pytest.param({"memory_budget": "lots"}, "memory_budget: size 'lots' is not understood", id="size"),
        pytest.param({"n_head": 3}, "n_embd = 128 for cpu, n_head = 3$", id="heads and width"),
        pytest.param(
            {"min_lr": 0.1, "learning_rate": 0.01},
            "min_lr must not exceed learning_rate, got min_lr = 0.1, learning_rate = 0.01",
            id="rates",
        ),
        pytest.param({"warmup_iters": 3000}, "warmup_iters must not exceed lr_decay_iters", id="warm-up"),
        pytest.param(
            {"schedule": "wsd", "cooldown_iters": 1950}, "must fit into lr_decay_iters", id="cool-down"
        ),
        pytest.param({"dtype": "float16"}, "float16 needs CUDA", id="float16 on a CPU"),
    ],
)
def test_invalid_values_raise(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve({**GIVEN, **given})


def test_config_file_errors_contain_path(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text, message in (
        ("n_embed = 3", r"no setting 'n_embed' in .*run\.toml; did you mean n_embd"),
        ('dtype = "int8"', r"one of float32, bfloat16, float16, got 'int8' in .*run\.toml"),
        ("[model]\nn_layer = 3", r"no setting 'model' in .*run\.toml"),
    ):
        path.write_text(text)
        with pytest.raises(ArgumentError, match=message):
            resolve(GIVEN, str(path))
    path.write_text("n_layer: 3")
    with pytest.raises(FormatError, match=r"run\.toml: is not valid TOML"):
        resolve(GIVEN, str(path))
    with pytest.raises(NotFoundError, match=r"none\.toml"):
        resolve(GIVEN, str(tmp_path / "none.toml"))


def test_missing_data_raises() -> None:
    with pytest.raises(ArgumentError, match="data is missing; pass a corpus with --data"):
        resolve({"device": "cpu"})


def test_block_size_is_a_deprecated_alias(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("block_size = 32")
    with pytest.warns(DeprecationWarning, match=r"run\.toml: block_size is deprecated .* use length"):
        settings = resolve(GIVEN, str(tmp_path / "run.toml"))
    values = settings.to_json()
    values["block_size"] = values.pop("length")
    with pytest.warns(DeprecationWarning, match=r"Settings: block_size is deprecated"):
        assert Settings(**values) == settings
    with pytest.warns(DeprecationWarning, match=r"use Settings\.length"):
        assert settings.block_size == 32  # type: ignore[attr-defined]


def test_muon_dtype_default_override_and_upgrade() -> None:
    settings = resolve({**GIVEN, "preset": "modern"})
    assert settings.muon_dtype == fastest_dtype("cpu")
    assert resolve({**GIVEN, "muon_dtype": "bfloat16"}).muon_dtype == "bfloat16"
    assert resolve({"data": "corpus", "device": "cuda"}).muon_dtype == "bfloat16"
    values = settings.to_json()
    del values["muon_dtype"]
    assert Settings(**upgrade(values)).muon_dtype == "bfloat16"


class TestResuming:
    base = resolve({**GIVEN, "n_layer": 2, "learning_rate": 0.01})

    def test_settings_are_kept(self) -> None:
        assert resolve({}, base=self.base) == self.base
        assert resolve({"n_layer": 2}, base=self.base) == self.base

    def test_changeable_settings_are_applied(self) -> None:
        settings = resolve({"max_iters": 9000, "data": "elsewhere"}, base=self.base)
        assert (settings.max_iters, settings.data) == (9000, "elsewhere")
        assert settings.lr_decay_iters == self.base.lr_decay_iters == 2000

    def test_unchangeable_settings_raise(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text("learning_rate = 0.5")
        with pytest.raises(ArgumentError) as caught:
            resolve({"n_layer": 3}, str(tmp_path / "run.toml"), base=self.base)
        assert "n_layer was 2 and is 3" in str(caught.value)
        assert "learning_rate was 0.01 and is 0.5 in " in str(caught.value)
        assert "max_iters" in str(caught.value)

    def test_list_of_changeable_settings(self) -> None:
        assert set(changeable()) == {
            "data", "val_data", "token_dtype", "max_iters", "max_minutes", "eval_interval", "eval_iters",
            "val_split", "loss_mask",
            "checkpoint_interval", "log_interval", "device", "dtype", "muon_dtype", "compile",
            "memory_budget", "over_budget", "wandb",
        }  # fmt: skip


def test_sizes_come_from_initial_weights() -> None:
    weights = {"n_layer": 7, "n_head": 2, "n_embd": 32}
    assert resolve(GIVEN, weights=weights).n_layer == 7
    with pytest.raises(ArgumentError, match="n_layer is 3, but the weights of --init have 7"):
        resolve({**GIVEN, "n_layer": 3}, weights=weights)


def test_integers_are_accepted_for_floats() -> None:
    assert validate("learning_rate", 1) == 1.0
    assert type(validate("learning_rate", 1)) is float


def test_guide_has_every_setting() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (may change)? \| ([^|]+) \|$", guide, re.MULTILINE)
    assert rows == [
        (name, "may change" if one.metadata["may_change"] else "", one.metadata["help"])
        for name, one in FIELDS.items()
    ]


@pytest.mark.parametrize(
    "text",
    ["n_layer = " + "9" * 30, "n_layer = " + "9" * 5000, "learning_rate = " + "9" * 400,
     "a = " + "[" * 10_000,
     "x" * 20_000 + " = 1", 'preset = ["modern"]', "\0", "#" * 2**21, "memory_budget = '" + "9" * 5000 + "'",
     "memory_budget = '99999999999999999999TiB'"],
    ids=lambda text: text[:18],
)  # fmt: skip
def test_damaged_files_raise_short_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises((ArgumentError, FormatError), match=r"run\.toml") as caught:
        read_file(str(path))
    assert len(str(caught.value)) < 1000
