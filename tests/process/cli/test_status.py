"""How commands end: one line for every error, and the exit status that the guide documents."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import zstandard

import lowtide as library
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide.cli import COMMANDS, status
from lowtide.errors import NotFoundError, TruncatedFileError
from tests.process.cli.test_sample import ALPHABET, make_run
from tests.support import guide
from tests.support.command import lowtide, refusal
from tests.support.models import model

LOWTIDE = shlex.join([sys.executable, "-m", "lowtide.cli"])


def cut(path: Path, part: float = 0.6) -> Path:
    """The same file without its end."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind that commands read, each without its end."""
    folder = tmp_path_factory.mktemp("truncated")
    array = np.arange(4000.0).reshape(500, 8)
    np.save(folder / "a.npy", array)
    np.savez(folder / "a.npz", x=array)
    import_module("safetensors.numpy").save_file({"x": array}, folder / "a.safetensors")
    with import_module("h5py").File(folder / "a.h5", "w") as file:
        file["x"] = array
    lines = "".join(json.dumps({"text": f"{number} tides"}) + "\n" for number in range(3000)).encode()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    arrow: Any = import_module("pyarrow")
    import_module("pyarrow.parquet").write_table(arrow.table({"text": ["tide"] * 100}), folder / "a.parquet")
    for name in ("a.npy", "a.npz", "a.safetensors", "a.h5", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        cut(folder / name)
    (folder / "empty.npy").touch()
    (folder / "books").mkdir()
    (folder / "books" / "one.txt").write_text("The tide goes out. " * 500)
    for layout in ("shards", "llmc"):
        library.prepare(folder / "books", folder / layout, layout=layout, val_fraction=0)
        [shard] = (folder / layout).glob("*train*.bin")
        cut(shard)
    run = make_run(folder / "run", model(vocab_size=28), CharTokenizer(ALPHABET))
    cut(run / "checkpoint.pt")
    (folder / "profile.json").write_text('{"lowtide_profile": 1, "verdict": "bound')
    return folder


@pytest.mark.parametrize(
    "line",
    [
        *(
            f"info {name}"
            for name in ("a.npy", "a.npz", "a.safetensors", "a.h5", "empty.npy", "shards", "llmc")
        ),
        "info --json a.npy",
        "info --name x a.npz",
        "info --verify shards",
        *(f"shuffle {name} out.npy" for name in ("a.npy", "a.npz", "a.safetensors", "a.h5")),
        *(f"compare {name} --out ''" for name in ("a.npy", "a.npz", "a.safetensors")),
        *(f"prepare a.{suffix} -o out --workers 1" for suffix in ("jsonl.gz", "jsonl.zst", "parquet")),
        "prepare a.jsonl.gz books -o out --workers 2",
        "train --data shards --out new",
        "train --data llmc --vocab-size 300 --out new",
        "train --out run --resume",
        "sample run",
        "export run out",
        "report profile.json",
    ],
)
def test_truncated_file_is_one_line_on_standard_error(
    line: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    output = refusal(*shlex.split(line))
    named = re.findall(r"(?:a|empty)\.[a-z.]+|shards|llmc|run|profile\.json", line)[0]
    assert named in output, "it names the file"
    assert not (files / "out").exists()


def test_error_of_a_worker_is_its_message_alone(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"text":\n')
    (tmp_path / "good.txt").write_text("tide " * 1000)
    output = refusal("prepare", bad, tmp_path / "good.txt", "-o", tmp_path / "out", "--workers", 2)
    assert "bad.jsonl" in output
    assert "line 2" in output


def test_info_shows_the_good_files_beside_a_damaged_one(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        np.save(tmp_path / f"{name}.npy", np.zeros((3, 4)))
    cut(tmp_path / "b.npy")
    (tmp_path / "notes.txt").write_text("not an array")
    for words in ([tmp_path], [tmp_path / "*.npy"], [tmp_path / f"{name}.npy" for name in "abc"]):
        done = lowtide("info", *words)
        assert done.returncode == 1
        assert done.stdout.count("(3, 4)") == 2
        assert done.stdout.count("damaged") == 1
        assert done.stderr.count("\n") == 1
        assert re.match(r"lowtide: .*b\.npy: truncated or still being written", done.stderr)
    (tmp_path / "b.npy").write_bytes(b"")
    done = lowtide("info", "--json", *(tmp_path / f"{name}.npy" for name in "abc"))
    assert done.returncode == 1
    first, second, third = json.loads(done.stdout)
    assert first["arrays"][0]["shape"] == third["arrays"][0]["shape"] == [3, 4]
    assert "empty or not yet written" in second["problem"]


def test_info_reports_damaged_member(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", good=np.zeros(3), bad=np.ones(5))
    data = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(data.replace(b"'shape': (5,)", b"'shape': (9,)"))
    done = lowtide("info", tmp_path / "x.npz")
    assert done.returncode == 1
    assert "(3,)" in done.stdout
    assert re.match(r"lowtide: .*x\.npz\['bad'\]: ", done.stderr)
    np.savez_compressed(tmp_path / "y.npz", a=np.zeros(3))
    assert lowtide("info", tmp_path / "y.npz").returncode == 0, "a compressed file is not a damaged one"


def test_info_recognises_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model(vocab_size=28), None)
    done = lowtide("info", run / "checkpoint.pt")
    assert done.returncode == 0
    assert "PyTorch" in done.stdout
    assert done.stdout.count("\n") == 1, "no empty table"


# Ends the process as Ctrl-C would, when the function ``where`` is called.
INTERRUPT = """
import os, signal, sys, time
from importlib import import_module
module, _, name = sys.argv.pop(1).partition(":")
def interrupt(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
setattr(import_module(module), name, interrupt)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_before_command_exits_with_130(name: str) -> None:
    done = lowtide("lowtide.cli:import_module", name, before=INTERRUPT)
    assert (done.returncode, done.stderr) == (130, "lowtide: interrupted\n")


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("lowtide._arrays.formats.npy:read_header", "info a.npy"),
        ("lowtide._arrays.formats.npy:read_header", "compare a.npy"),
        ("lowtide._arrays.shuffling:shuffle", "shuffle a.npy out.npy"),
        ("lowtide._gpt.train:Data", "train --data books --out new"),
        ("lowtide._gpt.checkpoint:load", "train --out run --resume"),
        ("lowtide._gpt.folder:load_weights", "sample run"),
        ("lowtide._gpt.generate:generate", "sample run"),
        ("lowtide._gpt.folder:load_model", "export run new"),
        ("lowtide._memory.profile.document:load", "report profile.json"),
        ("lowtide._memory.doctor:examine", "doctor"),
        ("lowtide._memory.profile.profiler:attach", "watch 1"),
    ],
)
def test_ctrl_c_during_command_exits_with_130(
    where: str, line: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros((3, 4)))
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("tide")
    if line.startswith("sample"):
        make_run(tmp_path / "run", model(vocab_size=28), CharTokenizer(ALPHABET))
    done = lowtide(where, *shlex.split(line), before=INTERRUPT)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("lowtide: interrupted")
    assert done.stderr.count("\n") == 1


def test_interrupted_prepare_prints_how_to_resume(tmp_path: Path) -> None:
    done = lowtide("lowtide:prepare", "prepare", tmp_path, "-o", "corpus", before=INTERRUPT)
    assert done.stderr == "lowtide: interrupted; run the same command again to resume in corpus\n"


# Standard output is a pipe that nobody reads any more.
UNREAD = "import os; end, start = os.pipe(); os.close(end); os.dup2(start, 1)"


@pytest.mark.parametrize("line", ["info a.npy", "info --json a.npy", "doctor", "completion bash"])
def test_closed_pipe_exits_without_traceback(line: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros(3))
    done = lowtide(*shlex.split(line), before=UNREAD)
    assert (done.returncode, done.stderr) == (141, "")


def test_full_disk_on_standard_output_is_one_line_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    script = f"{LOWTIDE} info a.npy > /dev/full"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, "lowtide: No space left on device\n")


def test_exit_statuses_match_guide(files: Path) -> None:
    """Each number in the table of the commands' page, by a command that ends with it."""
    page = (guide.ROOT / "docs" / "commands" / "index.md").read_text()
    table = page.partition("| exit status | meaning |")[2].partition("\n\n")[0]
    documented = {
        int(number) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for number in cell.split(",")
    }
    endings: dict[int, list[object]] = {
        0: ["--version"],
        1: ["info", files / "a.npy"],
        2: ["info"],
        3: ["profile", "--budget", "1KiB", "--", "sleep", "0.2"],
        125: ["profile", "--json", files / "no" / "x.json", "--", "true"],
        126: ["profile", "--", files],
        127: ["profile", "--", "no-such-command"],
        130: ["profile", "--", "sh", "-c", "kill -INT $$"],
        143: ["profile", "--", "sh", "-c", "kill -TERM $$"],
    }
    assert documented == {*endings, status.UNREAD}
    for number, words in endings.items():
        assert lowtide(*words).returncode == number, words
    assert lowtide("doctor", before=UNREAD).returncode == status.UNREAD


def test_misspelt_command_suggests_correction() -> None:
    done = lowtide("shufle")
    assert done.returncode == 2
    assert "Did you mean 'shuffle'?" in done.stderr
    assert "Did you mean" not in lowtide("nonsense").stderr


def test_os_errors_start_with_path() -> None:
    error = NotFoundError(2, "no such file", "a.npy")
    assert str(error) == "a.npy: no such file"
    assert (error.errno, error.filename) == (2, "a.npy")
    assert str(TruncatedFileError("a.npy: ends early")) == "a.npy: ends early"
    assert status.explain(OSError(28, "No space left", "b.json")) == "b.json: No space left"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("pass it: lowtide.open('/a b.bin', dtype='uint16')", "pass it: --dtype uint16"),
        (
            "as lowtide.open('a', dtype='<u2', shape=(2, 3), offset=72)",
            "as --dtype <u2 --shape 2,3 --offset 72",
        ),
        ("lowtide.open('a', dtype=..., shape=...)", "--dtype ... --shape ..."),
        ("pick one, as in lowtide.open('a.npz', name='x')", "pick one, as in --name x"),
        ("lowtide.corpus('a', split='val')", "lowtide.corpus('a', split='val')"),
        ("or pass dtype=, or copy it again", "or pass --dtype, or copy it again"),
        ("pass on_error='replace' to read", "pass --on-error replace to read"),
        ("on_error='other'", "on_error='other'"),
        ("take a larger val_fraction", "take a larger --val-fraction"),
        ("the field (val_fraction)", "the field (--val-fraction)"),
        ("/data/val_fraction/x: 'val_fraction'", "/data/val_fraction/x: 'val_fraction'"),
        ("pass overwrite (--overwrite) to", "pass --overwrite to"),
        ("x=1, reader='remap'", "x=1, reader='remap'"),
    ],
)
def test_messages_replace_arguments_with_options(output: str, shown: str) -> None:
    flags = ["--dtype", "--shape", "--offset", "--val-fraction", "--overwrite"]
    options = [click.Option([flag]) for flag in flags]
    options += [click.Option(["--name", "member"])]
    options += [click.Option(["--on-error"], type=click.Choice(["raise", "replace"]))]
    assert status.in_options(output, click.Command("x", params=[*options])) == shown
    assert (
        status.in_options(output, None).replace("pass --overwrite", "pass overwrite (--overwrite)") == output
    )


def test_errors_suggest_command_line_options(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(64))
    assert "--dtype uint16" in refusal("info", tmp_path / "a.raw")
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3))
    assert "--name x" in refusal("shuffle", tmp_path / "a.npz", tmp_path / "b.npy")
    (tmp_path / "a.jsonl").write_text('{"content": "tide"}\n')
    assert "--text-field" in refusal("prepare", tmp_path / "a.jsonl", "-o", tmp_path / "out")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert "--on-error replace" in refusal("prepare", tmp_path / "a.txt", "-o", tmp_path / "new")
    output = refusal("train", "--data", tmp_path / "a.raw", "--out", tmp_path / "run")
    assert "--dtype uint16" not in output, "which is another setting there"
