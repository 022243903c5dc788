"""What all tokenizers share: names, files, checks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lowtide._prepare.tokenizers import Texts, checked, load, load_tokenizer, make, probe
from lowtide._prepare.tokenizers.byte import ByteTokenizer
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide._tokens.formats import own
from lowtide.errors import ArgumentError, FormatError, NotFoundError
from tests.support.formats import refused


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "run", lambda path: None)


@pytest.mark.parametrize("name", ["byte", "char", "bpe:260"])
def test_saved_tokenizer_round_trips(tmp_path: Path, name: str) -> None:
    tokenizer = make(name, Texts(["low tide\ud7ff😀"]))
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json())
    one = load(path, name=name)
    assert (one.name, one.vocab_size, one.eos, one.to_json()) == (
        name,
        tokenizer.vocab_size,
        tokenizer.eos,
        tokenizer.to_json(),
    )
    assert one.encode_batch(["low tide"])[0].tolist() == tokenizer.encode_batch(["low tide"])[0].tolist()


def test_ids_are_checked_and_cast() -> None:
    ids = checked(np.array([0, 256], np.uint32), ByteTokenizer())
    assert (ids.dtype, ids.tolist()) == (np.dtype("<u2"), [0, 256])
    assert checked(np.array([255], np.uint8), ByteTokenizer()).dtype == np.dtype("<u2")
    assert checked(np.array([], np.uint32), ByteTokenizer()).dtype == np.dtype("<u2")
    with refused(FormatError, "the id 257 is not in the vocabulary of the tokenizer 'byte'", "ends at 256"):
        checked(np.array([0, 257], np.uint32), ByteTokenizer())
    small = CharTokenizer("ab")
    assert checked(np.array([0, 1], np.uint32), small).dtype == np.dtype("u1")
    with refused(FormatError, "the id 2 is not in the vocabulary of the tokenizer 'char'", "ends at 1"):
        checked(np.array([0, 2], np.uint8), small)


def test_trained_tokenizer_without_texts_raises() -> None:
    for name in ("char", "bpe:300"):
        with refused(ArgumentError, f"'{name}' is created from the text", "tokenizer.json"):
            make(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "invalid JSON"),
        ("[]", "is not a tokenizer"),
        ("{}", "is not a tokenizer"),
        ({"version": 2}, "newer lowtide (version 2 "),
        ({"kind": "word"}, "kind 'word'"),
        (
            {"kind": "char", "characters": ""},
            "(found '', expected a string, sorted and without duplicates)",
        ),
        ({"kind": "tiktoken"}, "not a tokenizer of tiktoken"),
    ],
)
def test_file_that_is_not_a_tokenizer_raises(tmp_path: Path, content: str | dict, words: str) -> None:
    path = tmp_path / "tokenizer.json"
    if isinstance(content, dict):
        content = json.dumps({"format": "lowtide tokenizer", "version": 1, "kind": "byte", **content})
    path.write_text(content)
    with refused(FormatError, path, words):
        load(path)
    path.unlink()
    with refused(NotFoundError, path):
        load(path)


def test_load_tokenizer_of_corpus_checks_vocabulary_size(tmp_path: Path) -> None:
    tokenizer = make("bpe:260", Texts(["low tide"]))
    shard = own.Shard("train-00000.bin", 3, "0" * 64)
    entry = own.Tokenizer("bpe:260", None, "tokenizer.json")
    manifest = own.Manifest(
        "uint16", {"train": [shard]}, vocab_size=tokenizer.vocab_size, eos=5, tokenizer=entry
    )
    own.write(tmp_path, manifest)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    one = load_tokenizer(tmp_path)
    assert (one.name, one.eos) == ("bpe:260", 5)
    own.write(tmp_path, dataclasses.replace(manifest, vocab_size=1000))
    with refused(FormatError, tmp_path / "tokenizer.json", f"{tokenizer.vocab_size} ids", "expected 1000"):
        load_tokenizer(tmp_path)
    own.write(tmp_path, dataclasses.replace(manifest, tokenizer=None))
    with refused(ArgumentError, tmp_path / "corpus.json", "has no tokenizer file"):
        load_tokenizer(tmp_path)
