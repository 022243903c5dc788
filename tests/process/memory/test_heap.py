"""The heap of real processes, taken apart, with the allocators that this machine has."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide._memory import heap as module
from lowtide._memory import proc
from lowtide.errors import UnsupportedError
from tests.support.missing import missing
from tests.support.process import output

MIB = 2**20
FREED = """
import threading
from lowtide.memory import heap, trim

def work():
    blocks = [bytearray(60_000) for _ in range(1500)]
    full = heap()
    last = blocks.pop()  # at the end of its arena: what is before it cannot be given back by shrinking
    del blocks
    freed = heap()
    back = trim()
    after = heap()
    print(full.kept, freed.kept, back, freed.resident - after.resident, after.kept, full.live - after.live)

thread = threading.Thread(target=work)  # which has its own arena
%s
"""


@pytest.mark.parametrize("run", ["work()", "thread.start(); thread.join()"], ids=["main", "arena"])
def test_memory_kept_by_malloc_is_not_live_and_is_trimmed(run: str) -> None:
    full, freed, back, fell, after, live = map(int, output(FREED % run).split())
    size = 1500 * 60_000
    assert full < 8 * MIB
    assert 0.9 * size < freed < 1.1 * size
    assert 0.9 * size < back < 1.1 * size
    assert abs(back - fell) < 4 * MIB
    assert after < 4 * MIB
    assert 0.9 * size < live < 1.1 * size, "what was freed is not live"


def preloaded(name: str, code: str) -> list[str]:
    library = ctypes.util.find_library(name)
    if library is None:
        missing(f"no {name}: apt-get install lib{name}*")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": library},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


PRELOADED = """
from lowtide.memory import heap, trim
blocks = [bytearray(60_000) for _ in range(1500)]
last = blocks.pop()
full = heap().resident
del blocks
freed = heap()
back = trim()
print(freed.allocators[0], freed.kept, back, full - heap().resident)
"""


@pytest.mark.parametrize("allocator", ["jemalloc", "mimalloc"])
def test_other_allocators_are_identified_and_trimmed(allocator: str) -> None:
    name, kept, _, fell = preloaded(allocator, PRELOADED)
    assert name == allocator
    assert int(fell) > 50 * MIB, "freed, by itself or by trim"
    assert (kept == "None") == (allocator == "mimalloc")


def test_profile_reports_allocator_of_command(tmp_path: Path) -> None:
    library = ctypes.util.find_library("jemalloc")
    if library is None:
        missing("no jemalloc: apt-get install libjemalloc2")
    job = ["env", f"LD_PRELOAD={library}", sys.executable, "-c", "import time; time.sleep(0.5)"]
    command = [
        sys.executable,
        "-c",
        "from lowtide.cli import main; main()",
        "profile",
        "--save",
        "a.json",
        "--",
    ]
    subprocess.run([*command, *job], cwd=tmp_path, check=True, capture_output=True)
    assert "freed and is kept by jemalloc" in json.loads((tmp_path / "a.json").read_text())["not_seen"][-1]


def test_allocator_not_serving_malloc_is_listed_second() -> None:
    library = ctypes.util.find_library("mimalloc")
    if library is None:
        missing("no mimalloc: apt-get install libmimalloc2.0")
    code = """
    import ctypes, sys
    ctypes.CDLL(sys.argv[1])
    from lowtide.memory import heap
    print(heap().allocators)
    """
    assert output(code, library) == "('glibc', 'mimalloc')\n"


def test_stacks_shared_memory_and_arrow_are_separate() -> None:
    pytest.importorskip("pyarrow")
    code = """
    import mmap, threading
    import pyarrow
    from lowtide.memory import heap

    before = heap()
    shared = mmap.mmap(-1, 16 * 2**20); shared.write(b"x" * len(shared))
    table = pyarrow.allocate_buffer(8 * 2**20)
    stop = threading.Event()
    def deep(n): return stop.wait() if n == 0 else deep(n - 1)
    threads = [threading.Thread(target=deep, args=(500,)) for _ in range(8)]
    [thread.start() for thread in threads]
    after = heap()
    stop.set()
    print(after.shared - before.shared, after.arrow - before.arrow, after.stacks - before.stacks, after.live)
    print(after.sources["arrow"])
    """
    figures, source = output(code).splitlines()
    shared, arrow, stacks, _ = map(int, figures.split())
    assert shared == 16 * MIB
    assert arrow == 8 * MIB
    assert 8 * 4096 <= stacks < 32 * MIB
    assert source.startswith("pyarrow.default_memory_pool() (")


def test_pinned_memory_is_queried_only_if_cuda_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine of ours has a GPU: this is PyTorch's interface, not PyTorch."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert module._pinned() == (None, "PyTorch is not imported")
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert module._pinned() == (None, "CUDA is not in use")
    cuda.is_initialized = lambda: True
    assert module._pinned() == (None, "PyTorch before 2.7 does not report it")
    cuda.host_memory_stats = lambda: {"allocated_bytes.current": 7}
    assert module._pinned() == (7, "torch.cuda.host_memory_stats()")


def test_missing_proc_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", "/no/such/proc")
    with pytest.raises(UnsupportedError, match="use Linux"):
        module.heap()
