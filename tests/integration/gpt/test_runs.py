"""Whole runs as processes: killed, stopped, out of space, on one rank and on several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from lowtide._gpt import checkpoint
from tests.support.shared import shared
from tests.support.training import TINY, arguments, corpus, environment, lines, losses, run, torchrun

OPTIONS = {**TINY, "max_iters": 200, "dropout": 0.1, "checkpoint_interval": 7, "eval_interval": 50}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory, "corpus", corpus)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""

    def make(folder: Path) -> Path:
        out = folder / "run"
        done = run(out, data=data, **OPTIONS)
        assert done.returncode == 0, done.stderr
        assert f"{out}: done at step 200, best validation loss " in done.stdout
        return out

    return shared(tmp_path_factory, "whole", make)


def started(out: Path, steps: int, **options: Any) -> subprocess.Popen[str]:
    """A run that has reached a step and continues."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lowtide.cli", *arguments(out, **options)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() or len(lines(out)) < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def test_killed_and_resumed_run_is_exact(data: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    # So many steps that it is certainly killed before the end; the schedule is that of the whole run.
    later = {**OPTIONS, "max_iters": 100_000, "lr_decay_iters": 200, "warmup_iters": 20}
    process = started(out, 12, data=data, **later)
    process.kill()
    process.communicate()
    saved = checkpoint.load(str(out / "checkpoint.pt")).step
    assert 7 <= saved < 190, "killed too late to show anything"
    assert saved <= len(lines(out))
    with open(out / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 99')  # a truncated line
    done = run(out, resume=True, max_iters=200)
    assert done.returncode == 0, done.stderr
    assert losses(out) == losses(whole)
    assert lines(out)[-1]["val_loss"] == lines(whole)[-1]["val_loss"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_saves_checkpoint_and_prints_resume_command(
    data: Path, tmp_path: Path, number: int, status: int
) -> None:
    out = tmp_path / "run"
    process = started(out, 3, data=data, **{**OPTIONS, "max_iters": 100_000, "checkpoint_interval": 100_000})
    process.send_signal(number)
    stdout, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "stopped by a signal at step" in stdout
    assert f"continue with: lowtide train --out {out} --resume" in stdout
    assert "Traceback" not in errors
    assert checkpoint.load(str(out / "checkpoint.pt")).step == len(losses(out))


def test_full_disk_keeps_the_last_checkpoint(data: Path, tmp_path: Path) -> None:
    """A real limit on the size of files: the state with AdamW's moments is larger than the first one."""
    out = tmp_path / "run"
    code = f"""
        import resource, signal, sys
        from lowtide.cli import main
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        sys.argv = ["lowtide", *{arguments(out, data=data, **OPTIONS, preset="nanogpt")!r}]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, env=environment(), check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "checkpoint.pt" in done.stderr
    assert "file too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert checkpoint.load(str(out / "checkpoint.pt")).step == 0
    assert not [name for name in os.listdir(out) if "partial" in name]


def test_two_ranks_match_losses_of_one(data: Path, tmp_path: Path) -> None:
    alone, two = tmp_path / "alone", tmp_path / "two"
    options = {**OPTIONS, "dropout": 0.0, "gradient_accumulation_steps": 2, "max_iters": 15}
    assert run(alone, data=data, **options).returncode == 0
    done = torchrun(two, 2, data=data, **options)
    assert done.returncode == 0, done.stderr
    assert losses(two) == pytest.approx(losses(alone), rel=1e-4)
    assert lines(two)[-1]["val_loss"] == pytest.approx(lines(alone)[-1]["val_loss"], rel=1e-4)
    assert [line["tokens"] for line in lines(two)] == [line["tokens"] for line in lines(alone)]


def test_resume_with_different_rank_count_matches(data: Path, tmp_path: Path) -> None:
    """One micro-batch of five windows, on one rank, then on two, with three and two of them."""
    alone, parts = tmp_path / "alone", tmp_path / "parts"
    options = {**OPTIONS, "dropout": 0.0, "batch_size": 5, "eval_interval": 0, "lr_decay_iters": 14}
    assert run(alone, data=data, **{**options, "max_iters": 14}).returncode == 0
    assert run(parts, data=data, **{**options, "max_iters": 7}).returncode == 0
    done = torchrun(parts, 2, resume=True, max_iters=14)
    assert done.returncode == 0, done.stderr
    assert losses(parts)[:7] == losses(alone)[:7]
    assert losses(parts) == pytest.approx(losses(alone), rel=1e-4)


def test_more_ranks_than_windows_raises(data: Path, tmp_path: Path) -> None:
    done = torchrun(tmp_path / "run", 2, data=data, **{**OPTIONS, "batch_size": 1})
    assert done.returncode != 0
    assert "must hold a row for each rank, got 1 for 2 ranks" in done.stderr


def test_wandb_works_offline(data: Path, tmp_path: Path) -> None:
    if not _has_wandb():
        assert not os.environ.get("CI"), "CI installs wandb"
        pytest.skip("no wandb: pip install 'lowtide[wandb]'")
    out = tmp_path / "run"
    env = environment(
        WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CACHE_DIR=str(tmp_path), HOME=str(tmp_path)
    )
    env.pop("PYTHONWARNINGS", None)
    done = subprocess.run(
        [sys.executable, "-m", "lowtide.cli", *arguments(out, data=data, **TINY, wandb=True)],
        capture_output=True, text=True, env=env, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [kept] = (out / "wandb").glob("offline-run-*/*.wandb")
    content = kept.read_bytes()
    assert b"train_loss" in content
    assert b"val_loss" in content
    assert len(losses(out)) == 12


def _has_wandb() -> bool:
    from importlib.util import find_spec

    return find_spec("wandb") is not None
