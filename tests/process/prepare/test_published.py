"""A corpus that is prepared for a bucket: the bytes of a folder, the index last, resumable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide._io import copying, store
from lowtide._prepare.published import work_folder
from lowtide.errors import ArgumentError, WriteError
from tests.support.formats import refused
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


def test_bucket_has_the_corpus_of_a_folder(text: Path, tmp_path: Path) -> None:
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


def test_run_that_ends_while_it_copies_is_resumed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"s3://{BUCKET}/interrupted/{tmp_path.name}"
    copy = copying._copy

    def failing(source: str, target: str, *rest: object) -> None:
        if target.endswith("corpus.json"):
            raise KeyboardInterrupt
        copy(source, target, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(copying, "_copy", failing)
        with pytest.raises(KeyboardInterrupt):
            lowtide.prepare(text, address, workers=1, shard_tokens=2000)
    with pytest.raises(ArgumentError):  # the shards alone are no corpus
        lowtide.corpus(address)
    lowtide.prepare(text, address, workers=1, shard_tokens=2000)
    assert lowtide.corpus(address).format == "lowtide"


def test_work_is_for_addresses(text: Path, tmp_path: Path) -> None:
    with refused(ArgumentError, "work is for an address"):
        lowtide.prepare(text, tmp_path / "corpus", work=tmp_path / "work")
