"""tiktoken's encodings: a small one that the test writes into tiktoken's own cache."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tiktoken.load
import tiktoken.registry

from lowtide._prepare.tokenizers import load, make
from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer
from lowtide.errors import ArgumentError, FormatError, NotFoundError
from tests.support.formats import refused

ADDRESS = "https://lowtide.invalid/small.tiktoken"
PATTERN = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
RANKS = {bytes([i]): i for i in range(256)} | {b"lo": 256, b"low": 257, b" t": 258, b" ti": 259}
TEXTS = ["", "low tide", "漢 😀\r\n\x00", "a <|endoftext|> in the text"]


def small() -> dict[str, Any]:
    return {
        "name": "small",
        "pat_str": PATTERN,
        "mergeable_ranks": tiktoken.load.load_tiktoken_bpe(ADDRESS),
        "special_tokens": {"<|endoftext|>": 270, "<|other|>": 271},
    }


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an encoding ``small`` that tiktoken would load into it."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", {"small": small})
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def fill(cache: Path) -> None:
    lines = [base64.b64encode(token) + f" {rank}\n".encode() for token, rank in RANKS.items()]
    (cache / hashlib.sha1(ADDRESS.encode()).hexdigest()).write_bytes(b"".join(lines))


def test_ids_match_tiktoken(cache: Path) -> None:
    fill(cache)
    tokenizer = make("small")
    library = tiktoken.get_encoding("small")
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eos) == ("small", 272, 270)
    ids = tokenizer.encode_batch(TEXTS)
    assert [one.tolist() for one in ids] == [library.encode_ordinary(text) for text in TEXTS]
    assert ids[1].tolist() == [257, 259, 100, 101]
    assert [tokenizer.decode(one) for one in ids] == TEXTS
    assert tokenizer.decode([257, 270, 0xFF]) == "low\ufffd"


def test_saved_tokenizer_loads_without_network(tmp_path: Path) -> None:
    tokenizer = TiktokenTokenizer(
        "small", PATTERN, RANKS, {"<|endoftext|>": 270, "<|other|>": 271}, "<|other|>"
    )
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json())
    one = load(path, trusted=True)
    assert (one.name, one.vocab_size, one.eos) == ("small", 272, 271)
    assert one.encode_batch(TEXTS)[1].tolist() == [257, 259, 100, 101]
    assert one.to_json() == tokenizer.to_json()
    path.write_text(tokenizer.to_json().replace('"bG8="', '"b"'))
    with refused(FormatError, path, "not a tokenizer of tiktoken"):
        load(path, trusted=True)


def test_error_without_network_shows_url_and_cache_path(cache: Path) -> None:
    place = cache / hashlib.sha1(ADDRESS.encode()).hexdigest()
    with refused(NotFoundError, "small", ADDRESS, place, "TIKTOKEN_CACHE_DIR"):
        make("small")
    fill(cache)
    assert place.exists()
    assert isinstance(make("small"), TiktokenTokenizer)


def test_unknown_name_raises_with_list_of_names(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(ArgumentError, "no tokenizer 'gpt5000'", "byte, char, ids:VOCAB", "bpe:VOCAB", "small"):
        make("gpt5000")
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", None)
    with refused(ArgumentError, "gpt2", "cl100k_base", "o200k_base"):
        make("gpt5000")
