"""What a path is, as data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._tokens.description import ArrayFile, CorpusSummary, describe, expand
from lowtide.errors import ArgumentError, FormatError, NotFoundError
from tests.support.formats import write


def test_array_files_are_described_by_their_members(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros((2, 2), "<f4"))
    file = describe(str(tmp_path / "x.npz"))
    assert isinstance(file, ArrayFile)
    assert [(array["name"], array["shape"]) for array in file.as_json()["arrays"]] == [
        ("a", [3]),
        ("b", [2, 2]),
    ]
    assert file.bytes == (tmp_path / "x.npz").stat().st_size
    assert not file.damage


def test_damaged_members_are_listed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    path = write(tmp_path / "x.npy", (tmp_path / "x.npy").read_bytes()[:-1])
    file = describe(str(path))
    assert isinstance(file, ArrayFile)
    assert [type(error) for error in file.damage] == [file.arrays[0].error.__class__]
    assert isinstance(file.damage[0], FormatError)


def test_raw_files_need_a_dtype(tmp_path: Path) -> None:
    path = write(tmp_path / "x.raw", b"\1" * 12)
    with pytest.raises(FormatError):
        describe(str(path))
    file = describe(str(path), dtype="uint16", shape=(2, 3))
    assert isinstance(file, ArrayFile)
    assert file.arrays[0].layout is not None
    assert file.arrays[0].layout.shape == (2, 3)


def test_corpus_is_summarised(tmp_path: Path) -> None:
    np.array([5, 0, 7, 7, 0], "<u2").tofile(tmp_path / "train.bin")
    summary = describe(str(tmp_path), eos=0)
    assert isinstance(summary, CorpusSummary)
    assert (summary.format, summary.tokens, summary.documents, summary.largest_id) == ("nanogpt", 5, 2, 7)
    assert summary.as_json()["largest_id_is"] == "exact"
    unknown = describe(str(tmp_path / "train.bin"))
    assert isinstance(unknown, CorpusSummary)
    assert unknown.documents is None
    with pytest.raises(NotFoundError):
        describe(str(tmp_path / "nowhere"))


def test_folders_of_arrays_expand_to_their_files(tmp_path: Path) -> None:
    for name in ("b.npy", "a.npy"):
        np.save(tmp_path / name, np.zeros((2, 2)))
    write(tmp_path / "notes.txt", b"text")
    write(tmp_path / "broken.npz", b"text")
    names = ["a.npy", "b.npy", "broken.npz"]
    assert expand(str(tmp_path)) == [str(tmp_path / name) for name in names]
    assert expand(str(tmp_path / "[ab].npy")) == [str(tmp_path / name) for name in names[:2]]
    assert expand(str(tmp_path / "a.npy")) == [str(tmp_path / "a.npy")]
    np.arange(3, dtype="<u2").tofile(tmp_path / "train.bin")
    (tmp_path / "owt").mkdir()
    np.arange(3, dtype="<u2").tofile(tmp_path / "owt" / "train.bin")
    assert expand(str(tmp_path / "owt")) == [str(tmp_path / "owt")]


def summary(path: Path, **options: Any) -> CorpusSummary:
    result = describe(str(path), **options)
    assert isinstance(result, CorpusSummary)
    return result


def test_corpora_are_summarised_with_splits_and_tokenizer(tmp_path: Path) -> None:
    lowtide.prepare(iter(["low tide"] * 1000), tmp_path / "own", val=iter(["held out"]), workers=1)
    own = summary(tmp_path / "own")
    assert (own.splits, own.tokenizer, own.eos) == ({"train": 9000, "val": 9}, "byte", 256)
    assert own.remarks == ["val is small: a loss on 9 tokens says little"]
    with pytest.raises(ArgumentError, match=r"is a file of the corpus .*own; pass that folder"):
        lowtide.corpus(tmp_path / "own" / "train-00000.bin")


def test_suspicious_corpus_adds_remarks(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, 5000)
    tokens.astype("<u4").tofile(tmp_path / "train.bin")
    wide = summary(tmp_path, dtype="uint16")
    assert any("50 % of the tokens are 0" in remark for remark in wide.remarks)
    assert any("no split val" in remark for remark in wide.remarks)
    right = summary(tmp_path, dtype="uint32", eos=5000)
    assert right.remarks[0] == "token 5000 never ends a document: the end of text is another one"
    for name in ("train", "val"):
        tokens.astype("<u2").tofile(tmp_path / f"{name}.bin")
    assert summary(tmp_path).remarks == []
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 900}))
    assert "is not in the vocabulary of 900 ids" in summary(tmp_path).remarks[0]
