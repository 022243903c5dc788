"""The complete demo, small, in a separate process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lowtide
from lowtide._printable import printable
from lowtide.cli import cli
from tests.support.shared import shared

# A plain `pip install lowtide` has none of these.
EXTRAS = (
    "datasets",
    "h5py",
    "matplotlib",
    "pyarrow",
    "tiktoken",
    "tokenizers",
    "torch",
    "vl_convert",
    "zstandard",
)
QUICK = """
import sys
from dataclasses import replace
from lowtide.demo.tour import QUICK, tour
tour(sys.argv[1], replace(QUICK, text_size=2_000_000, array_size=int(sys.argv[2]) * 2**20))
"""
FULL = """
import sys
from dataclasses import replace
from lowtide.demo.tour import FULL, tour
small = dict(
    n_layer=1, n_head=2, n_embd=16, length=16, batch_size=4, max_iters=6, eval_interval=3, eval_iters=1,
    log_interval=2, device="cpu",
)
small = {**FULL.training, **small}
tour(sys.argv[1], replace(FULL, text_size=2_000_000, array_size=2**24, tokenizer="bpe:300", training=small))
"""


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]


def ran(script: str, *arguments: object, **more: str) -> str:
    done = subprocess.run(
        command(script, *arguments),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **more},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The quick demo, where nothing but the dependencies can be imported."""

    def make(folder: Path) -> tuple[Path, str]:
        (folder / "none").mkdir()
        for name in EXTRAS:
            (folder / "none" / f"{name}.py").write_text(f"raise ImportError('there is no {name} here')")
        places = os.pathsep.join([str(folder / "none"), os.environ.get("PYTHONPATH", "")])
        return folder / "demo", ran(QUICK, folder / "demo", 16, PYTHONPATH=places)

    return shared(tmp_path_factory, "quick", make)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return shared(tmp_path_factory, "full", lambda folder: (folder / "demo", ran(FULL, folder / "demo")))


def test_quick_demo_runs_without_extras(quick: tuple[Path, str]) -> None:
    folder, output = quick
    for title in ("1 of 4 · Text", "2 of 4 · Prepare", "3 of 4 · Two curves", "4 of 4 · Report"):
        assert title in output
    assert "█" in output, "the curve is drawn in the terminal"
    assert "\x1b" not in output, "and plainly where there is none"
    assert f"{folder / 'report.html'}" in output.replace("\n", "")
    assert sorted(one.name for one in folder.iterdir()) == ["corpus", "demo.json", "report.html", "text"]
    assert "<pre>np.memmap, in order" in (folder / "report.html").read_text(), "without matplotlib"


def test_demo_corpus_matches_reported_tokens(quick: tuple[Path, str]) -> None:
    result = json.loads((quick[0] / "demo.json").read_text())
    both = [lowtide.corpus(quick[0] / "corpus", split=split) for split in ("train", "val")]
    assert sum(map(len, both)) == result["tokens"] > 2_000_000
    assert f"{result['documents']} documents, {result['tokens']:,} tokens" in quick[1]


def test_full_demo_trains_and_samples(full: tuple[Path, str]) -> None:
    folder, output = full
    for title in ("4 of 6 · Train", "5 of 6 · Sample", "6 of 6 · Report"):
        assert title in output
    assert "\n6 steps, 384 tokens, " in output
    result = json.loads((folder / "demo.json").read_text())
    assert [line["step"] for line in result["training"]] == list(range(1, 7))
    assert result["sample"].startswith("def __init__(self")
    assert result["sample"] in output, "what the page shows is what was seen"
    text = (folder / "report.html").read_text()
    assert "What it writes" in text
    assert "Memory while training" in text
    assert "<svg" in (folder / "curves.svg").read_text()
    assert not (folder / "scratch").exists()


def test_shown_commands_are_valid(quick: tuple[Path, str], full: tuple[Path, str]) -> None:
    for folder, output in (quick, full):
        result = json.loads((folder / "demo.json").read_text())["commands"]
        assert len(result) == (2 if folder == quick[0] else 4)
        for line in result:
            program, name, *words = shlex.split(line)
            assert program == "lowtide"
            context = cli.make_context("lowtide", [name, *words])
            matches = cli.get_command(context, name)
            assert matches is not None
            matches.make_context(name, words)  # refuses what it does not know
            assert name == "compare" or f"$ {line}" in output


def test_shown_sample_command_reproduces_sample(full: tuple[Path, str]) -> None:
    result = json.loads((full[0] / "demo.json").read_text())
    line = next(line for line in result["commands"] if line.startswith("lowtide sample"))
    again = subprocess.run(
        [sys.executable, "-m", "lowtide.cli", *shlex.split(line)[1:]], capture_output=True, check=True
    )
    assert printable(again.stdout.decode(), keep="\n\t") == result["sample"] + "\n"


def test_second_demo_replaces_the_first(full: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(full[0], folder)
    assert (folder / "run").exists()
    output = ran(QUICK, folder, 16)
    assert "4 of 4 · Report" in output
    assert not (folder / "run").exists(), "what the first one left would be taken for the second's"
    assert "What it writes" not in (folder / "report.html").read_text()


def test_interrupt_leaves_no_array(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    process = subprocess.Popen(
        command(QUICK, folder, 256), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("scratch/*")):
        assert time.monotonic() < deadline, "the array never came"
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the walk as well
    _, output = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in output
    assert sorted(one.name for one in folder.iterdir()) == ["corpus", "demo.json", "text"]
