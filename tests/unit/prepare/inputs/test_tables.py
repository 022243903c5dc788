"""Parquet files and the Arrow streams of data sets."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._prepare.inputs import find, plan
from lowtide._prepare.inputs.datasets import DataSet
from lowtide._prepare.inputs.kind import ReadOptions, Unit
from lowtide.errors import FormatError
from tests.support.formats import refused
from tests.support.pieces import documents, pieces_of
from tests.support.tables import both, write

TEXTS = st.lists(st.text(alphabet="ab é漢😀", max_size=30), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@both
@given(texts=TEXTS, rows=st.integers(1, 9), unit_size=st.sampled_from([1, 100, 300, 2**20]))
def test_rows_do_not_depend_on_unit_size(
    folder: Path, kind: str, texts: list[str], rows: int, unit_size: int
) -> None:
    path = write(folder / f"x.{kind}", pa.array(texts), rows)
    result = pieces_of(path, ReadOptions(unit_size=unit_size, piece_size=8))
    assert documents(result) == [(i, text) for i, text in enumerate(texts) if text]


@both
def test_small_row_groups_share_unit_and_large_ones_do_not(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array([f"{i:09}" * 100 for i in range(40)]))
    sources = find([str(path)])
    assert len(plan(sources, ReadOptions(unit_size=1))) == 10
    assert len(plan(sources, ReadOptions())) == 1
    some = plan(sources, ReadOptions(unit_size=7000))
    assert 2 < len(some) < 10
    assert [unit.start for unit in some[1:]] == [unit.stop for unit in some[:-1]]


def test_unit_can_start_and_end_inside_record_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.array(list("abcdefghij")), rows=4)
    unit = Unit(0, str(path), DataSet(), None, 3, 6)
    assert documents(list(unit.read(ReadOptions()))) == [(3, "d"), (4, "e"), (5, "f")]


@both
@pytest.mark.parametrize("type_", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_string_type_is_read(tmp_path: Path, kind: str, type_: Any) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array(["low", "tide", "low"]).cast(type_))
    assert [piece.text for piece in pieces_of(path, ReadOptions())] == ["low", "tide", "low"]


@both
def test_bad_rows_are_reported_and_can_be_skipped(tmp_path: Path, kind: str) -> None:
    column = pa.array([b"low", b"t\xffde", None, b"tide"]).view(pa.string())
    path = write(tmp_path / f"x.{kind}", column)
    with refused(FormatError, path, "row 1, byte 1 of the text", "ff 64 65"):
        pieces_of(path, ReadOptions())
    wrong: list[Exception] = []
    result = pieces_of(path, ReadOptions(), skip=wrong.append)
    assert documents(result) == [(0, "low"), (3, "tide")]
    assert len(wrong) == 2
    assert "row 2: column 'text' must be a string, found null" in str(wrong[1])
    with refused(FormatError, "row 2"):
        pieces_of(path, ReadOptions(replace=True))


@both
def test_text_field_selects_column(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array([1, 2]), name="body")
    with refused(FormatError, path, "has no column 'text', found ['first', 'body']", "text_field"):
        plan(find([str(path)]), ReadOptions())
    with refused(FormatError, path, "column 'body' must contain strings or token ids, found int64"):
        plan(find([str(path)]), ReadOptions(text_field="body"))


@both
def test_damaged_file_raises(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array(["low tide " * 1000] * 100))
    path.write_bytes(path.read_bytes()[:-20])
    with refused(FormatError, path, "not a valid file"):
        pieces_of(path, ReadOptions())


@pytest.mark.parametrize("wrong", [-1, 2**31 - 1, 3, -(2**31)])
def test_offsets_outside_text_raise(tmp_path: Path, wrong: int) -> None:
    """The library does not check them: it read other memory, or ended the process."""
    path = write(tmp_path / "x.arrow", pa.array(["a" * 9] * 8), rows=8)
    data = path.read_bytes()
    at = data.index(struct.pack("<4i", 0, 9, 18, 27)) + 8
    path.write_bytes(data[:at] + struct.pack("<i", wrong) + data[at + 4 :])
    with refused(FormatError, path, "not a valid file"):
        pieces_of(path, ReadOptions())


def test_indices_outside_dictionary_raise(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.array(["a", "b"] * 4).dictionary_encode(), rows=8)
    data = path.read_bytes()
    at = data.rindex(struct.pack("<4i", 0, 1, 0, 1)) + 8
    path.write_bytes(data[:at] + struct.pack("<i", 1000) + data[at + 4 :])
    with refused(FormatError, path, "not a valid file"):
        pieces_of(path, ReadOptions())


@both
def test_damaged_file_leaks_no_descriptor(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array([f"{i:09}" * 100 for i in range(40)]))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(100) + data[len(data) // 2 + 100 :][:-12])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(lowtide.LowtideError) as caught:
            pieces_of(path, ReadOptions())
        del caught
    assert len(os.listdir("/proc/self/fd")) <= before
