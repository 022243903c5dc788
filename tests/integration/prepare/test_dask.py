"""On a Dask cluster: a real scheduler, real workers, the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import lowtide
from lowtide._io import store
from lowtide.errors import ClusterError
from tests.process.prepare.test_resuming import tasks_done, wait_for
from tests.support.formats import refused
from tests.support.preparing import SCRIPT, content, jsonl
from tests.support.servers import BUCKET, ObjectServer


class Cluster:
    """A scheduler and workers, each a process."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        address_file = folder / "scheduler.json"
        self._start(
            [], "scheduler", "--host", host, "--port", "0", "--no-dashboard", "--scheduler-file", address_file
        )
        wait_for(lambda: address_file.exists() and address_file.read_text().strip().endswith("}"))
        self.address = json.loads(address_file.read_text())["address"]

    def worker(self, *prefix: str) -> subprocess.Popen[bytes]:
        """One more worker; ``prefix`` is a command that runs it elsewhere."""
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", self._folder)
        return self._start(list(prefix), "worker", self.address, *options)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def _start(self, prefix: list[str], what: str, *options: object) -> subprocess.Popen[bytes]:
        command = [*prefix, sys.executable, "-m", f"distributed.cli.dask_{what}", *map(str, options)]
        with open(self._folder / f"{what}-{len(self.processes)}.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.processes.append(process)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "web.jsonl"
    jsonl(path, 2000)
    path.write_bytes(path.read_bytes() * 20)
    return path


def start(source: Path, out: Path, address: str) -> subprocess.Popen[str]:
    arguments = {"sources": source, "out": out, "dask": address, "tokenizer": "char", "val_fraction": 0.1}
    command = [sys.executable, "-c", SCRIPT, json.dumps({**arguments, "unit": 2**17}, default=str)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_same_as_here(process: subprocess.Popen[str], source: Path, out: Path) -> None:
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    lowtide.prepare(source, out.parent / "here", tokenizer="char", val_fraction=0.1, workers=1)
    assert content(out) == content(out.parent / "here")


def test_killed_worker_does_not_change_output(tmp_path: Path, source: Path, cluster: Cluster) -> None:
    first = cluster.worker()
    second = cluster.worker()
    process = start(source, tmp_path / "out", cluster.address)
    wait_for(lambda: tasks_done(tmp_path / "out") >= 5)
    assert process.poll() is None
    first.kill()
    assert_same_as_here(process, source, tmp_path / "out")
    assert second.poll() is None


def test_killed_run_to_bucket_is_resumed(
    tmp_path: Path,
    source: Path,
    cluster: Cluster,
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        cluster.worker()
    address = f"s3://{BUCKET}/dask/{tmp_path.name}"
    arguments = {"sources": source, "out": address, "work": tmp_path / "work", "dask": cluster.address}
    text = json.dumps({**arguments, "shard_tokens": 10**6, "unit": 2**17}, default=str)

    def started() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT, text]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = started()
    wait_for(lambda: (tmp_path / "work" / ".uploaded.json").exists())
    process.kill()
    process.communicate()
    names = store.list_folder(address).files
    assert "train-00000.bin" in names
    assert "corpus.json" not in names
    process = started()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    lowtide.copy(address, tmp_path / "out")
    lowtide.prepare(source, tmp_path / "here", shard_tokens=10**6, workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "here")


def test_unreachable_scheduler_raises_within_seconds(tmp_path: Path, source: Path) -> None:
    before = time.monotonic()
    with refused(ClusterError, "tcp://127.0.0.1:9", "dask scheduler"):
        lowtide.prepare(source, tmp_path / "out", dask="tcp://127.0.0.1:9")
    with refused(ClusterError, "nonsense"):
        lowtide.prepare(source, tmp_path / "out", dask="nonsense://")
    assert time.monotonic() - before < 30  # not a benchmark: without this limit Dask waits for longer
    assert not (tmp_path / "out").exists()


def test_scheduler_without_workers_raises(
    tmp_path: Path, source: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide._prepare.executors._JOIN", 1)
    with refused(ClusterError, cluster.address, "no worker", "dask worker"):
        lowtide.prepare(source, tmp_path / "out", dask=cluster.address)


@contextmanager
def machine(number: int) -> Iterator[list[str]]:
    """A separate network namespace, linked to this one: like another machine with the same files."""
    name, here, there = (
        f"lowtide{os.getpid() % 1000}-{number}",
        f"lt{os.getpid()}h{number}",
        f"lt{os.getpid()}t{number}",
    )
    commands = [
        f"ip netns add {name}",
        f"ip link add {here} type veth peer name {there}",
        f"ip link set {there} netns {name}",
        f"ip addr add 10.213.{number}.1/24 dev {here}",
        f"ip link set {here} up",
        f"ip netns exec {name} ip addr add 10.213.{number}.2/24 dev {there}",
        f"ip netns exec {name} ip link set {there} up",
        f"ip netns exec {name} ip link set lo up",
        f"ip netns exec {name} ip route add default via 10.213.{number}.1",
    ]
    try:
        for command in commands:
            try:
                done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
                problem = done.stderr if done.returncode else None
            except FileNotFoundError as error:
                problem = str(error)
            if problem is not None:
                if os.environ.get("CI") and os.geteuid() == 0 and "No such file" not in problem:
                    pytest.fail(f"{command}: {problem}")
                pytest.skip(f"no network namespaces here: {command}: {problem}")
        yield ["ip", "netns", "exec", name]
    finally:
        for command in (f"ip link del {here}", f"ip netns del {name}"):
            with suppress(FileNotFoundError):
                subprocess.run(command.split(), capture_output=True, check=False)


def test_workers_on_other_machines_give_same_bytes(tmp_path: Path, source: Path) -> None:
    with machine(1) as one, machine(2) as two:
        cluster = Cluster(tmp_path, host="10.213.1.1")
        try:
            workers = [cluster.worker(*one), cluster.worker(*two)]
            process = start(source, tmp_path / "out", cluster.address)
            assert_same_as_here(process, source, tmp_path / "out")
            assert [worker.poll() for worker in workers] == [None, None]
        finally:
            cluster.close()
