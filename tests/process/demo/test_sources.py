"""The text of the demo: sources, in the encoding that they say of themselves."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from lowtide.demo import sources
from lowtide.errors import NotFoundError


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    for name, data in {
        "a.py": b"low = 1\n",
        "inner/b.py": "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"),
        "inner/empty.py": b" \n",
        "broken.py": b"# \xff\n",
        "data.txt": b"no source",
        "test/test_a.py": b"assert 1\n",
        "site-packages/other.py": b"other = 1\n",
        "__pycache__/a.py": b"cached = 1\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_sources_are_copied_as_utf8_without_tests_and_packages(library: Path, tmp_path: Path) -> None:
    result = sources.copy(str(tmp_path / "text"), 10**6, library=str(library))
    matches = {
        os.path.relpath(path, tmp_path / "text"): path.read_text(encoding="utf-8")
        for path in (tmp_path / "text").rglob("*")
        if path.is_file()
    }
    assert matches == {"a.py": "low = 1\n", "inner/b.py": "# -*- coding: latin-1 -*-\nname = 'é'\n"}
    assert (result.files, result.size) == (2, sum(len(text.encode()) for text in matches.values()))


def test_copy_stops_at_requested_size(library: Path, tmp_path: Path) -> None:
    assert sources.copy(str(tmp_path / "text"), 1, library=str(library)).files == 1


def test_library_without_sources_raises(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(NotFoundError, match="bare: has no Python sources"):
        sources.copy(str(tmp_path / "text"), 100, library=str(tmp_path / "bare"))


def test_standard_library_has_enough_sources(tmp_path: Path) -> None:
    result = sources.copy(str(tmp_path), 2**20)
    assert 2**20 <= result.size < 2 * 2**20
    ast.parse((tmp_path / "abc.py").read_text(encoding="utf-8"))
