"""Foreign text in terminals and logs: shown, never obeyed."""

from __future__ import annotations

from lowtide._printable import brief, printable


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31mred\nb\u202e.npy") == r"a\x1b[31mred\nb\u202e.npy"
    assert printable("one\ntwo\t", keep="\n") == "one\ntwo\\t"


def test_printable_text_is_unchanged() -> None:
    text = "café 漢字.npy"
    assert printable(text) is text


def test_surrogates_are_escaped() -> None:
    assert printable("\udcff.npy").encode() == rb"\udcff.npy"


def test_long_values_are_shortened() -> None:
    assert brief("x" * 1000, limit=8) == "'xxxxxxx…"
    assert brief([1, 2]) == "[1, 2]"


def test_values_without_a_repr_have_a_description() -> None:
    assert brief(10**5000) == "a int too large to show"
