"""Functions and objects as tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._prepare.tokenizers import load, make
from lowtide._prepare.tokenizers.ids import IdsTokenizer, adopt, code_of
from lowtide.errors import ArgumentError, FormatError, LowtideError
from tests.support.formats import refused
from tests.support.preparing import documents


def words(text: str) -> list[int]:
    """A tokenizer that other processes can import."""
    return [len(word) for word in text.split()]


TEXTS = ["low tide", "a bb ccc"]


@pytest.mark.parametrize("workers", [1, 8])
def test_function_tokenizer_encodes_in_calling_process(tmp_path: Path, workers: int) -> None:
    options: dict[str, Any] = {"vocab_size": 10, "eos": 9, "val_fraction": 0, "workers": workers}
    options |= {"tokenizer": lambda text: {"input_ids": words(text)}, "out": tmp_path / "corpus"}
    summary = lowtide.prepare(iter(TEXTS), **options)
    assert documents(tmp_path / "corpus", "train") == [[3, 4, 9], [1, 2, 3, 9]]
    assert (summary.manifest.vocab_size, summary.manifest.eos) == (10, 9)
    with refused(LowtideError, "already contains a corpus"):  # who knows what the function does today
        lowtide.prepare(iter(TEXTS), **options)
    with refused(ArgumentError, "has no tokenizer file"):
        lowtide.load_tokenizer(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("function", "options", "problem"),
    [
        (words, {}, "needs vocab_size"),
        (words, {"vocab_size": 0}, "vocab_size must be from 1"),
        (words, {"vocab_size": 3}, "the id 3 is not in the vocabulary"),
        (words, {"vocab_size": 5, "eos": 5}, "eos must be an id below 5"),
        (lambda text: [-1], {"vocab_size": 5}, "returned the id -1"),
        (lambda text: [1.5], {"vocab_size": 5}, "must return a list of ids, got [1.5] for 'low tide'"),
        (7, {}, "must be a name, a tokenizer or a function, got 7"),
        ("byte", {"vocab_size": 5}, "vocab_size is for a function"),
        ("byte", {"eos": 5}, "eos must be true or false for the tokenizer 'byte'"),
    ],
)
def test_unsuitable_function_raises(
    tmp_path: Path, function: Any, options: dict[str, Any], problem: str
) -> None:
    with refused(LowtideError, problem):
        lowtide.prepare(iter(["low tide"]), tmp_path / "x", tokenizer=function, workers=1, **options)


def test_tokenizer_objects_of_libraries_are_accepted(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    trained = lowtide.prepare(iter(["low tide " * 99]), tmp_path / "a", tokenizer="bpe:280", workers=1)
    assert trained.manifest.vocab_size is not None
    backend = library.Tokenizer.from_file(str(tmp_path / "a" / "tokenizer.json"))
    backend.enable_truncation(1)
    lowtide.prepare(iter(["low tide " * 99]), tmp_path / "b", tokenizer=backend, workers=1)
    assert documents(tmp_path / "a", "train") == documents(tmp_path / "b", "train")
    assert backend.truncation is not None
    tokenizer = load(tmp_path / "a" / "tokenizer.json", trusted=True)
    assert adopt(tokenizer, None, None) is tokenizer
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding(
        "own", pat_str=r".+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256}
    )
    adopted = adopt(encoding, None, None)
    assert (adopted.encode_batch(["low"])[0].tolist(), adopted.eos) == ([108, 111, 119], 256)


def test_invalid_ids_tokenizer_file_raises(tmp_path: Path) -> None:
    tokenizer = IdsTokenizer("ids:10", 10, 3)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json())
    loaded = load(path)
    assert (loaded.name, loaded.vocab_size, loaded.eos) == ("ids:10", 10, 3)
    content = json.loads(path.read_text())
    for change in ({"vocab_size": 0}, {"eos": 10}, {"name": 7}, {"vocab_size": "x"}):
        path.write_text(json.dumps({**content, **change}))
        with refused(FormatError, path):
            load(path)
    with refused(ArgumentError, "'ids:10' is not known here"):
        tokenizer.decode(np.array([1]))
    for name in ("ids", "ids:", "ids:x", "ids:0"):
        with refused(ArgumentError, "needs a number of ids such as ids:50257"):
            make(name)


def test_code_differs_between_functions() -> None:
    assert code_of(words) == code_of(words)
    assert code_of(lambda text: [1]) != code_of(lambda text: [2])
