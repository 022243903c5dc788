"""Several folders as one corpus."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import ArgumentError, LowtideError
from tests.support.formats import refused


def prepared(folder: Path, texts: list[str], **options: Any) -> Path:
    lowtide.prepare(iter(texts), folder, workers=1, val=iter([f"held {texts[0]}"]), **options)
    return folder


def test_folders_are_concatenated(tmp_path: Path) -> None:
    parts = [prepared(tmp_path / f"part-{n}", [f"low {n}", "tide"], shard_tokens=5) for n in range(11)]
    expected = np.concatenate([lowtide.corpus(part)[:] for part in parts])
    for path in (parts, tmp_path / "part-*"):
        corpus = pickle.loads(pickle.dumps(lowtide.corpus(path)))
        assert (corpus[:] == expected).all()
        assert corpus.documents.count == 22
        assert corpus.document(20).tolist() == [*b"low 10", 256]
        assert (corpus.format, corpus.eos, corpus.vocab_size) == ("lowtide", 256, 257)
        corpus.documents.verify()
        x, _, ids = corpus.batches(3, 8).with_documents()[2]
        assert x.shape == ids.shape
    assert len(lowtide.corpus(parts, split="val")) == sum(
        len(lowtide.corpus(part, split="val")) for part in parts
    )


def test_nanogpt_folders_are_concatenated(tmp_path: Path) -> None:
    for name, values in (("a", range(10)), ("b", range(10, 15))):
        (tmp_path / name).mkdir()
        np.array(values, "<u2").tofile(tmp_path / name / "train.bin")
    corpus = lowtide.corpus([tmp_path / "a", tmp_path / "b"], eos=4)
    assert corpus[:].tolist() == list(range(15))
    assert corpus.documents.count == 2
    assert corpus.name.endswith("a")


def test_incompatible_folders_raise(tmp_path: Path) -> None:
    byte = prepared(tmp_path / "byte", ["low tide"])
    char = prepared(tmp_path / "char", ["low tide"], tokenizer="char")
    with refused(ArgumentError, str(char), "another eos than", str(byte), "None, expected 256"):
        lowtide.corpus([byte, char])
    with refused(ArgumentError, "another tokenizer than"):
        lowtide.corpus([char, _other(tmp_path)])
    with refused(ArgumentError, "is in the list more than once"):
        lowtide.corpus([byte, byte])
    with refused(LowtideError, "no split 'test'"):
        lowtide.corpus([byte, char], split="test")
    (tmp_path / "raw").mkdir()
    np.arange(10, dtype="<u2").tofile(tmp_path / "raw" / "train.bin")
    with lowtide.create_corpus(tmp_path / "own") as out:
        out.append([1])
    with refused(ArgumentError, "some corpora record where documents end and others do not"):
        lowtide.corpus([tmp_path / "own", tmp_path / "raw"])
    with pytest.raises(LowtideError, match="no file matches this pattern"):
        lowtide.corpus(tmp_path / "none-*")


def _other(folder: Path) -> Path:
    """Another alphabet of the same size: x in place of o."""
    return prepared(folder / "other", ["lxw tide"], tokenizer="char")
