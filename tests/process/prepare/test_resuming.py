"""A run that is killed at any moment is resumed and ends with the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import lowtide
from lowtide._prepare import merge, shard_writer, workdir
from lowtide._prepare.worker import encode
from lowtide.errors import DiskFullError, TaskError
from tests.support.formats import refused
from tests.support.preparing import SCRIPT, content, jsonl, small, start

OPTIONS: dict[str, Any] = {"val_fraction": 0.1, "shard_tokens": 20_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "web.jsonl"
    jsonl(path, 3000)
    return path


@pytest.fixture(scope="module")
def whole(source: Path) -> dict[tuple[str, str], dict[str, str]]:
    """What a run that nobody kills writes."""
    corpora = {}
    cases: list[tuple[Any, Any]] = [
        *(("documents", layout) for layout in ("shards", "llmc")),
        *(("contiguous", layout) for layout in ("shards", "nanogpt")),
    ]
    for holdout, layout in cases:
        out = source.parent / f"{holdout}-{layout}"
        lowtide.prepare(source, out, workers=1, holdout=holdout, layout=layout, **OPTIONS)
        corpora[holdout, layout] = content(out)
    return corpora


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def tasks_done(out: Path) -> int:
    """How far a run is, by the files of its tasks."""
    with suppress(FileNotFoundError):
        return max((int(name[:8]) for name in os.listdir(out / ".prepare" / "tasks")), default=0)
    return 0


@pytest.mark.parametrize(
    ("layout", "holdout"), [("shards", "documents"), ("llmc", "documents"), ("nanogpt", "contiguous")]
)
def test_run_killed_repeatedly_ends_with_the_same_bytes(
    tmp_path: Path, source: Path, whole: Any, layout: str, holdout: str
) -> None:
    """The moments are points of progress, and a random wait after each of them."""
    chance = random.Random(f"{layout}{holdout}")
    arguments = {"sources": source, "out": tmp_path / "out", "layout": layout, "holdout": holdout, **OPTIONS}
    for point in sorted(chance.sample(range(1, 120), 3)):
        process = start(**arguments, workers=1)
        wait_for(lambda: tasks_done(tmp_path / "out") >= point or process.poll() is not None)  # noqa: B023
        time.sleep(chance.random() * 0.05)
        process.kill()
        process.communicate()
        assert not list((tmp_path / "out").glob("*.bin")) or (tmp_path / "out" / "corpus.json").exists()
    if not (tmp_path / "out" / "corpus.json").exists():
        with small():
            lowtide.prepare(workers=1, **{**arguments, "sources": source})
    assert content(tmp_path / "out") == whole[holdout, layout]


STEPS = [
    (merge.Merger, "commit"),
    (merge.Merger, "_forget"),
    (shard_writer.ShardWriter, "_close_shard"),
    (shard_writer.ShardWriter, "sync"),
    (workdir.Workdir, "write_state"),
    (workdir.Workdir, "discard"),
    (os, "replace"),
    (os, "unlink"),
    (os, "fsync"),
]


@pytest.mark.parametrize("layout", ["shards", "llmc"])
@pytest.mark.parametrize("where", STEPS, ids=lambda where: f"{where[0].__name__}.{where[1]}")
def test_run_stopped_at_every_step_call_is_resumed(
    tmp_path: Path, source: Path, whole: Any, where: tuple[Any, str], layout: Any
) -> None:
    """Wherever a run is stopped between two steps, the next one makes it whole."""
    owner, name = where
    real = getattr(owner, name)
    fuse = left = 0
    options: dict[str, Any] = {"workers": 1, "layout": layout, **OPTIONS}

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    finished = False
    with small(unit=100_000, uncommitted=150_000), pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, failing)
        while not finished:
            fuse += 1
            left = fuse
            try:
                lowtide.prepare(source, tmp_path / "out", **options)
                finished = True
            except KeyboardInterrupt:
                if (tmp_path / "out" / "corpus.json").exists():
                    break  # it was stopped while it cleaned up
            assert fuse < 200
    assert fuse > 1
    assert content_without_work(tmp_path / "out") == whole["documents", layout]


def content_without_work(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in content(folder).items() if not name.startswith(".prepare")}


def workers_of(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(pid).children()
            if "spawn_main" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE
        ]
    return []


@pytest.fixture
def long_source(tmp_path: Path) -> Iterator[Path]:
    """Large enough that workers are at work when they are looked at."""
    path = tmp_path / "long.jsonl"
    jsonl(path, 2000)
    data = path.read_bytes()
    with open(path, "wb") as file:
        for _ in range(50):
            file.write(data)
    yield path
    path.unlink()


def test_workers_end_with_killed_parent(tmp_path: Path, long_source: Path) -> None:
    process = start(sources=long_source, out=tmp_path / "out", workers=2, unit=2**17)
    wait_for(lambda: tasks_done(tmp_path / "out") >= 3)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive, "orphans continue"
    assert len(gone) == 2
    before = content(tmp_path / "out" / ".prepare")
    time.sleep(0.3)
    assert content(tmp_path / "out" / ".prepare") == before


def test_killed_worker_is_replaced(tmp_path: Path, long_source: Path) -> None:
    process = start(sources=long_source, out=tmp_path / "out", workers=2, unit=2**17)
    for point in (3, 20):
        wait_for(lambda: tasks_done(tmp_path / "out") >= point and len(workers_of(process.pid)) == 2)  # noqa: B023
        workers_of(process.pid)[0].kill()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert int(out) > 10**7
    lowtide.prepare(long_source, tmp_path / "whole", workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_ctrl_c_prints_how_to_resume(tmp_path: Path, long_source: Path) -> None:
    code = """
import sys
from tests.support.preparing import small
from lowtide.cli import main
sys.argv[0] = "lowtide"
with small(2**17):
    main()
"""
    command = [
        sys.executable,
        "-c",
        code,
        "prepare",
        str(long_source),
        "-o",
        str(tmp_path / "out"),
        "--workers=2",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: tasks_done(tmp_path / "out") >= 3)
    workers = workers_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again" in err
    assert "Traceback" not in err
    assert not psutil.wait_procs(workers, timeout=10)[1]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lowtide.prepare(long_source, tmp_path / "whole", workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_task_results_before_reboot_are_recomputed(
    tmp_path: Path, source: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {
        "sources": source,
        "out": tmp_path / "out",
        "holdout": "contiguous",
        **OPTIONS,
    }
    process = start(**arguments, workers=1)
    wait_for(lambda: tasks_done(tmp_path / "out") >= 20)
    process.kill()
    process.communicate()
    for path in (tmp_path / "out" / ".prepare" / "tasks").glob("*.bin"):
        path.write_bytes(bytes(path.stat().st_size))  # as a file system may leave them
    (tmp_path / "boot").write_text("another start")
    monkeypatch.setattr(workdir, "_BOOT", str(tmp_path / "boot"))
    with small():
        lowtide.prepare(workers=1, **arguments)
    assert content(tmp_path / "out") == whole["contiguous", "shards"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"CI must be able to mount a small file system: {mount.stderr!r}")
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_run_resumes_after_full_disk(
    tmp_path: Path, source: Path, whole: Any, full_disk: Path, workers: int
) -> None:
    out = full_disk / "out"
    with small(), refused(DiskFullError, out, "no space left"):
        lowtide.prepare(source, out, workers=workers, **OPTIONS)
    assert not (out / "corpus.json").exists()
    done = tasks_done(out)
    assert done > 5
    subprocess.run(["mount", "-o", "remount,size=20m", str(full_disk)], check=True)
    reports: list[Any] = []
    with small():
        lowtide.prepare(source, out, workers=workers, progress=reports.append, **OPTIONS)
    assert reports[0].earlier > 0
    assert content(out) == whole["documents", "shards"]


FLAKY = SCRIPT.replace(
    "arguments = ",
    """
from lowtide._prepare import run
run.encode = __import__("importlib").import_module("tests.process.prepare.test_resuming").flaky
arguments = """,
)


def flaky(task: Any, job: Any) -> Any:
    """Fails the first time, with an error that may pass."""
    mark = Path(job.folder, "..", f"tried-{task.index}")
    if not mark.exists():
        mark.touch()
        raise OSError(5, "Input/output error")
    return encode(task, job)


def always(task: Any, job: Any) -> Any:
    raise OSError(5, "Input/output error")


def test_failed_task_is_retried(tmp_path: Path, source: Path, whole: Any) -> None:
    process = start(FLAKY, sources=source, out=tmp_path / "out", workers=2, unit=50_000, **OPTIONS)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert content(tmp_path / "out") == whole["documents", "shards"]


def test_task_that_keeps_failing_stops_the_run(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide._prepare.run.encode", always)
    with refused(TaskError, source, "failed 3 times", "Input/output error"):
        lowtide.prepare(source, tmp_path / "out", workers=1)
