"""What a run trains and evaluates on: mixtures, separate validation data, raw tokens, resuming anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._gpt import folder
from lowtide._gpt.sources import anchored, parse
from lowtide.errors import ArgumentError, FormatError
from lowtide.gpt import train

TINY: dict[str, Any] = {
    "n_layer": 1, "n_head": 1, "n_embd": 8, "length": 8, "batch_size": 4, "max_iters": 2, "eval_iters": 2,
    "device": "cpu", "preset": "nanogpt",
}  # fmt: skip


def corpus(path: Path, text: str, **options: Any) -> Path:
    path.with_suffix(".txt").write_text(text * 200)
    lowtide.prepare(path.with_suffix(".txt"), path, workers=1, **options)
    return path


def test_mixture_trains_and_resumes_with_the_same_arguments(tmp_path: Path) -> None:
    web, code = corpus(tmp_path / "web", "the low tide "), corpus(tmp_path / "code", "print(1) ")
    data = [f"web:0.7={web}", f"code:0.3={code}"]
    first = train(tmp_path / "run", data=data, resume="auto", **TINY)
    again = train(tmp_path / "run", data=data, resume="auto", **{**TINY, "max_iters": 4})
    assert (first.step, again.step) == (2, 4)
    whole = train(tmp_path / "whole", data=data, lr_decay_iters=2, **{**TINY, "max_iters": 4})
    assert again.val_loss == whole.val_loss is not None


def test_several_plain_paths_are_one_corpus() -> None:
    assert [one.path for one in parse(["a", "b"])] == [["a", "b"]]


@pytest.mark.parametrize("data", [["web:0.7=a", "b"], ["web:0.7=a", "web:0.3=b"]])
def test_ambiguous_mixture_raises(data: list[str]) -> None:
    with pytest.raises(ArgumentError, match="data: "):
        parse(data)


def test_mixing_different_tokenizers_raises(tmp_path: Path) -> None:
    web = corpus(tmp_path / "web", "the low tide ", tokenizer="char")
    code = corpus(tmp_path / "code", "print(1) ", tokenizer="char")
    with pytest.raises(ArgumentError, match="different tokenizers"):
        train(tmp_path / "run", data=[f"web:1={web}", f"code:1={code}"], **TINY)


def test_separate_validation_data_is_evaluated(tmp_path: Path) -> None:
    np.arange(1000, dtype="<u4").tofile(tmp_path / "a.bin")
    np.arange(100, dtype="<u4").tofile(tmp_path / "b.bin")
    paths: dict[str, Any] = {
        "data": str(tmp_path / "a.bin"),
        "val_data": str(tmp_path / "b.bin"),
        "token_dtype": "uint32",
    }
    outcome = train(tmp_path / "run", **paths, vocab_size=1000, **TINY)
    assert outcome.val_loss is not None
    with pytest.raises(ArgumentError, match="both trained and evaluated on"):
        train(tmp_path / "other", **{**paths, "val_data": paths["data"]}, vocab_size=1000, **TINY)


def test_run_is_resumed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(tmp_path / "data", "the low tide ")
    monkeypatch.chdir(tmp_path)
    train("run", data="data", **TINY)
    assert folder.read_settings("run").data == str(tmp_path / "data")
    monkeypatch.chdir("/")
    assert train(tmp_path / "run", resume=True, max_iters=3).step == 3


def test_config_file_paths_resolve_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command line, with relative paths in its file, starts the run and continues it elsewhere."""
    corpus(tmp_path / "data", "the low tide ")
    (tmp_path / "run.toml").write_text('data = "data"\n')
    for place, steps in ((tmp_path, 2), (Path("/"), 3)):
        monkeypatch.chdir(place)
        options = {**TINY, "max_iters": steps}
        outcome = train(tmp_path / "run", config=tmp_path / "run.toml", resume="auto", **options)
        assert outcome.step == steps
        assert folder.read_settings(tmp_path / "run").data == str(tmp_path / "data")


def test_settings_file_starts_identical_run(tmp_path: Path) -> None:
    corpus(tmp_path / "data", "the low tide ")
    train(tmp_path / "run", data=str(tmp_path / "data"), **TINY)
    train(tmp_path / "again", config=tmp_path / "run" / "settings.json")
    assert folder.read_settings(tmp_path / "again") == folder.read_settings(tmp_path / "run")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(FormatError, match=r"list\.json: is not valid JSON"):
        train(tmp_path / "other", config=tmp_path / "list.json")


def test_anchoring_paths_keeps_mixture_names_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    given = {"data": ["web:0.7=a", "code:0.3=b"], "loss_mask": "m", "init": "gpt2", "val_data": None}
    expected = {"data": ("web:0.7=/a", "code:0.3=/b"), "loss_mask": "/m", "init": "gpt2"}
    assert anchored(given) == expected
