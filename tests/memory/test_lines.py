"""Memory line by line: growth by kind, and the true peak inside a line."""

from __future__ import annotations

import asyncio
import io
import mmap
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import lowtide
from lowtide._memory.lines.script import command
from lowtide.errors import ArgumentError
from lowtide.memory import profile_lines
from tests.support.pages import touch

MIB = 2**20


def figures(text: str, code: str) -> list[float]:
    """Hits, heap, mapped and peak of the line whose code contains ``code``."""
    [line] = [line for line in text.splitlines() if code in line and not line.lstrip().startswith("def")]
    return [float(word.replace("-", "0") if word == "-" else word) for word in line.split()[1:5]]


def inner() -> None:
    spike = touch(48 * MIB)
    del spike


def work(path: Path) -> int:
    kept = touch(32 * MIB)
    touch(64 * MIB)  # gone at once
    inner()
    file = open(path, "rb")  # noqa: SIM115
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    total = sum(mapped[:: mmap.PAGESIZE])
    del kept
    for _ in range(7):
        total += 1
    file.close()
    mapped.close()
    return total


def test_each_line_has_its_growth_and_peak(small: Path) -> None:
    stream = io.StringIO()
    measured = profile_lines(work, stream=stream)
    assert measured(small) > 0
    text = stream.getvalue()
    assert figures(text, "kept = touch") == pytest.approx([1, 32, 0, 32], abs=1)
    assert figures(text, "# gone at once") == pytest.approx([1, 0, 0, 64], abs=1)
    assert figures(text, "inner()") == pytest.approx([1, 0, 0, 48], abs=1)
    _, heap, mapped, peak = figures(text, "sum(mapped")
    assert [heap, mapped, peak] == pytest.approx([0, 96, 96], abs=1)
    assert figures(text, "del kept") == pytest.approx([1, -32, 0, 0], abs=1)
    assert figures(text, "total += 1")[0] == 7
    assert measured.lines() + "\n" == text  # type: ignore[attr-defined]


def test_peak_of_line_includes_measured_callees() -> None:
    @profile_lines(stream=io.StringIO())
    def outer(depth: int) -> None:
        if depth:
            outer(depth - 1)
        else:
            touch(40 * MIB)

    outer(3)
    text = outer.lines()  # type: ignore[attr-defined]
    assert figures(text, "outer(depth - 1)") == pytest.approx([3, 0, 0, 40], abs=1)


def test_generators_coroutines_and_errors_are_measured() -> None:
    @profile_lines(stream=io.StringIO())
    def items() -> Iterator[int]:
        held = touch(8 * MIB)
        yield 1
        del held

    @profile_lines(stream=io.StringIO())
    async def wait() -> None:
        held = touch(8 * MIB)
        await asyncio.sleep(0)
        del held
        raise KeyError

    @profile_lines(stream=io.StringIO())
    async def later() -> AsyncIterator[int]:
        held = touch(8 * MIB)
        yield len(held)
        await asyncio.sleep(0)
        del held

    async def consume() -> list[int]:
        return [item async for item in later()]

    assert asyncio.run(consume()) == [8 * MIB]
    assert figures(later.lines(), "held = touch") == pytest.approx([1, 8, 0, 8], abs=0.5)  # type: ignore[attr-defined]
    assert figures(later.lines(), "del held") == pytest.approx([1, -8, 0, 0], abs=0.5)  # type: ignore[attr-defined]
    assert list(items()) == [1]
    assert figures(items.lines(), "held = touch") == pytest.approx([1, 8, 0, 8], abs=0.5)  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        asyncio.run(wait())
    assert figures(wait.lines(), "del held") == pytest.approx([1, -8, 0, 0], abs=0.5)  # type: ignore[attr-defined]


def test_line_profiling_does_not_reset_true_peak_of_watch() -> None:
    def spiky() -> int:
        touch(64 * MIB)
        return sum(len(touch(MIB)) for _ in range(3))

    with lowtide.watch(interval=30) as w:
        profile_lines(spiky, stream=io.StringIO())()
    assert (w.growth or 0) > 60 * MIB


def test_existing_trace_function_is_restored() -> None:
    def trace(*_: Any) -> None:
        return None

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        profile_lines(inner, stream=io.StringIO())()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is trace


def test_builtin_function_raises() -> None:
    with pytest.raises(ArgumentError, match="needs a Python function"):
        profile_lines(len)


SCRIPT = """
import sys
def load(mib):
    block = bytearray(b"x") * (mib << 20)
    return block
def other():
    return 1
MARK
def marked():
    return other()
load(int(sys.argv[1])); other(); marked()
"""


PROFILE = [sys.executable, "-m", "lowtide.cli", "profile", "--lines"]


def profiled(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROFILE, *words], capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("mark", "functions", "shown"),
    [
        ("", [], {"load", "other", "marked"}),
        ("@profile", [], {"marked"}),
        ("", ["__main__:load"], {"load"}),
        ("@profile", ["__main__:load", "__main__:other"], {"load", "other", "marked"}),
    ],
)
def test_command_prints_selected_functions(
    tmp_path: Path, mark: str, functions: list[str], shown: set[str]
) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("MARK", mark))
    done = profiled(*functions, "--", sys.executable, str(path), "48")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stderr.splitlines() if line.endswith(str(path))} == shown
    if "load" in shown:
        assert figures(done.stderr, "block = bytearray")[1] == pytest.approx(48, abs=1)
    assert any(state in done.stderr for state in ("bounded: ", "grows", "unclear: "))  # short programs


def test_decorator_accepts_options_and_what_is_not_a_function(tmp_path: Path) -> None:
    """memory_profiler's decorator has a precision, and is put on all sorts of things."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("MARK", "@profile(precision=4)") + "profile(int), profile(print)\n")
    done = profiled("--", sys.executable, str(path), "1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines() if line.endswith(str(path))] == ["marked"]


def test_module_is_run_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "import sys\ndef f():\n    return sys.argv[1:]\nprint(f(), sys.path[0])\n"
    )
    done = profiled("--", sys.executable, "-m", "module", "1", folder=tmp_path)
    assert done.stdout == f"['1'] {tmp_path}\n", done.stderr
    tables = [line.split()[0] for line in done.stderr.splitlines() if " in /" in line]
    assert tables == ["f"], "and none of lowtide's own functions"


def test_script_imports_and_pickles_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    script = tmp_path / "folder" / "script.py"
    text = (
        "import pickle, sys\ndef f(): return 1\n"
        "assert pickle.loads(pickle.dumps(f))() == 1\nprint(sys.path[:2])"
    )
    script.write_text(text)
    for words in ([str(script)], ["-c", text]):
        plain, lined = (
            subprocess.run([*command, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
            for command in ([sys.executable], [*PROFILE, "--", sys.executable])
        )
        assert lined.returncode == 0, lined.stderr
        assert lined.stdout == plain.stdout


def test_table_is_printed_when_the_program_fails() -> None:
    done = profiled("--", sys.executable, "-c", "def f():\n    raise SystemExit(7)\nf()")
    assert done.returncode == 7
    assert "f in <string>" in done.stderr


def test_lines_of_non_python_program_exit_with_error() -> None:
    done = profiled("--", "sleep", "1")
    assert done.returncode == 2
    assert "--lines needs a Python program" in done.stderr
    assert command(["python"], []) is None
    done = profiled("a:b", "nonsense", "--", sys.executable, "-c", "0")
    assert done.returncode == 2
    assert "'nonsense' is not a function to measure" in done.stderr
