"""lowtide's own corpus.json: written and read back, its three layouts, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._tokens.formats import find, llmc, own
from lowtide._tokens.formats.own import Manifest, Shard, Tokenizer
from lowtide.errors import ArgumentError, FormatError, LowtideError, NotFoundError, TruncatedFileError
from tests.support.examples import examples
from tests.support.formats import damaged, refused
from tests.support.token_files import Files, assert_honest_corpus, document_bounds, put, read_tokens

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def ids(*values: int, dtype: str = "<u2") -> bytes:
    return np.array(values, dtype).tobytes()


def ends(*values: int) -> bytes:
    return ids(*values, dtype="<u8")


def shard(name: str, tokens: int, documents: int) -> Shard:
    return Shard(f"{name}.bin", tokens, DIGEST, documents, f"{name}.ends", DIGEST)


MANIFEST = Manifest(
    "uint16",
    {"train": [shard("train-00000", 5, 1), shard("train-00001", 3, 2)], "val": [shard("val-00000", 2, 1)]},
    vocab_size=50257,
    eos=50256,
    tokenizer=Tokenizer("gpt2", DIGEST, "tokenizer.json"),
    sources=["a.jsonl", {"name": "b.parquet"}],
    settings={"seed": 0},
)
FILES: Files = {
    "corpus.json": MANIFEST.to_json().encode(),
    "train-00000.bin": ids(1, 2, 50256, 3, 4),
    "train-00000.ends": ends(3),
    "train-00001.bin": ids(50256, 6, 50256),
    "train-00001.ends": ends(1, 3),
    "val-00000.bin": ids(9, 50256),
    "val-00000.ends": ends(2),
}


def changed(path: str, value: Any, manifest: Manifest = MANIFEST) -> Files:
    """The files, with one value of corpus.json changed; ``...`` takes it away."""
    content = json.loads(manifest.to_json())
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    place = content
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return {**FILES, "corpus.json": json.dumps(content).encode()}


def test_manifest_over_size_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "MAX_INDEX", 500)
    with refused(FormatError, "corpus.json", "expected at most 500", "fewer"):
        MANIFEST.to_json()


@pytest.mark.timeout(30)  # to count each name in the list of all takes more than a minute
def test_file_listed_twice_among_many_raises() -> None:
    names = [*map(str, range(50_000)), "49999"]
    content = json.loads(MANIFEST.to_json())
    entry = {"tokens": 1, "sha256": DIGEST, "documents": None, "ends": None, "ends_sha256": None}
    content["splits"] = {"train": [{"file": name, **entry} for name in names]}
    with refused(FormatError, "'49999' twice"):
        Manifest.from_json(content, "corpus.json")


def test_corpus_of_shards_is_read(tmp_path: Path) -> None:
    put(tmp_path, FILES)
    for path in (tmp_path, tmp_path / "corpus.json"):
        result = find(path)
        assert (result.format, str(result.dtype)) == ("lowtide", "uint16")
        assert (result.eos, result.vocab_size, result.marks) == (50256, 50257, "end")
        assert read_tokens(result).tolist() == [1, 2, 50256, 3, 4, 50256, 6, 50256]
        assert document_bounds(result) == [[0, 3], [3, 6], [6, 8]]  # the second goes over a border
        assert result.metadata["tokenizer"] == {"name": "gpt2", "sha256": DIGEST, "file": "tokenizer.json"}
        assert result.metadata["splits"] == ("train", "val")
        assert document_bounds(pickle.loads(pickle.dumps(result))) == document_bounds(result)
        assert document_bounds(find(path, split="val")) == [[0, 2]]
    with refused(ArgumentError, tmp_path / "corpus.json", "'test'", "'train', 'val'"):
        find(tmp_path, split="test")
    with refused(ArgumentError, "uint16", "got dtype='uint32'"):
        find(tmp_path, dtype="uint32")


def test_manifest_round_trips(tmp_path: Path) -> None:
    own.write(tmp_path, MANIFEST)
    assert own.read(tmp_path / "corpus.json") == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.json"]
    own.write(tmp_path, dataclasses.replace(MANIFEST, eos=None))  # published over the old one
    assert own.read(tmp_path / "corpus.json").eos is None


def test_invalid_manifest_is_not_written(tmp_path: Path) -> None:
    for wrong in (
        dataclasses.replace(MANIFEST, dtype="int32"),
        dataclasses.replace(MANIFEST, vocab_size=70_000),
        dataclasses.replace(MANIFEST, eos=50257),
        dataclasses.replace(MANIFEST, splits={"train": [Shard("../x", 1, DIGEST)]}),
        dataclasses.replace(MANIFEST, splits={"train": [Shard("x", 1, "abc")]}),
    ):
        with pytest.raises(FormatError):
            own.write(tmp_path, wrong)
    with pytest.raises(ValueError, match="JSON"):
        own.write(tmp_path, dataclasses.replace(MANIFEST, settings={"x": float("nan")}))
    assert list(tmp_path.iterdir()) == []


def test_nanogpt_layout_is_read(tmp_path: Path) -> None:
    manifest = Manifest("uint32", {"train": [Shard("train.bin", 2, DIGEST)]}, layout="nanogpt")
    put(tmp_path, {"train.bin": ids(1, 70_000, dtype="<u4"), "meta.pkl": b"never read"})
    own.write(tmp_path, manifest)
    result = find(tmp_path)
    assert (read_tokens(result).tolist(), result.documents, result.eos) == ([1, 70_000], None, None)
    two = [Shard("a.bin", 1, DIGEST), Shard("b.bin", 1, DIGEST)]
    with refused(FormatError, "one file a split"):
        dataclasses.replace(manifest, splits={"train": two}).to_json()


def test_llmc_layout_is_read(tmp_path: Path) -> None:
    manifest = Manifest("uint16", {"train": [Shard("a.bin", 3, DIGEST)]}, layout="llmc")
    put(tmp_path, {"a.bin": llmc.make_header("uint16", 3) + ids(7, 8, 9)})
    own.write(tmp_path, manifest)
    result = find(tmp_path)
    assert (read_tokens(result).tolist(), result.segments[0].offset) == ([7, 8, 9], 1024)
    (tmp_path / "a.bin").write_bytes(llmc.make_header("uint32", 3) + bytes(12))
    with refused(FormatError, tmp_path / "a.bin", "1036 bytes", "expected 1030"):
        find(tmp_path)
    own.write(tmp_path, Manifest("uint16", {"train": [Shard("a.bin", 6, DIGEST)]}, layout="llmc"))
    with refused(FormatError, tmp_path / "a.bin", "3 tokens of uint32", "6 of uint16", "splits.train[0]"):
        find(tmp_path)


def test_document_can_span_shards_without_ends(tmp_path: Path) -> None:
    shards = [shard("a", 2, 0), shard("b", 0, 0), shard("c", 1, 1)]
    put(
        tmp_path,
        {"a.bin": ids(1, 2), "a.ends": b"", "b.bin": b"", "b.ends": b"", "c.bin": ids(3), "c.ends": ends(1)},
    )
    own.write(tmp_path, Manifest("uint16", {"train": shards}))
    result = find(tmp_path)
    assert document_bounds(result) == [[0, 3]]
    assert result.documents is not None
    assert [result.documents.at(token) for token in range(3)] == [0, 0, 0]


Lie = tuple[Files, type[LowtideError], tuple[object, ...]]
TRAIN = "splits/train/0/"


def without(name: str) -> Files:
    return {key: value for key, value in FILES.items() if key != name}


LIES: dict[str, Lie] = {
    "json": ({**FILES, "corpus.json": b'{"format": '}, FormatError, ("invalid JSON",)),
    "list": ({**FILES, "corpus.json": b"[]"}, FormatError, ("JSON object",)),
    "twice": ({**FILES, "corpus.json": b'{"format": 1, "format": 2}'}, FormatError, ("'format' occurs",)),
    "format": (changed("format", "lowtide array"), FormatError, ("'lowtide corpus'", "'lowtide array'")),
    "version": (changed("version", 2), FormatError, ("version 2", "newer lowtide")),
    "missing": (changed("eos", ...), FormatError, ("missing: eos",)),
    "unknown": (changed("colour", 1), FormatError, ("unknown: ['colour']",)),
    "layout": (changed("layout", "zarr"), FormatError, ("'shards' or 'nanogpt' or 'llmc'", "'zarr'")),
    "dtype": (changed("dtype", "int32"), FormatError, ("'uint16' or 'uint32'", "'int32'")),
    "vocab": (changed("vocab_size", 65537), FormatError, ("vocab_size", "65536", "65537")),
    "vocab-bool": (changed("vocab_size", True), FormatError, ("vocab_size", "True")),
    "eos": (changed("eos", 50257), FormatError, ("eos", "0 to 50256", "50257")),
    "splits": (changed("splits", []), FormatError, ("splits", "[]")),
    "split-name": (changed("splits", {"../x": []}), FormatError, ("splits", "../x")),
    "split": (changed("splits/train", {}), FormatError, ("splits.train", "list of shards")),
    "shard": (changed("splits/train/0", 7), FormatError, ("splits.train[0]", "found 7")),
    "shard-key": (changed(TRAIN + "sha256", ...), FormatError, ("splits.train[0]", "missing: sha256")),
    "digest": (changed(TRAIN + "sha256", "abc"), FormatError, ("splits.train[0].sha256", "64", "'abc'")),
    "name-parent": (changed(TRAIN + "file", "../a.bin"), FormatError, ("plain file name", "../a.bin")),
    "name-absolute": (changed(TRAIN + "file", "/etc/passwd"), FormatError, ("plain file name",)),
    "name-zero": (changed(TRAIN + "file", "a\0"), FormatError, ("plain file name",)),
    "name-dots": (changed(TRAIN + "ends", ".."), FormatError, ("splits.train[0].ends", "plain file name")),
    "name-twice": (changed(TRAIN + "file", "train-00001.bin"), FormatError, ("'train-00001.bin' twice",)),
    "tokenizer": (changed("tokenizer/file", "a/b"), FormatError, ("tokenizer.file", "plain file name")),
    "tokenizer-name": (changed("tokenizer/name", ""), FormatError, ("tokenizer.name",)),
    "tokenizer-kind": (changed("tokenizer", []), FormatError, ("tokenizer", "expected an object")),
    "settings": (changed("settings", []), FormatError, ("settings is invalid",)),
    "ends-half": (changed(TRAIN + "ends", None), FormatError, ("splits.train[0]", "or none of them")),
    "tokens": (
        changed(TRAIN + "tokens", 6),
        TruncatedFileError,
        ("train-00000.bin", "10 bytes", "expected 12"),
    ),
    "tokens-less": (changed(TRAIN + "tokens", 4), FormatError, ("train-00000.bin", "10 bytes", "expected 8")),
    "tokens-negative": (changed(TRAIN + "tokens", -1), FormatError, ("splits.train[0].tokens", "-1")),
    "documents": (
        changed(TRAIN + "documents", 2),
        TruncatedFileError,
        ("train-00000.ends", "8 bytes", "expected 16"),
    ),
    "gone": (without("train-00001.bin"), NotFoundError, ("train-00001.bin", "splits.train[1].file")),
    "ends-gone": (without("train-00001.ends"), NotFoundError, ("train-00001.ends", "splits.train[1].ends")),
    "ends-short": ({**FILES, "train-00001.ends": ends(1, 2)}, FormatError, ("before token 7 of 8",)),
    "ends-beyond": ({**FILES, "train-00001.ends": ends(1, 4)}, FormatError, ("found 4",)),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_corpus_raises(tmp_path: Path, name: str) -> None:
    files, kind, says = LIES[name]
    put(tmp_path, files)
    with refused(kind, tmp_path, *says):
        find(tmp_path)


def test_ends_for_only_some_shards_raise(tmp_path: Path) -> None:
    bare = Shard("train-00001.bin", 3, DIGEST)
    with refused(FormatError, "for all shards or for none"):
        dataclasses.replace(MANIFEST, splits={"train": [shard("train-00000", 5, 1), bare]}).to_json()


@examples(6, deadline=2000)
@given(data=st.data(), name=st.sampled_from(["corpus.json", "train-00000.bin", "train-00001.ends"]))
def test_damaged_file_raises_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    files = {**FILES, name: data.draw(damaged([FILES[name]], head=900 if name == "corpus.json" else 16))}
    assert_honest_corpus(put(tmp_path_factory.getbasetemp() / "fuzz-own", files))


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3) | st.floats() | st.just([])
)


@examples(6, deadline=2000)
@given(
    path=st.sampled_from(
        [
            *json.loads(MANIFEST.to_json()),
            *(TRAIN + key for key in Shard.__dataclass_fields__),
            "tokenizer/sha256",
        ]
    ),
    value=VALUES | st.dictionaries(st.text(max_size=2), VALUES, max_size=2),
)
def test_any_manifest_value_raises_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: Any
) -> None:
    assert_honest_corpus(put(tmp_path_factory.getbasetemp() / "fuzz-own", changed(path, value)))
