"""Bytes as tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide._prepare.tokenizers.byte import ByteTokenizer


@given(st.lists(st.text()))
def test_ids_are_the_bytes_of_the_utf8(texts: list[str]) -> None:
    tokenizer = ByteTokenizer()
    made = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in made] == [list(text.encode()) for text in texts]
    assert [tokenizer.decode(ids) for ids in made] == texts


def test_what_is_decoded() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.eos) == (257, 256)
    assert tokenizer.decode([256, 97, 0xFF, 256]) == "a\ufffd"
