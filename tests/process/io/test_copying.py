"""Copies between files and buckets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io import copying, sinks
from lowtide.errors import ArgumentError, NotFoundError, WriteError
from tests.support.command import lowtide as run
from tests.support.formats import refused
from tests.support.proxy import Exchange, FaultProxy
from tests.support.servers import BUCKET, ObjectServer


@pytest.fixture
def environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    (place / "below").mkdir(parents=True)
    rng = np.random.default_rng(0)
    (place / "large.bin").write_bytes(rng.bytes(20 * 2**20 + 5))
    (place / "below" / "small.bin").write_bytes(b"small")
    (place / "below" / "empty").write_bytes(b"")
    (place / "corpus.json").write_bytes(b"{}")
    (place / ".x.partial").write_bytes(b"of a writer")
    return place


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".partial"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.usefixtures("environment")
def test_folder_round_trip(folder: Path, tmp_path: Path, object_server: ObjectServer) -> None:
    done: list[tuple[int, int]] = []
    address = f"s3://{BUCKET}/copies/{tmp_path.name}"
    copied = lowtide.copy(folder, address, progress=lambda *now: done.append(now))
    assert (copied.files, copied.skipped, copied.nbytes) == (4, 0, 20 * 2**20 + 12)
    assert done[0] == (0, copied.nbytes)
    assert done[-1] == (copied.nbytes, copied.nbytes)
    assert done == sorted(done)
    assert lowtide.copy(folder, address) == copying.Copied(0, 0, 4)
    assert str(lowtide.copy(address, tmp_path / "back")).startswith("4 files copied, 20.0 MiB")
    assert content(tmp_path / "back") == content(folder)


@pytest.mark.usefixtures("environment")
def test_copy_is_resumed_and_index_is_copied_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"s3://{BUCKET}/resumed/{tmp_path.name}"
    copy, order = copying.copy_file, []

    def failing(source: str, target: str, *rest: Any) -> str:
        order.append(target.removeprefix(f"{address}/"))
        if len(order) == 3:
            raise KeyboardInterrupt
        return copy(source, target, *rest)

    monkeypatch.setattr(copying, "copy_file", failing)
    with pytest.raises(KeyboardInterrupt):
        lowtide.copy(folder, address)
    assert lowtide.copy(folder, address).skipped == 2
    assert order[-1] == "corpus.json"
    os.utime(folder / "large.bin")  # newer than the copy
    os.utime(folder / "corpus.json", (10**9, 10**9))
    later = os.stat(folder / "large.bin").st_mtime + 5
    os.utime(folder / "large.bin", (later, later))
    assert lowtide.copy(folder, address).files == 1


@pytest.mark.usefixtures("environment")
def test_single_files_are_copied(folder: Path, tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/single/{tmp_path.name}"
    source = folder / "below" / "small.bin"
    lowtide.copy(source, f"{address}/")
    lowtide.copy(f"{address}/small.bin", f"{address}/other.bin")
    lowtide.copy(f"{address}/other.bin", tmp_path)
    assert (tmp_path / "other.bin").read_bytes() == b"small"


@pytest.mark.usefixtures("environment")
def test_damaged_copy_raises(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"s3://{BUCKET}/damaged/{tmp_path.name}"
    write = sinks.FileSink.write

    def damaging(self: sinks.FileSink, data: np.ndarray) -> None:
        write(self, (data ^ 1).astype(np.uint8))

    monkeypatch.setattr(sinks.FileSink, "write", damaging)
    lowtide.copy(folder / "below" / "small.bin", f"{address}/x")
    with refused(WriteError, "out", "differs from its source", "SHA-256"):
        lowtide.copy(f"{address}/x", tmp_path / "out")
    lowtide.copy(f"{address}/x", tmp_path / "other", verify=False)


@pytest.mark.usefixtures("environment")
def test_invalid_copies_raise(folder: Path, tmp_path: Path) -> None:
    with refused(NotFoundError, f"s3://{BUCKET}/no-such-prefix"):
        lowtide.copy(f"s3://{BUCKET}/no-such-prefix", tmp_path / "x")
    with refused(ArgumentError, "is inside"):
        lowtide.copy(folder, folder / "copy")
    with refused(ArgumentError, "are the same"):
        lowtide.copy(folder / "large.bin", folder)


KILLED = "import sys, lowtide; lowtide.copy(*sys.argv[1:])"


@pytest.mark.parametrize("change", ["none", "damaged", "replaced"])
def test_killed_copy_resumes_within_object(
    folder: Path,
    tmp_path: Path,
    object_server: ObjectServer,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    address, target = f"s3://{BUCKET}/large-{change}/{tmp_path.name}.bin", tmp_path / "large.bin"
    lowtide.copy(folder / "large.bin", address)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    partial = tmp_path / ".large.bin.partial"
    journal = tmp_path / ".large.bin.pieces.partial"

    def slow(exchange: Exchange) -> None:  # the last piece
        if exchange.range and int(exchange.range.split("=")[1].split("-")[0]) >= 16 * 2**20:
            time.sleep(20)

    proxy.faults.append(slow)
    process = subprocess.Popen([sys.executable, "-c", KILLED, address, str(target)])
    deadline = time.monotonic() + 60
    # Two pieces of 8 MiB, 16 bytes for each, behind the first line.
    while not journal.exists() or len(journal.read_bytes().partition(b"\n")[2]) < 32:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    proxy.reset()
    content = (folder / "large.bin").read_bytes()
    if change == "damaged":
        with open(partial, "rb+") as file:
            file.seek(9 * 2**20)
            file.write(bytes([content[9 * 2**20] ^ 1]))
    elif change == "replaced":
        content = content[::-1]
        (folder / "large.bin").write_bytes(content)
        os.utime(folder / "large.bin", (2**31, 2**31))
        lowtide.copy(folder / "large.bin", address, storage_options=object_server.options)
    options = {**object_server.options, "endpoint": proxy.endpoint}
    lowtide.copy(address, target, storage_options=options, verify=False)
    assert target.read_bytes() == content
    assert not partial.exists()
    assert not journal.exists()
    again = {"none": 4 * 2**20, "damaged": 12 * 2**20, "replaced": 20 * 2**20}[change]
    fetched = sum(len(exchange.body) for exchange in proxy.exchanges if exchange.range)
    assert again <= fetched < again + 2**20  # and its first bytes, when it was opened


@pytest.mark.usefixtures("environment")
def test_failed_copy_resumes_within_object(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, target = f"s3://{BUCKET}/failed/{tmp_path.name}.bin", tmp_path / "large.bin"
    lowtide.copy(folder / "large.bin", address)

    def failing(done: int, total: int) -> None:
        if done > 8 * 2**20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lowtide.copy(address, target, progress=failing)
    assert not target.exists()
    seen: list[int] = []
    lowtide.copy(address, target, progress=lambda done, _: seen.append(done))
    assert target.read_bytes() == (folder / "large.bin").read_bytes()
    assert seen[1] == 20 * 2**20 + 5  # the third piece


def test_copy_command_uploads_folder(folder: Path, tmp_path: Path, object_server: ObjectServer) -> None:
    address = f"s3://{BUCKET}/command/{tmp_path.name}"
    done = run("copy", folder, address, **object_server.environment())
    assert done.returncode == 0, done.stderr
    assert f"{address}: 4 files copied, 20.0 MiB\n" in done.stdout
