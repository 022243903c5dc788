"""A budget for a block: what is raised, when, and with which numbers."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._memory import helper, proc
from lowtide.errors import ArgumentError, MemoryBudgetExceeded, UnsupportedError
from lowtide.memory import drop_page_cache
from tests.memory.conftest import written
from tests.support.pages import touch

MIB = 2**20


def block(mib: int) -> mmap.mmap:
    return touch(mib * MIB)


def test_block_within_budget_passes() -> None:
    with lowtide.watch(budget="64 MiB") as w:
        held = block(16)
    assert 15 * MIB < (w.growth or 0) < 32 * MIB
    assert w.true_peak
    assert w.first_over is None
    del held


def test_block_over_budget_raises_with_figures() -> None:
    with pytest.raises(MemoryError) as caught:
        with lowtide.watch(budget="64 MiB") as w:
            held = block(80)
            time.sleep(0.1)
    assert isinstance(caught.value, MemoryBudgetExceeded)
    message = str(caught.value)
    assert "resident memory reached 80" in message
    assert "the budget is 64.0 MiB" in message
    assert "(67,108,864 bytes)" in message or "against 67,108,864 bytes" in message
    assert "true peak, kept by the kernel" in message
    assert "first sample over:" in message
    assert "what grew: heap +80" in message
    assert w.first_over is not None
    assert w.first_over.value > 64 * MIB
    del held


def test_spike_between_samples_raises() -> None:
    with pytest.raises(MemoryBudgetExceeded), lowtide.watch(budget="32 MiB", interval=30.0) as w:
        block(64)
    assert (w.growth or 0) > 60 * MIB
    assert "no sample was over" in w.explain()


def test_budget_applies_to_memory_added_by_block() -> None:
    held = block(64)
    with lowtide.watch(budget="32 MiB"):
        pass
    with pytest.raises(MemoryBudgetExceeded), lowtide.watch(budget="32 MiB", absolute=True):
        pass
    del held


@pytest.mark.parametrize(("kind", "over"), [("heap", False), ("mapped", True), ("rss", True)])
def test_mapped_file_counts_by_kind(kind: Any, over: bool, small: Path) -> None:
    def walk() -> None:
        mapped = np.memmap(small, dtype="u1", mode="r")
        int(mapped.sum())
        time.sleep(0.5)  # it stays mapped until the sampler had its turn, on a busy machine too

    watch = lowtide.watch(budget="64 MiB", kind=kind)
    if not over:
        with watch:
            walk()
        return
    with pytest.raises(MemoryBudgetExceeded) as caught, watch:
        walk()
    assert "mapped files +96" in str(caught.value)
    assert "small.bin" in str(caught.value)


def test_allocated_memory_counts_as_heap_only() -> None:
    with lowtide.watch(budget="32 MiB", kind="mapped"):
        held = block(64)
        time.sleep(0.03)
    del held
    over = lowtide.watch(budget="32 MiB", kind="heap")
    with pytest.raises(MemoryBudgetExceeded, match="heap reached 64"), over:
        held = block(64)
        time.sleep(0.03)
    del held


@pytest.mark.parametrize("named", [True, False], ids=["named", "open"])
def test_page_cache_over_the_budget_raises(named: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "cold.bin", 64)
    drop_page_cache(path)
    with open(path, "rb", buffering=0) as file:
        watch = lowtide.watch(budget="32 MiB", kind="cache", files=[path] if named else [])
        with pytest.raises(MemoryBudgetExceeded, match="page cache") as caught, watch:
            time.sleep(0 if named else 0.2)  # a file that is not named must be seen before it is read
            while file.read(MIB):
                pass
    assert "cold.bin +" in str(caught.value)
    assert (watch.growth or 0) > 48 * MIB
    with open(path, "rb", buffering=0) as file, lowtide.watch(budget="32 MiB", kind="cache", files=[path]):
        while file.read(MIB):
            pass


def test_cgroup_counts_page_cache(limited: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "cold.bin", 64)
    drop_page_cache(path)
    script = (
        "import lowtide, sys\n"
        "try:\n"
        "    with lowtide.watch('32 MiB', kind='cgroup') as w:\n"
        "        with open(sys.argv[1], 'rb', buffering=0) as file:\n"
        "            while file.read(2**20): pass\n"
        "except MemoryError as error: print(error)\n"
        "print(w.true_peak)\n"
    )
    with limited("256 MiB") as group:
        done = group.run([sys.executable, "-c", script, str(path)])
    assert done.returncode == 0, done.stderr
    assert "the cgroup's memory reached 6" in done.stdout
    assert "page cache +6" in done.stdout
    assert done.stdout.endswith("True\n")


def test_strict_watch_raises_immediately_and_interrupts_sleep() -> None:
    started = time.monotonic()
    with pytest.raises(MemoryBudgetExceeded) as caught, lowtide.watch(budget="32 MiB", strict=True):
        held = block(64)  # noqa: F841 - held while the block sleeps
        time.sleep(20)
    assert time.monotonic() - started < 5
    assert "resident memory reached 64" in str(caught.value)


def test_strict_watch_raises_in_another_thread() -> None:
    outcome: list[object] = []

    def work() -> None:
        try:
            with lowtide.watch(budget="32 MiB", strict=True):
                held = block(64)
                for _ in range(2000):
                    time.sleep(0.01)
                del held
        except MemoryBudgetExceeded as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    started = time.monotonic()
    thread.start()
    thread.join(30)
    assert time.monotonic() - started < 10
    assert "resident memory reached 64" in str(outcome[0])


def test_caught_strict_exception_is_raised_again_at_end_of_block() -> None:
    with pytest.raises(MemoryBudgetExceeded), lowtide.watch(budget="32 MiB", strict=True):
        try:
            held = block(64)  # noqa: F841 - held while the block sleeps
            time.sleep(20)
        except MemoryError:
            pass


def test_nested_watches_have_separate_figures() -> None:
    with lowtide.watch() as outer:
        block(64)
        with lowtide.watch("48 MiB") as inner:
            block(16)
    assert 15 * MIB < (inner.growth or 0) < 32 * MIB
    assert (outer.growth or 0) > 60 * MIB


def test_outer_strict_watch_interrupts_inner_watch() -> None:
    outer, inner = lowtide.watch("32 MiB", strict=True), lowtide.watch("1 GiB")
    with pytest.raises(MemoryBudgetExceeded, match=r"budget is 32\.0 MiB"), outer, inner:
        held = block(64)  # noqa: F841 - held while the block sleeps
        time.sleep(20)


def test_error_of_block_is_kept_with_figures_as_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught, lowtide.watch("32 MiB"):
        block(64)
        _ = 1 / 0
    assert "resident memory reached 6" in "".join(caught.value.__notes__)


def test_decorated_function_is_watched_on_every_call() -> None:
    @lowtide.watch("32 MiB")
    def take(mib: int) -> int:
        """Docs stay."""
        return block(mib)[0]

    assert take(8) == 0
    with pytest.raises(MemoryBudgetExceeded):
        take(64)
    assert take(8) == 0
    assert take.__doc__ == "Docs stay."


def test_decorated_coroutine_is_watched_until_it_ends() -> None:
    @lowtide.watch("32 MiB")
    async def take() -> None:
        await asyncio.sleep(0)
        block(64)

    with pytest.raises(MemoryBudgetExceeded):
        asyncio.run(take())


def test_call_that_holds_gil_is_sampled() -> None:
    """``sorted`` of one long list never releases the interpreter, and samples continue."""
    numbers = list(range(600_000))[::-1] * 4
    with lowtide.watch(interval=0.005) as w:
        time.sleep(0.1)  # until the sampler runs
        before = time.time()
        sorted(numbers, key=str)
        after = time.time()
    during = [sample for sample in w.samples if before < sample.time < after]
    assert after - before > 0.1
    assert len(during) >= 0.3 * (after - before) / 0.005


def test_watch_without_a_budget_only_measures() -> None:
    with lowtide.watch() as w:
        block(32)
    assert (w.growth or 0) > 30 * MIB


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "12 bananas"}, "12 bananas"),
        ({"budget": -1}, "negative"),
        ({"budget": "1 MiB", "kind": "stack"}, "kind must be one of rss, heap"),
        ({"interval": 0}, "interval"),
        ({"interval": float("nan")}, "interval"),
        ({"strict": True}, "needs a budget"),
    ],
)
def test_invalid_arguments_raise(arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        lowtide.watch(**arguments)


def test_watch_entered_twice_raises() -> None:
    w = lowtide.watch()
    with w, pytest.raises(ArgumentError, match="in use"), w:
        pass
    with w:  # one after the other is fine
        pass


def test_missing_proc_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", str(tmp_path))
    with pytest.raises(UnsupportedError, match="does not have"), lowtide.watch("1 MiB"):
        pass


def test_true_peak_survives_killed_sampler() -> None:
    with pytest.raises(MemoryBudgetExceeded), lowtide.watch("32 MiB") as w:
        victim = helper.helper()
        os.kill(victim.pid, signal.SIGKILL)
        block(64)
    assert w.samples == ()
    with lowtide.watch() as w:  # and the next watch starts another
        time.sleep(0.1)
    assert w.samples


def test_forked_child_can_leave_block_and_watch_again() -> None:
    script = (
        "import lowtide, os, sys, time\n"
        "with lowtide.watch('64 MiB') as w:\n"
        "    time.sleep(0.5)\n"
        "    child = os.fork()\n"
        "if not child:\n"
        "    with lowtide.watch() as inner: time.sleep(0.5)\n"
        "    os._exit(0 if inner.samples else 9)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(w.samples) > 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "0 True\n", done.stderr


def test_sampler_ends_with_its_process() -> None:
    script = (
        "import lowtide, os\nfrom lowtide._memory import helper\n"
        "with lowtide.watch(): pass\n"
        "print(helper.helper().pid, flush=True)\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and proc.state(pid) != "Z":
        assert time.monotonic() < deadline, "the sampler is still there"
        time.sleep(0.02)


def test_import_loads_nothing_heavy() -> None:
    script = (
        "import sys, lowtide, lowtide.memory\n"
        "print(sorted({'numpy', 'psutil', 'rich', 'click', 'vl_convert'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
