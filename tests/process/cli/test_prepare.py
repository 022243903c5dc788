"""``lowtide prepare`` and ``lowtide info --verify`` as a user calls them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide
from lowtide._prepare.summary import Progress
from lowtide.cli.prepare_progress import figures, showing
from tests.process.cli.test_commands import run
from tests.support.preparing import as_bytes, content, documents, jsonl


def test_options_match_function_arguments(tmp_path: Path) -> None:
    text = "low tide||high tide||" * 50
    (tmp_path / "sea.txt").write_text(text)
    result = run(
        "prepare", tmp_path / "sea.txt", "-o", tmp_path / "cli", "--tokenizer", "char",
        "--val-fraction", "0.3", "--holdout", "documents", "--seed", "7", "--split-on", "||", "--no-eos",
        "--layout", "llmc",
        "--shard-tokens", "0.1k", "--meta-pkl", "--on-error", "replace-or-skip", "--workers", "1",
        "--text-field", "body", "--glob", "*.txt",
    )  # fmt: skip
    lowtide.prepare(
        tmp_path / "sea.txt", tmp_path / "function", tokenizer="char", val_fraction=0.3, holdout="documents",
        seed=7, split_on="||", eos=False, layout="llmc", shard_tokens=100, meta_pkl=True,
        on_error="replace-or-skip", workers=2, text_field="body", glob="*.txt",
    )  # fmt: skip
    assert content(tmp_path / "cli") == content(tmp_path / "function")
    for part in ("tokens in 100 documents", "train", "val", "tokens per document", "###"):
        assert part in result.stdout


def test_standard_input_is_split_on_escaped_newlines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lowtide.cli", "prepare", "-", "-o", str(tmp_path / "out")]
    command += ["--split-on", "\\n\\n", "--val-fraction", "0"]
    subprocess.run(command, input=b"low\n\ntide", check=True, capture_output=True)
    assert documents(tmp_path / "out", "train") == [as_bytes("low"), as_bytes("tide")]


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    jsonl(tmp_path / "web.jsonl", 50)
    out = tmp_path / "out"
    run("prepare", tmp_path / "web.jsonl", "-o", out, "--val-fraction", "0.2", "--shard-tokens", "2k")
    assert "all as written" in run("info", "--verify", out).stdout
    result = json.loads(run("info", "--verify", "--json", out).stdout)
    assert result["files"] == len(list(out.glob("[!.]*"))) - 1
    assert result["nbytes"] == sum(
        path.stat().st_size for path in out.glob("[!.]*") if path.name != "corpus.json"
    )
    for name in ("train-00001.bin", "val-00000.ends", "tokenizer.json"):
        before = (out / name).read_bytes()
        (out / name).write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        ended = run("info", "--verify", out, check=False)
        assert ended.returncode == 1
        assert name in ended.stderr
        assert "1 of" in ended.stderr
        (out / name).write_bytes(before)
    (out / "train-00000.bin").unlink()
    assert "no such file" in run("info", "--verify", out, check=False).stderr


def test_errors_have_message_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text":\n')
    ended = run("prepare", tmp_path / "bad.jsonl", "-o", tmp_path / "out", check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("lowtide: ")
    assert "line 2" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert run("prepare", tmp_path / "bad.jsonl", check=False).returncode == 2
    ended = run("prepare", tmp_path / "bad.jsonl", "-o", tmp_path, "--shard-tokens", "many", check=False)
    assert "'many' is not understood" in ended.stderr


def test_progress_lines_are_printed_at_interval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with showing() as show:
        for second in range(12):
            now[0] = 100.0 + second
            show(Progress("tokens", second, 20, 0, documents=second, tokens=1000 * second))
    result = capsys.readouterr().err.splitlines()
    assert result == [
        "tokens 25 %, 5 B of 20 B, 5 documents, 5,000 tokens, 1,000 tokens/s, 0:00:15 left",
        "tokens 50 %, 10 B of 20 B, 10 documents, 10,000 tokens, 1,000 tokens/s, 0:00:10 left",
    ]


def test_speed_is_that_of_the_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with showing() as show:
        show(Progress("alphabet", 0, 20, 0, documents=0, tokens=0))
        now[0] = 150.0
        show(Progress("tokens", 0, 20, 0, documents=0, tokens=0))
        now[0] = 160.0
        show(Progress("tokens", 10, 20, 0, documents=5, tokens=5000))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "tokens 50 %, 10 B of 20 B, 5 documents, 5,000 tokens, 500 tokens/s, 0:00:10 left"


def test_terminal_shows_progress_bar(tmp_path: Path) -> None:
    jsonl(tmp_path / "web.jsonl", 50)
    code = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    command = [sys.executable, "-m", "lowtide.cli", "prepare", str(tmp_path / "web.jsonl"), "-o"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert "50 documents" in done.stdout
    assert "━" in done.stdout
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    bars = [line for line in re.split(r"[\r\n]+", shown) if "━" in line]
    assert bars
    assert max(map(len, bars)) <= 80


def test_bar_fits_80_columns() -> None:
    progress = Progress("tokens", 10**10, 10**11, 0, documents=123_456_789, tokens=10**10)
    for width in (40, 53, 73, 93):
        line = figures(progress, 4567.0, width)
        assert len(line) <= width
        assert line.endswith(" left")
    assert figures(Progress("training", 2**25, 2**25, 0, 0, 0), 1.0) == "the tokenizer, on 32.0 MiB of text"


def test_deprecated_options_warn_and_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "sea.txt").write_bytes(b"low \xff tide " * 50)
    pairs = {
        "--split=contiguous": "--holdout=contiguous",
        "--errors=replace": "--on-error=replace",
    }
    command = ("prepare", tmp_path / "sea.txt", "--val-fraction=0.1", "--workers=1")
    old = run(*command, "-o", tmp_path / "old", *pairs)
    new = run(*command, "-o", tmp_path / "new", *pairs.values())
    assert content(tmp_path / "old") == content(tmp_path / "new")
    for option in ("--split", "--errors"):
        assert f"lowtide: {option} is deprecated; use --" in old.stderr
    assert "deprecated" not in new.stderr
