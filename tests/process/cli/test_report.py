"""``lowtide report FILE``: from JSON and from memory_profiler's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOWTIDE = [sys.executable, "-c", "from lowtide.cli import main; main()"]


def report(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOWTIDE, "report", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_dat_file_becomes_a_page_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "mprofile.dat"
    path.write_text(
        "CMDLINE python x.py\n" + "".join(f"MEM {20 + index} {index / 10}\n" for index in range(100))
    )
    done = report(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("grows: 10.0 MiB per second")
    assert "python x.py" in (tmp_path / "mprofile.html").read_text()


def test_json_of_profile_becomes_the_same_page(tmp_path: Path) -> None:
    first, saved, again = tmp_path / "a.html", tmp_path / "a.json", tmp_path / "b.html"
    command = [*LOWTIDE, "profile", "--out", str(first), "--save", str(saved), "--", "sleep", "0.2"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert report(str(saved), "--out", str(again)).returncode == 0
    assert again.read_text() == first.read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "no MEM line"),
        (b"{}", "not of `lowtide profile"),
        (b"\x00\xff\n", "line 1"),
    ],
)
def test_invalid_input_exits_with_a_message(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    if content is not None:
        path.write_bytes(content)
    done = report(str(path))
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_unwritable_page_exits_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_text("MEM 1 1\n")
    done = report(str(path), "--out", str(tmp_path / "no" / "x.html"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
