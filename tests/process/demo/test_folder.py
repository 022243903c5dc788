"""A demo's folder is refreshed; others are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.demo.folder import Folder
from lowtide.errors import ArgumentError, WriteError


@pytest.mark.parametrize("there", [False, True])
def test_new_or_empty_folder_is_marked(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "some" / "demo"
    if there:
        path.mkdir(parents=True)
    Folder(str(path)).prepare()
    assert [one.name for one in path.iterdir()] == ["demo.json"]


def test_only_files_of_earlier_demo_are_removed(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "demo"))
    folder.prepare()
    folder.keep({"tokens": 5})
    for name in (
        "text/a.py",
        "corpus/train.bin",
        "run/best.pt",
        "scratch/array.npy",
        "report.html",
        "curves.svg",
    ):
        (tmp_path / "demo" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "demo" / name).write_text("old")
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    folder.prepare()
    assert sorted(one.name for one in (tmp_path / "demo").iterdir()) == ["demo.json", "notes.txt"]
    assert "tokens" not in json.loads(Path(folder.mark).read_text())


@pytest.mark.parametrize("mark", [None, "{}", "[1]", "no json"])
def test_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path, mark: str | None) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "thesis.txt").write_text("years of work")
    if mark is not None:
        (tmp_path / "demo.json").write_text(mark)
    with pytest.raises(ArgumentError, match=r"has files, but not those of a demo.*--out"):
        Folder(str(tmp_path)).prepare()
    assert (tmp_path / "text" / "thesis.txt").read_text() == "years of work"


def test_file_as_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(ArgumentError, match="is a file, not a folder"):
        Folder(str(tmp_path / "demo")).prepare()


def test_unwritable_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        Folder(str(tmp_path / "file" / "demo")).prepare()
