"""JSON lines: units of any size, and every way in which a line is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide._prepare.inputs import find, plan
from lowtide._prepare.inputs.kind import ReadOptions
from lowtide.errors import FormatError, LowtideError, TruncatedFileError
from tests.support.formats import refused
from tests.support.pieces import documents, pieces_of

TEXTS = st.lists(st.none() | st.text(alphabet='ab \n"\\é漢😀', max_size=30), min_size=1, max_size=12)
SIZES = st.integers(1, 80)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jsonl") / "x.jsonl"


def line(text: str | None, ascii: bool) -> bytes:
    return b" " if text is None else json.dumps({"id": 1, "text": text}, ensure_ascii=ascii).encode()


@given(TEXTS, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.booleans(), SIZES, SIZES)
@example(["a"], b"\n", True, True, 1, 1)
def test_lines_do_not_depend_on_unit_size(
    file: Path, texts: list[str | None], newline: bytes, ascii: bool, ended: bool, unit_size: int, block: int
) -> None:
    expected, data = [], b""
    for i, text in enumerate(texts):
        if text:
            expected.append((len(data), text))
        data += line(text, ascii) + (newline if ended or i + 1 < len(texts) else b"")
    file.write_bytes(data)
    options = ReadOptions(unit_size=unit_size, piece_size=8)
    assert documents(pieces_of(file, options, block)) == expected


BAD = {
    b'{"text": "a"': "is not valid JSON",
    b"[" * 100_000: "is not valid JSON",
    b'["a"]': "must be a JSON object",
    b'{"body": "a"}': "has no field 'text', found ['body']",
    b'{"text": null}': "must be a string, found null",
    b'{"text": 5}': "must be a string, found 5",
    b'{"text": "a\xff"}': "byte 11 of the line: invalid UTF-8",
    b'{"text": "\\ud83d x"}': "half a surrogate pair, \\ud83d",
    b'{"text": "' + b"a" * 200_000 + b'"}': "is longer than 195.3 KiB",
}


@pytest.mark.parametrize("bad", BAD, ids=list(BAD.values()))
@pytest.mark.parametrize("unit_size", [7, 2**20])
def test_bad_line_is_reported_and_can_be_skipped(tmp_path: Path, bad: bytes, unit_size: int) -> None:
    path = tmp_path / "x.jsonl"
    good = b'{"text": "good"}\n'
    path.write_bytes(good + b"\n" + bad + b"\n" + good)
    options = ReadOptions(unit_size=max(unit_size, len(bad) // 10), line_limit=200_000)
    for block in (1000, 2**20):
        with refused(FormatError, path, "line 3, byte 18", BAD[bad]):
            pieces_of(path, options, block)
        wrong: list[Exception] = []
        pieces = pieces_of(path, options, block, wrong.append)
        assert [piece.text for piece in pieces] == ["good", "good"]
        assert len(wrong) == 1


def test_invalid_bytes_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a\xffb"}\n{"text": "\\ud83d x \\ud83d\\ude00"}\n')
    pieces = pieces_of(path, ReadOptions(replace=True))
    assert [piece.text for piece in pieces] == ["a\ufffdb", "\ufffd x 😀"]


def test_byte_order_mark_is_stripped_from_first_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    assert [piece.text for piece in pieces_of(path, ReadOptions())] == ["a"]


def test_line_at_limit_is_read_and_longer_line_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "abc"}')
    assert len(pieces_of(path, ReadOptions(line_limit=15))) == 1
    with refused(FormatError, "is longer than 14 B"):
        pieces_of(path, ReadOptions(line_limit=14))


def test_text_field_selects_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"body": "b", "text": "t"}')
    assert [piece.text for piece in pieces_of(path, ReadOptions(text_field="body"))] == ["b"]


def test_file_truncated_after_planning_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "abc"}\n' * 3)
    (unit,) = plan(find([str(path)]), ReadOptions())
    path.write_bytes(b'{"text": "abc"}\n')
    with refused(TruncatedFileError, path, "16 bytes, expected 48"):
        list(unit.read(ReadOptions()))


def test_json_parser_limits_raise_lowtide_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": ' + b"1" * 5000 + b"}")  # more digits than Python reads
    with pytest.raises(LowtideError, match="line 1"):
        pieces_of(path, ReadOptions())


def test_line_of_many_small_values_is_rejected_before_parsing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a", "b": [' + b"[]," * 2_000_000 + b"[]]}\n" + b'{"text": "b"}\n')
    with refused(FormatError, path, "line 1", "of memory, expected at most 256.0 MiB"):
        pieces_of(path, ReadOptions())
    assert documents(pieces_of(path, ReadOptions(), skip=lambda error: None))[0][1] == "b"
