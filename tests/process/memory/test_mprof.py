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


MARKED = """
import sys, time
@profile
def load(mib):
    block = bytearray(b"x") * (mib << 20)
    time.sleep(0.3)
    return block
@profile(precision=4)
def twice():
    return load(32), load(64)
print(len(twice()), sys.argv, __file__)
"""


def calls_of(path: Path) -> list[tuple[str, int, int]]:
    """Name, MiB added and depth of each call."""
    lines = [line.split() for line in path.read_text().splitlines() if line.startswith("FUNC ")]
    return [(words[1], round(float(words[4]) - float(words[2])), int(words[6])) for words in lines]


def test_calls_of_marked_functions_are_in_the_file_as_memory_profiler_writes_them(tmp_path: Path) -> None:
    pytest.importorskip("memory_profiler")
    (tmp_path / "script.py").write_text(MARKED)
    done = run(tmp_path, "run", "-E", "-T", "0.02", "-o", "a.dat", "script.py", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 ['script.py', '1'] script.py\n"
    calls = calls_of(tmp_path / "a.dat")
    assert calls == [("__main__.load", 32, 1), ("__main__.load", 64, 1), ("__main__.twice", 96, 0)]
    run(tmp_path, "run", "-T", "0.02", "-o", "b.dat", "script.py", "1", program="mprof")
    theirs = calls_of(tmp_path / "b.dat")
    assert [(name, depth) for name, _, depth in sorted(theirs)] == [(name, depth) for name, _, depth in calls]
    assert [mib for _, mib, _ in sorted(theirs)] == pytest.approx([mib for _, mib, _ in calls], abs=2)
    assert mprof.read(str(tmp_path / "a.dat")).command == f"{sys.executable} script.py 1"
    for program, least in (("mprof", 32), ("lowtide.mprof", 96)):  # theirs is of samples alone
        peak = run(tmp_path, "peak", "--func", "__main__.load", "a.dat", program=program).stdout.split()[-2]
        assert float(peak) > least, program
    assert "NaN MiB" in run(tmp_path, "peak", "--func", "no.such", "a.dat").stdout


def test_classes_and_forked_children_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\n@profile\nclass A: pass\nassert isinstance(A(), A)\n"
        "class B:\n    @profile\n    @staticmethod\n    def f(): return 1\n"
        "@profile\ndef f(): return B().f()\nf()\n"
        "if not os.fork(): sys.exit()\nos.wait()\n"
    )
    done = run(tmp_path, "run", "-E", "-o", "a.dat", "script.py")
    assert done.returncode == 0, done.stderr
    assert [name for name, _, _ in calls_of(tmp_path / "a.dat")] == ["__main__.f"]


def test_plot_shows_functions_slope_and_window(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    lines = [f"MEM {20 + index} {index}" for index in range(10)]
    lines += [f"FUNC m.f 20 {index} 21 {index + 0.5} 0" for index in range(300)]
    path.write_text("\n".join(lines))

    def texts(*options: str) -> str:
        done = run(tmp_path, "plot", "-o", "x.svg", *options, str(path))
        assert done.returncode == 0, done.stderr
        return (tmp_path / "x.svg").read_text()

    text = texts()
    assert text.count("m.f 150.000 s in 300 calls") == 1
    assert "slope" not in text
    text = texts("-n", "-s", "-w", "2,4.5")
    assert "m.f" not in text
    assert "slope 1.00000 MiB/s" in text
    assert "<!-- 8 -->" not in text
    done = run(tmp_path, "plot", "-w", "2", str(path))
    assert done.returncode == 2
    assert "'2' is not a window" in done.stderr


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


def test_command_that_cannot_be_run_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "no-such-command")
    assert done.returncode == 1
    assert "no-such-command: no such command" in done.stderr
    (tmp_path / "notes.txt").write_text("not a program")
    done = run(tmp_path, "run", "./notes.txt")
    assert done.returncode == 1
    assert "./notes.txt: cannot be executed (permission denied)" in done.stderr
    assert not list(tmp_path.glob("*.dat"))
    (tmp_path / "kept").write_text("")
    assert run(tmp_path, "run", "-o", "kept", "no-such-command").returncode == 1
    assert (tmp_path / "kept").exists(), "as /dev/null should be"
    assert "²: no such recording" in run(tmp_path, "peak", "²").stderr


def test_without_a_command_the_help_is_readable(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert "\n  peak   Print the peak" in done.stdout + done.stderr
