"""A corpus that is prepared for a bucket: the bytes of a folder, the index last, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io import copying, store
from lowtide._prepare.published import Uploads, work_folder
from lowtide._prepare.run import Run
from lowtide._prepare.workdir import Workdir
from lowtide._tokens.formats import own
from lowtide.errors import ArgumentError, WriteError
from tests.support.formats import refused
from tests.support.preparing import content, jsonl, small, stop
from tests.support.servers import BUCKET, ObjectServer


@pytest.fixture(autouse=True)
def _environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(f"document {i} " * 300)
    return folder


def test_bucket_corpus_matches_folder(text: Path, tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/prepared/{tmp_path.name}"
    summary = lowtide.prepare(text, address, workers=1, shard_tokens=2000)
    lowtide.prepare(text, tmp_path / "corpus", workers=1, shard_tokens=2000)
    remote, file = lowtide.corpus(address), lowtide.corpus(tmp_path / "corpus")
    np.testing.assert_array_equal(remote[:], file[:])
    assert len(remote.paths) > 1
    assert summary.folder == address
    assert not Path(work_folder(address)).exists()
    with refused(WriteError, address, "already contains a corpus"):
        lowtide.prepare(text, address, workers=1)
    (text / "0.txt").unlink()
    lowtide.prepare(text, address, workers=1, shard_tokens=10**6, overwrite=True)
    assert len(lowtide.corpus(address)) < len(file)
    assert {name for name in store.list_folder(address).files if "train" in name} == {
        "train-00000.bin",
        "train-00000.ends",
    }


def test_run_interrupted_during_copy_is_resumed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"s3://{BUCKET}/interrupted/{tmp_path.name}"
    copy = copying.copy_file

    def failing(source: str, target: str) -> str:
        if target.endswith("corpus.json"):
            raise KeyboardInterrupt
        return copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(copying, "copy_file", failing)
        with pytest.raises(KeyboardInterrupt):
            lowtide.prepare(text, address, workers=1, shard_tokens=2000)
    with pytest.raises(ArgumentError):  # the shards alone are no corpus
        lowtide.corpus(address)
    with monkeypatch.context() as patch:
        patch.delattr(Run, "_encode")  # nothing is encoded again
        lowtide.prepare(text, address, workers=1, shard_tokens=2000)
    assert lowtide.corpus(address).format == "lowtide"


def corpus_of(source: Path, folder: Path) -> dict[str, str]:
    lowtide.prepare(source, folder, workers=1, shard_tokens=2000)
    return content(folder)


def downloaded(address: str, folder: Path) -> dict[str, str]:
    lowtide.copy(address, folder)
    return content(folder)


def test_completed_shards_are_removed_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, work = f"s3://{BUCKET}/moved/{tmp_path.name}", tmp_path / "work"
    jsonl(tmp_path / "web.jsonl", 1000)
    sizes: list[int] = []
    send = Uploads.send

    def measured(self: Uploads, folder: str, names: Sequence[str]) -> None:
        sizes.append(sum(path.stat().st_size for path in work.rglob("*") if path.is_file()))
        send(self, folder, names)

    monkeypatch.setattr(Uploads, "send", measured)
    with small():  # tasks of 4 KiB, and a commit after 10,000 bytes
        lowtide.prepare(tmp_path / "web.jsonl", address, workers=1, shard_tokens=2000, work=work)
    corpus = corpus_of(tmp_path / "web.jsonl", tmp_path / "here")
    assert downloaded(address, tmp_path / "copy") == corpus
    total = sum(path.stat().st_size for path in (tmp_path / "here").iterdir())
    # An open shard of each split, what is not committed yet as tasks and as shards, and a record per shard.
    records = 400 * len(corpus)
    assert max(sizes) - records < 2 * 4000 + 2 * (10_000 + 2 * 8192)
    assert max(sizes) < total / 4
    assert not work.exists()


@pytest.mark.parametrize("change", ["none", "replaced", "deleted"])
def test_run_interrupted_between_shards_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    address = f"s3://{BUCKET}/killed-{change}/{tmp_path.name}"
    jsonl(tmp_path / "web.jsonl", 300)
    given: dict[str, Any] = {"sources": tmp_path / "web.jsonl", "out": address, "shard_tokens": 2000}
    stop(Uploads, "send", 4, **given)
    names = store.list_folder(address).files
    assert "train-00000.bin" in names
    assert own.NAME not in names
    if change == "replaced":
        lowtide.copy(tmp_path / "web.jsonl", f"{address}/train-00000.bin")
    elif change == "deleted":
        store.delete(f"{address}/train-00000.bin")
    sent: list[str] = []
    copy = copying.copy_file

    def counted(source: str, target: str, *rest: Any) -> str:
        sent.append(target)
        return copy(source, target, *rest)

    monkeypatch.setattr(copying, "copy_file", counted)
    with small():
        summary = lowtide.prepare(workers=1, **given)
    assert downloaded(address, tmp_path / "copy") == corpus_of(tmp_path / "web.jsonl", tmp_path / "here")
    assert (f"{address}/train-00000.bin" in sent) == (change != "none")
    assert ("damaged (out/train-00000.bin)" in "".join(summary.notes)) == (change != "none")


def test_replaced_corpus_stays_until_new_one_is_ready(tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/replaced/{tmp_path.name}"
    jsonl(tmp_path / "web.jsonl", 100)
    lowtide.prepare(tmp_path / "web.jsonl", address, workers=1, shard_tokens=2000)
    before = lowtide.corpus(address)[:]
    jsonl(tmp_path / "web.jsonl", 200, seed=1)
    given: dict[str, Any] = {"sources": tmp_path / "web.jsonl", "out": address, "shard_tokens": 2000}
    stop(Workdir, "publish", 1, overwrite=True, **given)
    np.testing.assert_array_equal(lowtide.corpus(address)[:], before)
    lowtide.prepare(workers=1, overwrite=True, **given)
    assert downloaded(address, tmp_path / "copy") == corpus_of(tmp_path / "web.jsonl", tmp_path / "here")


def test_work_folder_for_local_output_raises(text: Path, tmp_path: Path) -> None:
    with refused(ArgumentError, "work is for an address"):
        lowtide.prepare(text, tmp_path / "corpus", work=tmp_path / "work")
