"""Hugging Face tokenizers, against the library itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from lowtide._prepare.tokenizers import Texts, load, make, probe
from lowtide._prepare.tokenizers.huggingface import BpeTokenizer, HuggingFaceTokenizer
from lowtide.errors import ArgumentError, FormatError, NotFoundError
from tests.support.formats import refused

SAMPLE = ["the tide is low, the moon is full: the sea went out", "low tide\n\nhigh tide 12:30 "] * 20
TEXTS = ["", "the low tide", "漢 😀\r\n\x00", "a <|endoftext|> in the text"]


@pytest.fixture(scope="module")
def bpe() -> HuggingFaceTokenizer:
    return BpeTokenizer.create("bpe:280", Texts(SAMPLE))


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "run", lambda path: None)


def altered(tokenizer: HuggingFaceTokenizer, path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**json.loads(tokenizer.to_json()), **changes}))
    return path


def test_trained_tokenizer_round_trips_text(bpe: HuggingFaceTokenizer) -> None:
    assert (bpe.name, bpe.vocab_size, bpe.eos) == ("bpe:280", 280, 0)
    ids = bpe.encode_batch(TEXTS)
    assert [bpe.decode(one) for one in ids] == TEXTS, "every byte can be encoded, and comes back"
    assert len(ids[1]) < len(TEXTS[1])
    assert bpe.eos not in ids[3], "a text cannot end a document"
    assert bpe.decode([*ids[1].tolist(), 0]) == TEXTS[1]


def test_ids_match_tokenizers_library(bpe: HuggingFaceTokenizer) -> None:
    library = tokenizers.Tokenizer.from_str(bpe.to_json())
    texts = TEXTS[:3] + SAMPLE
    expected = [encoding.ids for encoding in library.encode_batch(texts)]
    assert [ids.tolist() for ids in bpe.encode_batch(texts)] == expected


def test_cut_at_space_changes_no_token(bpe: HuggingFaceTokenizer) -> None:
    text = " ".join(SAMPLE).strip()
    whole = bpe.encode_batch([text])[0].tolist()
    for at in [i for i, c in enumerate(text) if c == " " and text[i - 1] != " " and text[i + 1] != " "]:
        one, other = bpe.encode_batch([text[:at], text[at:]])
        assert [*one.tolist(), *other.tolist()] == whole


def test_tokenizer_file_round_trips(bpe: HuggingFaceTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(bpe.to_json())
    for one in (make(str(path)), make(str(tmp_path)), load(path)):
        assert (one.vocab_size, one.eos) == (280, 0)
        assert one.encode_batch(["low tide"])[0].tolist() == bpe.encode_batch(["low tide"])[0].tolist()
        assert one.to_json() == bpe.to_json()
    assert make(str(path)).name == str(path)
    assert load(path, name="bpe:280", eos=7).eos == 7


def test_truncation_padding_and_post_processor_are_ignored(bpe: HuggingFaceTokenizer, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(bpe.to_json())
    library.enable_truncation(2)
    library.enable_padding(length=50)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    one = make(str(tmp_path / "tokenizer.json"))
    assert one.encode_batch(SAMPLE[:1])[0].tolist() == bpe.encode_batch(SAMPLE[:1])[0].tolist()


def test_eos_is_detected_by_token_name(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"low": 0, "</s>": 1, "<stop>": 9}, "low"))
    path = tmp_path / "words.json"
    words.save(str(path))
    assert (make(str(path)).eos, make(str(path)).vocab_size) == (1, 10), "the ids have holes"
    assert load(path, eos=9).eos == 9
    with refused(ArgumentError, "below 10, got 10"):
        load(path, eos=10)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"low": 0}, "low"))
    words.save(str(path))
    assert make(str(path)).eos is None


def test_unusable_tokenizer_raises(bpe: HuggingFaceTokenizer, tmp_path: Path) -> None:
    with refused(NotFoundError, "nothing.json"):
        make(str(tmp_path / "nothing.json"))
    path = tmp_path / "x.json"
    path.write_text("{")
    with refused(FormatError, path, "invalid JSON"):
        make(str(path))
    with refused(FormatError, path, "is not a tokenizer that tokenizers", tokenizers.__version__):
        make(str(altered(bpe, path, model={"type": "Unheard"})))
    with refused(ArgumentError, "bpe:256 is too small: 257"):
        make("bpe:256", Texts(SAMPLE))
    with refused(ArgumentError, "'bpe:many'", "bpe:8192"):
        make("bpe:many", Texts(SAMPLE))
    with refused(ArgumentError, "the id 280 is not in the vocabulary"):
        bpe.decode([280])
