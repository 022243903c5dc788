"""Texts: units of any size give what one reading of the whole gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide._prepare.inputs import find, plan
from lowtide._prepare.inputs.kind import ReadOptions, Unit
from lowtide._prepare.inputs.pieces import Piece, pieces
from lowtide._prepare.inputs.text import Text
from lowtide.errors import FormatError, NotFoundError, TruncatedFileError
from tests.support.formats import refused
from tests.support.pieces import documents, pieces_of

SIZES = st.integers(1, 60)
PIECES = st.integers(8, 40)
TEXTS = st.text(alphabet="ab \n\ré漢😀\ufeff|", min_size=1, max_size=150)
SEPARATORS = st.sampled_from(["\n\n", "\n", "|", "aa", "aba", "漢", "é😀", "\n\na", "a\n"])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts") / "x.txt"


def naive(data: bytes, separator: str) -> list[tuple[int, str]]:
    """Documents by bytes.split, as anybody would."""
    result, position = [], 0
    for part in data.split(separator.encode()):
        content = part.decode()
        if position == 0:
            content = content.removeprefix("\ufeff")
        if content:
            result.append((position, content))
        position += len(part) + len(separator.encode())
    return result


@given(TEXTS, SIZES, PIECES, SIZES)
@example("\ufeff", 1, 8, 1)
@example("a" * 32, 8, 8, 8)
def test_file_is_one_document_for_any_unit_size(
    file: Path, text: str, unit_size: int, piece_size: int, block: int
) -> None:
    file.write_bytes(text.encode())
    result = pieces_of(file, ReadOptions(unit_size=unit_size, piece_size=piece_size), block)
    expected = text.removeprefix("\ufeff")
    assert documents(result) == ([(0, expected)] if expected else [])
    assert result == pieces_of(file, ReadOptions(piece_size=piece_size)), "units changed where it is cut"
    if text == expected:
        assert [piece.text for piece in result] == list(pieces(text, piece_size))


@given(TEXTS, SEPARATORS, SIZES, PIECES, SIZES)
@example("a\n\n\nb\n\n\n\n\nc", "\n\n", 4, 8, 3)
@example("abababab", "aba", 3, 8, 2)
@example("aaaaa aa bbbb", "|", 60, 8, 9)  # a block ends just behind the space at the mark
def test_separated_documents_do_not_depend_on_unit_size(
    file: Path, text: str, separator: str, unit_size: int, piece_size: int, block: int
) -> None:
    file.write_bytes(text.encode())
    options = ReadOptions(split_on=separator, unit_size=unit_size, piece_size=piece_size)
    result = pieces_of(file, options, block)
    assert documents(result) == naive(text.encode(), separator)
    assert result == pieces_of(file, ReadOptions(split_on=separator, piece_size=piece_size))


@given(st.binary(max_size=120).filter(bool), SIZES, PIECES, SIZES)
def test_invalid_utf8_is_replaced_as_python_does(
    file: Path, data: bytes, unit_size: int, piece_size: int, block: int
) -> None:
    file.write_bytes(data)
    options = ReadOptions(unit_size=unit_size, piece_size=piece_size, replace=True)
    expected = data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    units = [
        Unit(0, str(file), Text(), None, start, min(start + unit_size, len(data)))
        for start in range(0, len(data), unit_size)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lowtide._prepare.inputs.streams.BLOCK", block)
        output = [piece.text for unit in units for piece in unit.read(options)]
    assert "".join(output) == expected


def test_invalid_utf8_raises_with_its_byte_offset(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"abc def " * 5 + b"\xff\xfe rest")
    with refused(FormatError, path, "byte 40", "ff fe", "on_error='replace'"):
        pieces_of(path, ReadOptions(piece_size=16, unit_size=10))


def test_bad_document_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"good|b\xffd|good too")
    wrong: list[Exception] = []
    result = pieces_of(path, ReadOptions(split_on="|"), skip=wrong.append)
    assert [piece.text for piece in result] == ["good", "good too"]
    assert ["byte 6" in str(error) for error in wrong] == [True]


def test_bad_piece_of_long_document_is_skipped_but_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"aaaaaaa bbbbbbb ccccccc \xffdddd")
    for unit_size in (5, 16, 100):
        wrong: list[Exception] = []
        options = ReadOptions(piece_size=8, unit_size=unit_size)
        result = pieces_of(path, options, skip=wrong.append)
        assert result[:2] == [Piece("aaaaaaa", False, 0, 0), Piece(" bbbbbbb", False, 0, 7)]
        assert result[-1].ends
        assert "".join(piece.text for piece in result) == "aaaaaaa bbbbbbb ccccccc"
        assert len(wrong) == 1


def test_file_truncated_after_planning_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for options in (ReadOptions(), ReadOptions(split_on="|")):
        path.write_bytes(b"abc" * 100)
        (unit,) = plan(find([str(path)]), options)
        path.write_bytes(b"abc" * 50)
        with refused(TruncatedFileError, path, "150 bytes, expected 300"):
            list(unit.read(options))
    path.unlink()
    for options in (ReadOptions(), ReadOptions(split_on="|")):
        with refused(NotFoundError, path):
            list(unit.read(options))


def test_newlines_are_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\r\nb\rc\n")
    assert [piece.text for piece in pieces_of(path, ReadOptions())] == ["a\r\nb\rc\n"]
