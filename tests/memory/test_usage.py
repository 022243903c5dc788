"""memory_usage beside memory_profiler's own, on the same calls."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lowtide.errors import ArgumentError, ProcessError
from lowtide.memory import memory_usage, show_memory
from tests.support.pages import touch

MIB = 2**20
theirs: Callable[..., Any] = pytest.importorskip("memory_profiler").memory_usage


def shape(value: object) -> object:
    """Types, nested; a list has those of its first item."""
    if isinstance(value, list):
        return [shape(value[0])]
    if isinstance(value, tuple):
        return tuple(shape(item) for item in value)
    return type(value)


def work(mib: int, seconds: float = 0.0) -> str:
    held = touch(mib * MIB)
    time.sleep(seconds)
    del held
    return "done"


@pytest.fixture
def child() -> Iterator[subprocess.Popen]:
    code = "block = bytearray(b'x') * (64 << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"timestamps": True},
        {"max_usage": True},
        {"retval": True},
        {"max_usage": True, "retval": True},
        {"include_children": True},
    ],
)
def test_usage_of_function_matches_memory_profiler(options: dict[str, Any]) -> None:
    call = (work, (48,), {"seconds": 0.6})
    ours, reference = (usage(call, interval=0.05, **options) for usage in (memory_usage, theirs))
    assert shape(ours) == shape(reference)

    def highest(result: Any) -> float:
        result = result[0] if "retval" in options else result
        result = max(result) if isinstance(result, list) else result
        return float(result[0] if isinstance(result, tuple) else result)

    if "include_children" in options:  # where memory_profiler also counts its own sampler
        assert highest(ours) < highest(reference)
    else:
        assert highest(ours) == pytest.approx(highest(reference), abs=8)


@pytest.mark.parametrize("options", [{}, {"timestamps": True}, {"max_usage": True}, {"timeout": 0.2},
                                     {"include_children": True}, {"backend": "psutil_uss"}])  # fmt: skip
def test_usage_of_process_matches_memory_profiler(child: subprocess.Popen, options: dict[str, Any]) -> None:
    for process in (child.pid, -1, os.getpid()):
        ours, reference = (usage(process, interval=0.1, **options) for usage in (memory_usage, theirs))
        assert shape(ours) == shape(reference)
        if "max_usage" in options:
            assert ours == pytest.approx(reference, abs=4)
        else:
            assert len(ours) == len(reference)


def test_popen_is_sampled_until_it_ends() -> None:
    code = "import time; block = bytearray(b'x') * (64 << 20); time.sleep(0.6)"
    results = []
    for usage in (memory_usage, theirs):
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            results.append(usage(process, interval=0.05, timestamps=True))
    assert shape(results[0]) == shape(results[1])
    assert max(results[0])[0] == pytest.approx(max(results[1])[0], abs=8)


def test_stream_has_mprof_lines() -> None:
    stream = io.StringIO()
    assert memory_usage(-1, interval=0.01, timeout=0.05, stream=stream) is None
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert all(len(line.split()) == 3 and line.startswith("MEM ") for line in lines)


def test_short_function_runs_once_and_reports_true_peak() -> None:
    calls = []
    highest = memory_usage((lambda: calls.append(len(touch(64 * MIB)))), max_usage=True)
    assert len(calls) == 1
    assert highest > 64
    peak, result = show_memory(lambda: work(64))
    assert peak == pytest.approx(highest, abs=8)
    assert result == "done"


def test_bad_arguments_raise() -> None:
    with pytest.raises(ArgumentError, match="backend must be one of"):
        memory_usage(-1, backend="tracemalloc")
    with pytest.raises(ArgumentError, match="4 items"):
        memory_usage((work, (), {}, 1))
    with pytest.raises(ArgumentError, match="must start with a function"):
        memory_usage((1, 2))
    with pytest.raises(ArgumentError, match="proc must be an integer"):
        memory_usage("python")
    with pytest.raises(ArgumentError, match="interval must not be negative"):
        memory_usage(-1, interval=-1)
    with pytest.raises(ArgumentError, match="is for processes"):
        memory_usage(work, backend="psutil_pss")
    with pytest.raises(ProcessError, match="no process"):
        memory_usage(2**22 + 1)
