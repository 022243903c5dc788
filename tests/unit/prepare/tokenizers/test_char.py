"""Characters as tokens, against what nanoGPT's script does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._prepare.tokenizers.char import CharTokenizer, alphabet
from lowtide.errors import ArgumentError, FormatError
from tests.support.formats import refused

TEXTS = st.lists(st.text(alphabet="abc \n\x7f\x80éÿ漢😀") | st.text(), min_size=1)
MANY = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))  # an alphabet that does not fit a byte


@given(TEXTS)
def test_ids_are_positions_in_sorted_alphabet(texts: list[str]) -> None:
    for extra in ("a", "ω", MANY):
        characters = sorted(set("".join(texts) + extra))
        places = {character: i for i, character in enumerate(characters)}
        letters = alphabet([*texts, extra])
        assert letters == "".join(characters)
        tokenizer = CharTokenizer(letters)
        assert (tokenizer.vocab_size, tokenizer.eos) == (len(characters), None)
        batch = tokenizer.encode_batch(texts)
        assert [ids.tolist() for ids in batch] == [[places[c] for c in text] for text in texts]
        assert [tokenizer.decode(ids) for ids in batch] == texts


@given(TEXTS, TEXTS)
def test_alphabet_is_union_of_partial_alphabets(one: list[str], other: list[str]) -> None:
    assert set(alphabet(one)) | set(alphabet(other)) == set(alphabet(one + other))


@pytest.mark.parametrize("characters", ["ab", "é", MANY, "".join(map(chr, range(255)))])
@pytest.mark.parametrize("unknown", ["~~\U0010ffff", "\u0800", "a\ud7ff"])
def test_character_outside_alphabet_raises(characters: str, unknown: str) -> None:
    with refused(FormatError, f"has {len(characters)} characters, but not", "'byte'"):
        CharTokenizer(characters).encode_batch([characters, characters + unknown])


def test_vocabulary_of_256_characters_is_encoded() -> None:
    characters = "".join(map(chr, range(256)))
    ids = CharTokenizer(characters).encode_batch(["\x00a\xff"])[0]
    assert ids.tolist() == [0, 97, 255]
    with refused(FormatError, "255 characters"):
        CharTokenizer(characters[1:]).encode_batch(["\0"])


def test_empty_alphabet_and_unknown_ids_raise() -> None:
    with refused(ArgumentError, "at least one character"):
        CharTokenizer("")
    for wrong in (3, -1):
        with refused(ArgumentError, f"the id {wrong} ", "ends at 2"):
            CharTokenizer("abc").decode(np.array([0, wrong]))
