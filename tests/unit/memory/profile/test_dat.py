"""memory_profiler's format and lowtide's document: round trips, and errors of damaged files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lowtide._memory.peaks import Peak
from lowtide._memory.profile import dat, document
from lowtide._memory.profile.recording import KEEP, Point, Recording
from lowtide._memory.profile.verdict import judge
from lowtide.errors import FormatError, NotFoundError, WriteError

MIB = 2**20

# Written by memory_profiler's `mprof run`, with a child and a function.
FOREIGN = b"""CMDLINE python train.py --fast
MEM 1.500000 1700000000.0000
MEM 20.250000 1700000000.1000
CHLD 4711 10.000000 1700000000.1100
FUNC __main__.step 20.2500 1700000000.1000 30.0000 1700000000.2000
MEM 30.000000 1700000000.2000
"""


def parse(data: bytes, path: str = "x.dat") -> Recording:
    return dat.parse(data.split(b"\n"), path)


def test_mprof_file_is_read() -> None:
    recording = parse(FOREIGN)
    assert recording.command == ["python", "train.py", "--fast"]
    assert [point.anon / MIB for point in recording.points] == [1.5, 30.25, 30.0]
    assert recording.points[1].time == pytest.approx(0.1, abs=1e-6)
    assert not recording.split
    notes = " ".join(recording.blind)
    assert "calls of functions" in notes
    assert "what children share" in notes


def test_written_dat_file_round_trips(tmp_path: Path) -> None:
    recording = Recording(["python", "a b.py"], 1, 1700000000.0, 0.01)
    for index in range(50):
        recording.add(Point(index * 0.1, 0, 1, index * MIB, 10 * MIB, 0, 0, 0, 0, 0, 0))
    path = tmp_path / "x.dat"
    dat.save(str(path), recording)
    assert path.read_text().startswith("CMDLINE python 'a b.py'\nMEM 10.000000 1700000000.0000\n")
    again = parse(path.read_bytes(), str(path))
    assert [point.anon for point in again.points] == [(index + 10) * MIB for index in range(50)]


def test_rising_dat_file_grows_without_a_cause() -> None:
    text = "".join(f"MEM {index} {index / 10}\n" for index in range(200))
    verdict = judge(parse(text.encode(), "x.dat"))
    assert verdict.grows
    assert verdict.cause is None
    assert verdict.line.startswith("grows: 10.0 MiB per second")
    level = judge(parse(b"".join(b"MEM 5 %d\n" % index for index in range(99)), "x.dat"))
    assert level.line == "bounded: peak 0 MiB over base, flat for 98.0 s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no MEM line"),
        (b"CMDLINE x\n", "no MEM line"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "line 1"),
        (b"MEM 1.0 2.0\nMEM twelve 3.0\n", "line 2: not a sample .b'twelve 3.0', expected a size"),
        (b"MEM 1.0\n", "line 1: not a sample"),
        (b"MEM nan 1.0\n", "impossible sample"),
        (b"MEM -5 1.0\n", "impossible sample"),
        (b"MEM 1e999 1.0\n", "impossible sample"),
        (b"MEM 1e308 1.0\n", "impossible sample"),
        (b"MEM 1.0 1e300\n", "impossible sample"),
        (b"MEM 1.0 -1.0\n", "impossible sample"),
    ],
)
def test_invalid_line_raises_with_its_number(text: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(text, "x.dat")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read the JSON of `lowtide profile --save`"),
        ("{}", "lowtide_profile is None"),
        ('{"lowtide_profile": 99}', "99"),
        ('{"lowtide_profile": 1}', "'verdict' is invalid .found None, expected a str"),
        (
            '{"lowtide_profile": 1, "verdict": "v", "command": [], "grows": true, "split": true, '
            '"samples": [{}], "mappings": []}',
            "sample 0 has no",
        ),
        (
            '{"lowtide_profile": 1, "verdict": "v", "command": [], "grows": true, "split": true, '
            '"samples": [7], "mappings": []}',
            "sample 0 has no",
        ),
    ],
)
def test_invalid_document_raises(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        document.load(str(path))


def test_unsorted_times_are_sorted() -> None:
    recording = parse(b"MEM 3 30\nCHLD 1 7 25\nMEM 1 10\nMEM 2 20\n", "x.dat")
    assert [(point.time, point.anon // MIB) for point in recording.points] == [(0, 1), (10, 9), (20, 3)]


def test_thinning_keeps_peak_and_end() -> None:
    lines = [b"MEM %d %d" % (5000 if index == 12_345 else 5, index) for index in range(100_001)]
    recording = dat.parse(lines, "x.dat")
    assert len(recording.points) <= KEEP
    assert max(point.anon for point in recording.points) == 5000 * MIB
    assert recording.points[-1].time == 100_000
    assert recording.interval == 1


def test_command_with_unicode_separators_is_split() -> None:
    assert parse("CMDLINE a\u2028b\x0cc \x85\nMEM 1 1\n".encode(), "x.dat").command == ["a", "b", "c"]


VALID = document.of(parse(FOREIGN))


def test_saved_document_loads(tmp_path: Path) -> None:
    document.save(str(tmp_path / "x.json"), VALID)
    assert document.load(str(tmp_path / "x.json")) == json.loads(json.dumps(VALID))


@pytest.mark.parametrize(
    "changed",
    [
        *({name: "x"} for name in ("grows", "base_mib", "peak_mib", "bytes_read", "mib_per_gib_read")),
        *({name: "x"} for name in ("page_cache_growth_mib", "started", "seconds", "status", "processes")),
        *({name: []} for name in ("budget", "cgroup_limit", "cause", "split", "verdict")),
        *({name: None} for name in ("grows", "base_mib", "peak_mib", "bytes_read", "samples", "mappings")),
        {"started": 10**17},
        {"started": -1},
        {"not_seen": [1]},
        {"not_seen": "all"},
        {"mappings": [1]},
        {"mappings": [{"path": []}]},
        {"mappings": [{"path": "x", "resident": "y"}]},
        {"mappings": [{"path": "x", "size": -1}]},
        {"samples": [{**VALID["samples"][0], "time": True}]},
        {"samples": [{**VALID["samples"][0], "heap": 10**30}]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_document_with_impossible_values_raises(changed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**VALID, **changed}))
    with pytest.raises(FormatError, match=rf"x\.json: .*{next(iter(changed))[:6]}.*; write it again"):
        document.load(str(path))


@pytest.mark.parametrize(
    "text", ["[" * 10**6, '{"lowtide_profile": NaN}', '{"lowtide_profile": 1, "a": 1e999}']
)
def test_invalid_json_raises(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":' + text if text.startswith("[") else text)
    with pytest.raises(FormatError, match=r"x\.json: cannot read the JSON of `lowtide profile --save`"):
        document.load(str(path))


def test_file_over_size_limit_raises_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for head, limit in ((b'{"lowtide_profile": 1}', document.MAX_JSON), (b"MEM 1 1\n", document.MAX_DAT)):
        path.write_bytes(head)
        os.truncate(path, limit + 1)
        peak = Peak()
        with pytest.raises(FormatError, match=rf"{limit + 1} bytes, expected at most {limit}"):
            document.load(str(path))
        assert peak.read() - peak.base < 8 * MIB
        peak.close()


def test_path_that_is_not_utf8_round_trips(tmp_path: Path) -> None:
    document.save(str(tmp_path / "x.json"), {**VALID, "command": ["cat", os.fsdecode(b"\xff.txt")]})
    assert document.load(str(tmp_path / "x.json"))["command"] == ["cat", "?.txt"]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\n<!DOCTYPE html>", "an HTML page, perhaps a report already"),
        (b"memray\x00", "a capture file of memray"),
        (b'{"step": 1, "train_loss": 3.0}\n{', "the metrics of a training run"),
        (b'{"traceEvents": []}', "a trace for Chrome"),
        (b'{\n "format": "lowtide corpus",', "the index of a token corpus"),
    ],
)
def test_foreign_file_raises_with_its_kind(head: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(head)
    with pytest.raises(FormatError, match=rf"x: is {kind}.*, not a recording of memory; pass the JSON of"):
        document.load(str(tmp_path / "x"))


def test_missing_and_unwritable_files_raise(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        document.load(str(tmp_path / "none.dat"))
    recording = parse(FOREIGN)
    with pytest.raises(WriteError):
        dat.save(str(tmp_path / "no" / "x.dat"), recording)
    with pytest.raises(WriteError):
        document.save(str(tmp_path / "no" / "x.json"), document.of(recording))
