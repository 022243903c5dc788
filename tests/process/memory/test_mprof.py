"""``lowtide mprof`` and memory_profiler's mprof read each other's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lowtide._memory import mprof
from lowtide.errors import FormatError

SCRIPT = "import time\nblock = bytearray(b'x') * (64 << 20)\ntime.sleep(0.4)\nraise SystemExit(5)\n"


def run(folder: Path, *words: str, program: str = "lowtide.mprof") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_recording_is_listed_measured_plotted_and_removed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run(tmp_path, "run", "-T", "0.02", "-E", "script.py").returncode == 5
    [path] = tmp_path.glob(mprof.PATTERN)
    assert path.read_text().startswith(f"CMDLINE {sys.executable} script.py\nMEM ")
    assert run(tmp_path, "list").stdout.startswith(f"0 {path.name} ")
    name, size, unit = run(tmp_path, "peak").stdout.split()
    assert (name, unit) == (path.name, "MiB")
    assert 64 < float(size) < 96
    done = run(tmp_path, "plot", "-o", "picture.png", "0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert run(tmp_path, "rm", "--dry-run", "-1").stdout == f"{path.name}\n"
    assert path.exists()
    assert run(tmp_path, "clean").returncode == 0
    assert not path.exists()
    done = run(tmp_path, "peak")
    assert done.returncode == 1
    assert "there is no recording -1" in done.stderr


def test_memory_profiler_reads_the_recording(tmp_path: Path) -> None:
    pytest.importorskip("memory_profiler")
    (tmp_path / "script.py").write_text(SCRIPT)
    run(tmp_path, "run", "-T", "0.02", "-M", "-o", "a.dat", "script.py")
    theirs = run(tmp_path, "peak", "a.dat", program="mprof").stdout
    assert run(tmp_path, "peak", "a.dat").stdout.split()[1] == theirs.split()[1]
    run(tmp_path, "run", "-T", "0.02", "-o", "b.dat", "script.py", program="mprof")
    theirs = run(tmp_path, "peak", "b.dat", program="mprof").stdout
    assert run(tmp_path, "peak", "b.dat").stdout.split()[1] == theirs.split()[1]


def test_file_with_functions_and_children_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_text(
        "CMDLINE a b\nMEM 2.5 100.0\nCHLD 0 1.5 100.0\nMEM 3.5 100.1\nFUNC m.f 2.5 100.0 3.5 100.1\n"
    )
    recorded = mprof.read(str(path))
    assert recorded.command == "a b"
    assert recorded.functions == [("m.f", 2.5, 100.0, 3.5, 100.1)]
    assert recorded.children["0"].sizes == [1.5]
    mprof.plot([str(path)], None, str(tmp_path / "x.svg"))
    assert "child 0" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize("text", ["", "CMDLINE a\n", "MEM x 1\n", "MEM 1\n"])
def test_damaged_file_raises(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.dat"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"x\.dat"):
        mprof.read(str(path))


def test_missing_command_is_reported(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "no-such-command")
    assert done.returncode == 1
    assert "no-such-command: no such command" in done.stderr
