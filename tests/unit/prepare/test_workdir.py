"""A work folder that was damaged between two runs: what does not match is made again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import lowtide
from lowtide._prepare import workdir
from lowtide._prepare.merge import Merger
from lowtide._tokens.formats import own
from lowtide.errors import StateError
from tests.support.examples import EXAMPLES
from tests.support.formats import refused
from tests.support.preparing import content, jsonl, small, stop

CASES = round(0.4 * EXAMPLES)
OPTIONS: dict[str, dict[str, Any]] = {
    "byte": {"val_fraction": 0.1, "shard_tokens": 3000},
    "llmc": {"val_fraction": 0.1, "shard_tokens": 3000, "layout": "llmc"},
    "char": {"val_fraction": 0.1, "tokenizer": "char", "layout": "nanogpt", "holdout": "contiguous"},
    "bpe": {"val_fraction": 0.1, "tokenizer": "bpe:300", "holdout": "contiguous", "shard_tokens": 3000},
}
MOMENTS = {
    "tasks": (Merger, "consume", 7),
    "state": (Merger, "consume", 9),
    "end": (Merger, "finish", 1),
    "publishing": (own, "write", 1),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "web.jsonl"
    jsonl(path, 200)
    return path


@pytest.fixture(scope="module", params=[(name, moment) for name in OPTIONS for moment in MOMENTS], ids=str)
def stopped(request: Any, source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of a run that was stopped, and its options."""
    name, moment = request.param
    out = tmp_path_factory.mktemp(moment) / "out"
    stop(*MOMENTS[moment], sources=source, out=out, **OPTIONS[name])
    return out, name


@pytest.fixture(scope="module")
def whole(source: Path) -> dict[str, dict[str, str]]:
    """What runs that nobody stops write."""
    corpora = {}
    for name, options in OPTIONS.items():
        with small():
            lowtide.prepare(source, source.parent / name, workers=1, **options)
        corpora[name] = content(source.parent / name)
    return corpora


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of runs: what a loss of power would leave is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def flip(path: Path, other: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, other: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def delete(path: Path, other: Path, chance: random.Random) -> None:
    path.unlink()


def duplicate(path: Path, other: Path, chance: random.Random) -> None:
    other.write_bytes(path.read_bytes())


def add(path: Path, other: Path, chance: random.Random) -> None:
    name = chance.choice(["99999999.json", "x", "00000000.train.bin", "00000001.json"])
    path.with_name(name).write_bytes(path.read_bytes())


def swap(path: Path, other: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def zero(path: Path, other: Path, chance: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def extend(path: Path, other: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(8))


def folder_instead(path: Path, other: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def nothing_but_a_pipe(path: Path, other: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = [
    flip,
    flip,
    truncate,
    delete,
    duplicate,
    add,
    swap,
    zero,
    extend,
    folder_instead,
    nothing_but_a_pipe,
]


def test_resuming_damaged_work_folder_gives_same_bytes(
    source: Path, stopped: tuple[Path, str], whole: Any, tmp_path: Path
) -> None:
    pristine, name = stopped
    for case in range(CASES):
        chance = random.Random(f"{name} {pristine.parent.name} {case}")
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(pristine, out)
        files = sorted(
            path for path in (out / ".prepare").rglob("*") if path.is_file() and path.name != "lock"
        )
        damage = chance.choice(DAMAGES)
        damage(chance.choice(files), chance.choice(files), chance)
        with small():
            lowtide.prepare(source, out, workers=1, **OPTIONS[name])
        assert content(out) == whole[name], (case, damage.__name__)


@pytest.mark.parametrize("damaged", ["state.json", "plan.json", "out/train-00000.bin", "tokenizer.json"])
def test_repeated_work_is_reported(tmp_path: Path, source: Path, damaged: str) -> None:
    stop(*MOMENTS["state"], sources=source, out=tmp_path / "out", **OPTIONS["byte"])
    path = tmp_path / "out" / ".prepare" / damaged
    path.write_bytes(path.read_bytes()[:-1])
    with small():
        summary = lowtide.prepare(source, tmp_path / "out", workers=1, **OPTIONS["byte"])
    assert f"the work folder was damaged ({damaged}); the damaged files were made again" in summary.notes


def test_undamaged_folder_is_resumed_without_note(
    source: Path, stopped: tuple[Path, str], whole: Any, tmp_path: Path
) -> None:
    pristine, name = stopped
    shutil.copytree(pristine, tmp_path / "out")
    reports: list[Any] = []
    with small():
        summary = lowtide.prepare(
            source, tmp_path / "out", workers=1, progress=reports.append, **OPTIONS[name]
        )
    assert reports[0].earlier > 0
    assert not any("damaged" in note for note in summary.notes)
    assert content(tmp_path / "out") == whole[name]


def test_only_damaged_tasks_are_repeated(tmp_path: Path, source: Path, whole: Any) -> None:
    stop(Merger, "consume", 1, sources=source, out=tmp_path / "out", **OPTIONS["char"])
    tasks = tmp_path / "out" / ".prepare" / "tasks"
    flip(tasks / "00000003.train.bin", tasks, random.Random(0))
    (tasks / "00000005.json").write_text("{}")
    reports: list[Any] = []
    with small():
        summary = lowtide.prepare(
            source, tmp_path / "out", workers=1, progress=reports.append, **OPTIONS["char"]
        )
    assert reports[0].total - reports[0].earlier <= 2 * 4096
    assert "tasks/00000003.train.bin, tasks/00000005.json" in summary.notes[0]
    assert content(tmp_path / "out") == whole["char"]


@pytest.mark.parametrize("name", OPTIONS)
def test_source_changed_between_runs_raises(tmp_path: Path, source: Path, name: str) -> None:
    copy = tmp_path / "web.jsonl"
    shutil.copy2(source, copy)
    stop(*MOMENTS["tasks"], sources=copy, out=tmp_path / "out", **OPTIONS[name])
    data = copy.read_bytes()
    copy.write_bytes(data.replace(b'"text": "', b'"text": "x', 1)[: len(data)])
    with small(), refused(StateError, copy, "has changed"):
        lowtide.prepare(copy, tmp_path / "out", workers=1, **OPTIONS[name])


def test_corpus_is_complete_if_run_stops_after_index_is_written(
    tmp_path: Path, source: Path, whole: Any
) -> None:
    stop(workdir.Workdir, "discard", 2, sources=source, out=tmp_path / "out", **OPTIONS["byte"])
    assert (tmp_path / "out" / "corpus.json").exists()
    with small():
        lowtide.prepare(source, tmp_path / "out", workers=1, **OPTIONS["byte"])
    assert content(tmp_path / "out") == whole["byte"]
