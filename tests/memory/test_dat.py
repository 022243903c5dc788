"""memory_profiler's format, there and back, and what is wrong with a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import FormatError, NotFoundError, WriteError
from lowtide.memory import dat, document
from lowtide.memory.recording import Point, Recording
from lowtide.memory.verdict import judge

MIB = 2**20

# Written by memory_profiler's `mprof run`, with a child and a function.
FOREIGN = b"""CMDLINE python train.py --fast
MEM 1.500000 1700000000.0000
MEM 20.250000 1700000000.1000
CHLD 4711 10.000000 1700000000.1100
FUNC __main__.step 20.2500 1700000000.1000 30.0000 1700000000.2000
MEM 30.000000 1700000000.2000
"""


def test_a_foreign_file_is_read() -> None:
    recording = dat.parse(FOREIGN, "x.dat")
    assert recording.command == ["python", "train.py", "--fast"]
    assert [point.anon / MIB for point in recording.points] == [1.5, 30.25, 30.0]
    assert recording.points[1].time == pytest.approx(0.1, abs=1e-6)
    assert not recording.split


def test_there_and_back(tmp_path: Path) -> None:
    recording = Recording(["python", "a b.py"], 1, 1700000000.0, 0.01)
    for index in range(50):
        recording.add(Point(index * 0.1, 0, 1, index * MIB, 10 * MIB, 0, 0, 0, 0, 0, 0))
    path = tmp_path / "x.dat"
    dat.save(str(path), recording)
    assert path.read_text().startswith("CMDLINE python 'a b.py'\nMEM 10.000000 1700000000.0000\n")
    again = dat.parse(path.read_bytes(), str(path))
    assert [point.anon for point in again.points] == [(index + 10) * MIB for index in range(50)]


def test_a_rising_dat_file_grows_and_names_no_cause() -> None:
    text = "".join(f"MEM {index} {index / 10}\n" for index in range(200))
    verdict = judge(dat.parse(text.encode(), "x.dat"))
    assert verdict.grows
    assert verdict.cause is None
    assert verdict.line.startswith("grows: 10.0 MiB per second")
    level = judge(dat.parse(b"".join(b"MEM 5 %d\n" % index for index in range(99)), "x.dat"))
    assert level.line == "bounded: peak 0 MiB over base, bytes read not known"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no MEM line"),
        (b"CMDLINE x\n", "no MEM line"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "line 1"),
        (b"MEM 1.0 2.0\nMEM twelve 3.0\n", "line 2: expected a size"),
        (b"MEM 1.0\n", "line 1: expected a size"),
        (b"MEM nan 1.0\n", "makes no sense"),
        (b"MEM -5 1.0\n", "makes no sense"),
        (b"MEM 1e999 1.0\n", "makes no sense"),
    ],
)
def test_a_wrong_file_says_where_it_is_wrong(text: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        dat.parse(text, "x.dat")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the JSON"),
        ("{}", "lowtide_profile is None"),
        ('{"lowtide_profile": 99}', "99"),
        ('{"lowtide_profile": 1}', "'verdict' should be a str"),
        (
            '{"lowtide_profile": 1, "verdict": "v", "command": [], "samples": [{}], "mappings": []}',
            "sample 0 has no",
        ),
        (
            '{"lowtide_profile": 1, "verdict": "v", "command": [], "samples": [7], "mappings": []}',
            "sample 0 has no",
        ),
    ],
)
def test_a_wrong_document_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        document.load(str(path))


def test_a_missing_file_and_an_unwritable_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        document.load(str(tmp_path / "none.dat"))
    recording = dat.parse(FOREIGN, "x.dat")
    with pytest.raises(WriteError):
        dat.save(str(tmp_path / "no" / "x.dat"), recording)
    with pytest.raises(WriteError):
        document.save(str(tmp_path / "no" / "x.json"), document.document(recording))
