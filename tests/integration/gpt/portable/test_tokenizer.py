"""Tokenizers of every kind through ``transformers``: the same ids, the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowtide._gpt.portable import tokenizer as portable
from lowtide._prepare import tokenizers
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide._prepare.tokenizers.huggingface import BpeTokenizer, HuggingFaceTokenizer
from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer

TEXT = "The low tide — 潮 — leaves the sand  é 🌊 bare.\r\n\n  def f(x):\n\treturn 'x'  "


def tiktoken() -> TiktokenTokenizer:
    ranks = {bytes([byte]): byte for byte in range(256)}
    for token in (b"th", b"he", b" t", b" th", b" the", b"the", b"hea", b"leaves"[:4]):
        ranks[token] = len(ranks)
    return TiktokenTokenizer("own", r"\s?+\w++|\s+(?!\S)|\s+|[^\w\s]+", ranks, {"<|endoftext|>": 300})


MAKERS: dict[str, Any] = {
    "byte": lambda: tokenizers.make("byte"),
    "char": lambda: CharTokenizer(set(TEXT)),
    "tiktoken": tiktoken,
    "bpe": lambda: BpeTokenizer.create("bpe:300", tokenizers.Texts([TEXT])),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_transformers_tokenizer_matches_original(kind: str, tmp_path: Path) -> None:
    import transformers

    ours = MAKERS[kind]()
    files = portable.files_of(ours, 64)
    assert files is not None
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode_batch([TEXT])[0].tolist()
    assert theirs(TEXT, verbose=False)["input_ids"] == ids
    assert theirs.decode(ids) == ours.decode(ids) == TEXT
    assert theirs.eos_token_id == ours.eos
    assert theirs.model_max_length == 64


def test_tokenizer_that_decodes_differently_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that adds a prefix to every text in ``tokenizers``, and not in ours, for example."""
    ours = tokenizers.make("byte")
    monkeypatch.setattr(ours, "decode", lambda ids: "other")
    assert portable.files_of(ours, 64) is None


def test_eos_token_name_is_kept() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library = Tokenizer(models.BPE({one: id for id, one in enumerate(sorted(level.alphabet()))}, []))
    library.pre_tokenizer, library.decoder = level, decoders.ByteLevel()
    library.add_special_tokens(["<|pause|>", "<|im_end|>"])
    files = portable.files_of(HuggingFaceTokenizer(library, "given", eos=257), 8)
    assert files is not None
    assert '"eos_token": "<|im_end|>"' in files["tokenizer_config.json"]
