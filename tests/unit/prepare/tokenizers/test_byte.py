"""Bytes as tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide._prepare.tokenizers.byte import ByteTokenizer


@given(st.lists(st.text()))
def test_ids_are_utf8_bytes(texts: list[str]) -> None:
    tokenizer = ByteTokenizer()
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [list(text.encode()) for text in texts]
    assert [tokenizer.decode(ids) for ids in batch] == texts


def test_decoding_drops_end_of_text_and_replaces_invalid_bytes() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.eos) == (257, 256)
    assert tokenizer.decode([256, 97, 0xFF, 256]) == "a\ufffd"
