"""A manifest opens a corpus of any format without a look at its files; of files and of objects."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._tokens.formats import manifest
from lowtide.errors import ArgumentError, FileChangedError, FormatError, LowtideError
from tests.support.buckets import CORPORA, some_batches, upload
from tests.support.command import lowtide as run
from tests.support.formats import refused
from tests.support.proxy import FaultProxy
from tests.support.servers import BUCKET, ObjectServer

KINDS = [kind for kind in CORPORA if kind != "lowtide"]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_manifest_gives_same_corpus(kind: str, tmp_path: Path) -> None:
    make, below, options = CORPORA[kind]
    folder = tmp_path / "files"
    folder.mkdir()
    make(folder)
    plain = lowtide.corpus(folder / below, **options)
    path = manifest.write({"train": plain})
    listed = lowtide.corpus(os.path.dirname(path))
    assert listed.metadata == {"manifest": path}
    assert (listed.format, listed.dtype, listed.eos, listed.paths) == (
        plain.format, plain.dtype, plain.eos, plain.paths,
    )  # fmt: skip
    np.testing.assert_array_equal(listed[:], plain[:])
    for one, other in zip(some_batches(listed, "shuffle", 2), some_batches(plain, "shuffle", 2), strict=True):
        np.testing.assert_array_equal(one, other)
    assert listed.has_documents == plain.has_documents
    if plain.has_documents:
        assert listed.documents.bounds(0, listed.documents.count).tolist() == (
            plain.documents.bounds(0, plain.documents.count).tolist()
        )


def test_bucket_opens_with_few_requests(
    object_server: ObjectServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    import obstore

    for i in range(100):
        np.full(50, i, "<u2").tofile(tmp_path / f"train_{i:03}.bin")
        np.full(50, i, "<u2").tofile(tmp_path / f"val_{i:03}.bin")
    prefix = upload(object_server, tmp_path, f"manifests/{tmp_path.name}")
    words = ("info", "--manifest", prefix, "--dtype", "uint16", "--eos", 7)
    done = run(*words, **object_server.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{prefix}/{manifest.NAME}: 100 shards of train, 100 shards of val\n"
    options = object_server.options | {"endpoint": proxy.endpoint}
    for split in ("train", "val"):
        proxy.reset()
        corpus = lowtide.corpus(prefix, split=split, storage_options=options)
        assert len(proxy.exchanges) <= 8
        assert (len(corpus), corpus.eos, corpus.documents.count) == (5000, 7, 51)
    np.testing.assert_array_equal(corpus[240:260], [4] * 10 + [5] * 10)
    key = prefix.removeprefix(f"s3://{BUCKET}/")
    obstore.put(object_server.store(), f"{key}/val_009.bin", bytes(100))
    with refused(FileChangedError, "val_009.bin"):
        corpus[450]


def test_manifest_for_corpus_with_index_raises(tmp_path: Path) -> None:
    CORPORA["lowtide"][0](tmp_path)
    with refused(ArgumentError, "has a corpus.json"):
        manifest.write({"train": lowtide.corpus(tmp_path / "corpus")})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("version",), 2),
        (("splits",), []),
        (("splits", "train"), 3),
        (("splits", "train", "dtype"), "float32"),
        (("splits", "train", "dtype"), None),
        (("splits", "train", "marks"), "middle"),
        (("splits", "train", "eos"), -1),
        (("splits", "train", "files"), {}),
        (("splits", "train", "files", 0), ["../x.bin", 120, None, 0]),
        (("splits", "train", "files", 0), ["train.bin", 121, None, 0]),
        (("splits", "train", "files", 0), ["train.bin", 120, 5, 0]),
        (("splits", "train", "segments", 0), [1, 0, 60, 0, 0]),
        (("splits", "train", "segments", 0), [0, 2, 60, 0, 0]),
        (("splits", "train", "segments", 0), [0, 0, 60, 7, 20]),
        (("splits", "train", "segments", 0), [0, 0, 60, 10, 2]),
        (("splits", "train", "segments", 0), [0, 0, 2**70, 0, 0]),
        (("splits", "train", "documents"), 3),
        (("splits", "train", "documents", "count"), 5),
        (("splits", "train", "documents", "file"), "train.bin"),
    ],
)
def test_damaged_manifest_is_refused(place: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    np.arange(60, dtype="<u2").tofile(tmp_path / "train.bin")
    path = manifest.write({"train": lowtide.corpus(tmp_path, eos=7)})
    content: Any = json.loads(Path(path).read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    Path(path).write_text(json.dumps(content))
    with pytest.raises(LowtideError, match=r"manifest|train\.bin"):
        lowtide.corpus(tmp_path)


def test_file_that_changed_its_size_is_refused(tmp_path: Path) -> None:
    np.arange(60, dtype="<u2").tofile(tmp_path / "train.bin")
    manifest.write({"train": lowtide.corpus(tmp_path)})
    np.arange(50, dtype="<u2").tofile(tmp_path / "train.bin")
    with refused(FormatError, "train.bin", "100 bytes, expected 120", "write the manifest again"):
        lowtide.corpus(tmp_path)
