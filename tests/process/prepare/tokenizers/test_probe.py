"""Tokenizers of strangers cannot end this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide._prepare.tokenizers import Texts, Tokenizer, load, make, probe
from lowtide._prepare.tokenizers.byte import ByteTokenizer
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide._prepare.tokenizers.huggingface import BpeTokenizer
from lowtide._prepare.tokenizers.kind import library_errors
from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer
from lowtide.errors import ArgumentError, FormatError
from tests.support.formats import refused

RANKS = {bytes([i]): i for i in range(256)}
TOKENIZERS: list[Tokenizer] = [
    ByteTokenizer(),
    CharTokenizer("abc"),
    BpeTokenizer.create("bpe:257", Texts(["low tide"])),
    TiktokenTokenizer("small", r"\w+|\s+", RANKS, {"<|endoftext|>": 300}),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(BpeTokenizer.create("bpe:260", Texts(["low tide"])).to_json())
    return path


def test_tokenizer_that_crashes_probe_raises(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PROGRAM", "import os; os.abort()")
    for refusing in (load, make):
        with refused(FormatError, file, "ended the process", "-6"):
            refusing(str(file))
    assert load(file, trusted=True).vocab_size >= 257


def test_tokenizer_that_hangs_probe_raises(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", 0.1)
    monkeypatch.setattr(probe, "_PROGRAM", "import time; time.sleep(60)")
    with refused(FormatError, file, "takes over 0.1 s"):
        load(file)


def test_vocabulary_with_huge_id_raises(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 2**31}, "unk_token": "a"}
    content: dict[str, object] = {"version": "1.0", "added_tokens": [], "model": model}
    for key in ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        content[key] = None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with refused(FormatError, path, str(2**31 + 1)):
        load(path, name=str(path), trusted=True)
    with refused(FormatError, path.name):
        load(path)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"model": ' * 500 + "1" + "}" * 500, '{"model": 1, "model": 2}']
)
def test_nested_or_duplicate_key_json_raises(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    for refusing in (load, make):
        with refused(FormatError, path, "invalid JSON"):
            refusing(str(path))


def test_library_panic_raises_format_error() -> None:
    class PanicException(BaseException):
        """As Rust's are: no Exception."""

    with refused(FormatError, "x.json", "PanicException: index out of bounds"), library_errors("x.json"):
        raise PanicException("index out of bounds")


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "ids", [[-1], [2**63], [10**30], [0.5], ["a"], [float("nan")], [True], [None], [299]]
)
def test_decoding_invalid_ids_raises(tokenizer: Tokenizer, ids: list[object]) -> None:
    with pytest.raises(ArgumentError):
        tokenizer.decode(ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda one: one.name)
def test_lone_surrogate_in_text_raises(tokenizer: Tokenizer) -> None:
    with refused(ArgumentError, "valid Unicode", "'\\ud800' at character 1"):
        tokenizer.encode_batch(["a\ud800"])


@pytest.mark.parametrize("characters", ["ba", "aa", ""])
def test_unsorted_alphabet_raises(tmp_path: Path, characters: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(CharTokenizer("ab").to_json().replace('"ab"', json.dumps(characters)))
    with refused(FormatError, path, "sorted and without duplicates"):
        load(path)


@pytest.mark.parametrize("name", ["byte", "char"])
def test_own_tokenizer_file_loads_by_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(make(name, Texts(["low tide"])).to_json())
    assert make(str(path)).name == make(str(tmp_path)).name == name
