from __future__ import annotations

from pathlib import Path

import pytest

from lowtide._io import jsonfiles
from lowtide.errors import FormatError, NotFoundError


def test_valid_json_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, 2.5, null, true, "\\ud83d\\ude00é"], "b": {}}')
    layout = jsonfiles.load(tmp_path / "x.json", limit=1000, what="settings")
    assert layout == {"a": [1, 2.5, None, True, "\N{GRINNING FACE}é"], "b": {}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1', "Expecting ',' delimiter"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs more than once"),
        (b"[NaN]", "'NaN' is not a finite number"),
        (b"[-Infinity]", "'-Infinity' is not a finite number"),
        (b"[1e400]", "'1e400' is not a finite number"),
        (b"1" * 5000, "an integer of 5000 digits"),
        (b"1" * 200, "an integer of 200 digits"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b'{"\\udc00x": 1}', "surrogates not allowed"),
        (b'["\xff"]', "invalid start byte"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 101 + b"]" * 101, "nested too deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_invalid_json_raises_format_error(text: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(FormatError) as caught:
        jsonfiles.load(tmp_path / "x.json", limit=10**6, what="settings")
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'x.json'}: cannot read the settings (invalid JSON: ")
    assert len(str(caught.value)) < 1000


def test_hundred_nesting_levels_are_accepted() -> None:
    assert isinstance(jsonfiles.parse(b"[" * 100 + b"]" * 100, "x.json", "index"), list)


def test_file_beyond_size_limit_raises_without_reading(tmp_path: Path) -> None:
    with open(tmp_path / "x.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(FormatError, match=r"\(1099511627776 bytes, expected at most 1000\)"):
        jsonfiles.load(tmp_path / "x.json", limit=1000, what="settings")


@pytest.mark.parametrize("element", [b"[],", b"{},", b'{"":0},', b"0,", b'"a":0,'])
def test_values_beyond_memory_limit_raise(element: bytes) -> None:
    with pytest.raises(FormatError, match="its values take about"):
        jsonfiles.parse(b"[" + element * 4_000_000 + b"0]", "x.json", "index")


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        jsonfiles.load(tmp_path / "x.json", limit=1000, what="settings")
