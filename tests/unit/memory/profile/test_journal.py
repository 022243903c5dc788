"""A recording on disk while it is made: complete, cut off, damaged, long."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lowtide._memory.profile import document, journal
from lowtide._memory.profile.events import Event
from lowtide._memory.profile.recording import Charges, Detail, Point, Recording, Shares
from lowtide.errors import FormatError

MIB = 2**20
NAME = "/data/\udcff\n.bin"  # not UTF-8


def point(number: int) -> Point:
    return Point(number * 0.1, 0, 1, (40 + number) * MIB, 5 * MIB, 0, 0, number * MIB, 0, 0, 0)


def detail(number: int) -> Detail:
    values: dict[str, Any] = dict.fromkeys(Detail._fields, 0)
    values |= Detail._field_defaults
    values |= {"resident": (0, 0, 0), "proportional": (0, 0, 0), "mapped": {NAME: 3}, "cached": {NAME: 4}}
    return Detail(**{**values, "time": number * 0.1, "usage": None, "working_set": None})


def journalled(path: str | None, looks: int = 100, **fields: Any) -> tuple[Recording, journal.Journal]:
    recording = Recording(["python", "train.py"], 7, 1.7e9, 0.1, **fields)
    kept = journal.Journal(recording, path, {})
    for number in range(looks):
        recording.add(point(number))
        kept.add(recording.points[-1])
        if number % 10 == 0:
            sizes = (1.0 * number, 2.0, 3.0)
            for look in (
                detail(number),
                Shares(number * 0.1, 0, number, sizes, sizes),
                Charges(number * 0.1, number, 1, 2, 3, 4, 5),
            ):
                recording.add(look)
                kept.add(look)
    return recording, kept


def finish(recording: Recording, kept: journal.Journal) -> None:
    recording.ended, recording.status, recording.blind = 1.7e9 + 10, -9, ["nothing"]
    kept.finish()


def test_finished_recording_loads_as_same_document(tmp_path: Path) -> None:
    path = str(tmp_path / "a.recording")
    recording, kept = journalled(path, budget=100 * MIB, limit=128 * MIB)
    recording.events.append(Event("oom_kill", 9.9, 9.9, "killed", 7))
    finish(recording, kept)
    assert json.dumps(document.load(path)) == json.dumps(document.of(recording))


def test_unfinished_recording_is_on_disk_to_last_second(tmp_path: Path) -> None:
    path = tmp_path / "a.recording"
    recording, _ = journalled(str(path))
    result = document.load(str(path))
    assert recording.points[-1].time - result["samples"][-1]["time"] <= 1.0
    assert result["status"] is None
    assert "the profiler was killed" in result["not_seen"][-1]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_truncated_last_line_is_skipped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "a.recording"
    recording, kept = journalled(str(path))
    kept.flush()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    # The last line of all is the 100th point.
    assert document.load(str(path))["samples"][-1]["time"] == pytest.approx(recording.points[-2].time)


def test_size_of_long_recording_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MAX_SIZE", 100_000)
    monkeypatch.setattr("lowtide._memory.profile.recording.KEEP", 512)
    path = tmp_path / "a.recording"
    recording, kept = journalled(str(path), looks=6_000)
    finish(recording, kept)
    # What the recording keeps, and what has come since the file was written again.
    assert path.stat().st_size < 2 * (512 * (100 + 120 + 100) + 128 * 700)
    assert os.listdir(tmp_path) == ["a.recording"]
    result = document.load(str(path))
    assert result["samples"][0]["time"] < 10
    assert result["samples"][-1]["time"] == pytest.approx(599.9)


def test_file_is_not_rewritten_for_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what the recording keeps is larger than the limit."""
    monkeypatch.setattr(journal, "_MAX_SIZE", 1000)
    replaced: list[str] = []
    replace = os.replace

    def count(old: str, new: str) -> None:
        replaced.append(new)
        replace(old, new)

    monkeypatch.setattr(os, "replace", count)
    journalled(str(tmp_path / "a.recording"), looks=1000)
    assert 3 <= len(replaced) <= 10, "each time the file has doubled"


def test_full_disk_ends_journal_but_not_recording() -> None:
    recording, kept = journalled("/dev/full")
    finish(recording, kept)
    kept.close()
    assert len(recording.points) == 100
    recording, _ = journalled("/no/such/folder/x")
    assert recording.blind == ["the recording on disk ends early: no such file or directory"]


def test_temporary_file_is_private_and_removed_at_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert journal.newest() is None
    recording, kept = journalled(None)
    assert kept.path == journal.newest()
    assert Path(str(kept.path)).stat().st_mode & 0o777 == 0o600
    finish(recording, kept)
    kept.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, '{"lowtide_recording":9}'),
        (1, '{"lowtide_recording":1,"command":[7]}'),
        (
            1,
            '{"lowtide_recording":1,"command":["x"],"pid":1,"started":1e17,"interval":1,"budget":null,'
            '"limit":null,"attached":false}',
        ),
        (5, "what?"),
        (5, '["point",[1,2]]'),
        (5, '["point",[0,0,"x",0,0,0,0,0,0,0,0]]'),
        (5, '["point",[0,0,1,-5,0,0,0,0,0,0,0]]'),
        (5, '["point",[1e15,0,1,5,0,0,0,0,0,0,0]]'),
        (9, '["point",[0.1,0,1,5,0,0,0,0,0,0,0]]'),
        (5, '["detail",{"time":1}]'),
        (5, '["event",{"kind":"oom_kill","time":0,"until":0,"text":7}]'),
        (5, '["other",[]]'),
        (5, '["end",{}]'),
        (5, '["end",{"ended":0,"status":{},"true_peak":0,"read_total":0,"most_processes":0,"blind":[]}]'),
        (5, "[" * 100_000),
        (5, "7"),
    ],
)
def test_damaged_recording_raises(number: int, line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.recording"
    journalled(str(path))
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(FormatError, match="record again with `lowtide profile`"):
        document.load(str(path))


def test_kills_after_end_of_recording_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.trees import FakeTree

    tree = FakeTree(tmp_path, monkeypatch)
    tree.process("0::/c\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    group = tree.group("c", events="low 0\noom 2\noom_kill 3", current=1, stat="anon 1")
    for counters, later in (({group: {"oom_kill": 1}}, True), ({group: {"oom_kill": 3}}, False)):
        path = str(tmp_path / "a.recording")
        journal.Journal(Recording(["x"], 7, 1.7e9, 0.1), path, counters)
        texts = [event["text"] for event in document.load(path)["events"]]
        expected = "since the recording started, the kernel OOM-killed processes of its container: 2"
        assert texts == ([expected] if later else [])
