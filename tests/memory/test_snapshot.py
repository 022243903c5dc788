"""A snapshot: true figures, their sources, and None where nothing is known."""

from __future__ import annotations

import dataclasses
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide._io import pagecache
from lowtide._memory import proc
from lowtide._memory import snapshot as snapshots
from lowtide.errors import NotFoundError, ProcessError
from lowtide.memory import Snapshot, drop_page_cache, peak, reset_peak, snapshot
from tests.memory.conftest import written
from tests.support.pages import touch

MIB = 2**20


def test_heap_mapped_and_shared_sum_to_rss() -> None:
    now = snapshot()
    assert now.pid == os.getpid()
    assert None not in (now.rss, now.heap, now.mapped, now.shared, now.peak)
    assert now.rss == (now.heap or 0) + (now.mapped or 0) + (now.shared or 0)
    assert (now.peak or 0) >= (now.rss or 0)


def test_each_figure_has_a_source(small: Path) -> None:
    now = snapshot(pss=True, files=[small])
    figures = [field.name for field in dataclasses.fields(Snapshot)]
    for name in set(figures) - {"time", "pid", "page_cache", "sources"}:
        assert now.sources[name], name
    assert now.sources[f"page_cache {small}"] in ("cachestat(2)", "mincore(2)")


def test_snapshot_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot().rss = 1  # type: ignore[misc]


def test_heap_and_mapped_files_are_separate(small: Path) -> None:
    before = snapshot()
    # Not by malloc, which may still have as much from an earlier test.
    block = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(b"x" * (32 * MIB))
    after_heap = snapshot()
    assert (after_heap.heap or 0) - (before.heap or 0) >= 31 * MIB
    assert abs((after_heap.mapped or 0) - (before.mapped or 0)) < 4 * MIB
    mapped = np.memmap(small, dtype="u1", mode="r")
    int(mapped[:: mmap.PAGESIZE].sum())
    after_map = snapshot()
    assert (after_map.mapped or 0) - (after_heap.mapped or 0) >= 90 * MIB
    assert abs((after_map.heap or 0) - (after_heap.heap or 0)) < 4 * MIB
    del block, mapped


def test_pss_is_measured_on_request() -> None:
    assert snapshot().pss is None
    now = snapshot(pss=True)
    assert 0 < (now.pss or 0) <= (now.rss or 0) + 4 * MIB


def test_bytes_read_include_cached_reads(small: Path) -> None:
    before = snapshot()
    with open(small, "rb", buffering=0) as file:
        assert len(file.read(10 * MIB)) == 10 * MIB
    after = snapshot()
    assert 10 * MIB <= (after.bytes_read or 0) - (before.bytes_read or 0) < 11 * MIB


def test_page_cache_of_a_file_follows_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "a.bin", 8)
    assert snapshot(files=[path]).page_cache[str(path)] == 8 * MIB
    drop_page_cache(path)
    assert snapshot(files=[path]).page_cache[str(path)] == 0
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(MIB)
    assert MIB <= (snapshot(files=[path]).page_cache[str(path)] or 0) < 8 * MIB


def test_mincore_and_cachestat_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.bin", 4)
    drop_page_cache(path)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(MIB)
    by_default = pagecache.resident(path)
    monkeypatch.setattr(pagecache, "_cachestat_missing", True)
    by_mincore = pagecache.resident(path)
    assert by_default is not None
    assert by_mincore is not None
    assert by_mincore == (by_default[0], "mincore(2)")


def test_kernel_without_cachestat_uses_mincore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.bin", 1)
    monkeypatch.setattr(pagecache, "_cachestat_missing", False)
    monkeypatch.setattr(pagecache, "_CACHESTAT", 4095)  # a number that no system call has
    assert pagecache.resident(path) == (MIB, "mincore(2)")
    assert pagecache._cachestat_missing


def test_page_cache_of_empty_and_partial_page_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "odd").write_bytes(b"x" * 5000)
    assert pagecache.resident(tmp_path / "empty") == (0, "fstat(2)")
    assert (pagecache.resident(tmp_path / "odd") or (0,))[0] == 8192


def test_page_cache_of_directory_is_none(tmp_path: Path) -> None:
    assert pagecache.resident(tmp_path) is None
    assert snapshot(files=[tmp_path]).page_cache == {str(tmp_path): None}


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        snapshot(files=[tmp_path / "gone.bin"])


@pytest.mark.parametrize("pid", [2**22 + 1, -1], ids=["too high", "negative"])
def test_missing_process_raises(pid: int) -> None:
    with pytest.raises(ProcessError, match=f"/{pid}: there is no process {pid}"):
        snapshot(pid)


def test_peak_is_reset_and_rises_again() -> None:
    touch(64 * MIB).close()
    high = peak() or 0
    assert reset_peak()
    low = peak() or 0
    assert low < high - 32 * MIB
    touch(16 * MIB).close()
    assert (peak() or 0) - low >= 15 * MIB


def test_peak_of_another_process_is_reset(small: Path) -> None:
    script = "x = bytearray(64 * 2**20); del x; print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        assert (peak(child.pid) or 0) > 64 * MIB
        assert reset_peak(child.pid)
        assert (peak(child.pid) or 0) < 64 * MIB
        child.communicate("\n")


@pytest.fixture
def no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("no_proc")
def test_missing_proc_gives_none_with_a_reason() -> None:
    now = snapshot()
    assert (now.rss or 0) > 0
    assert now.sources["rss"] == "psutil memory_info().rss"
    for name in ("heap", "mapped", "shared", "peak", "cgroup_usage", "major_faults"):
        assert getattr(now, name) is None, name
        assert now.sources[name]
    assert not reset_peak()
    assert peak() is None


def test_process_of_another_user_gives_none_not_zero() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    script = (
        "import os\nfrom lowtide.memory import snapshot\n"  # imported while it still may
        "snapshot(); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"s = snapshot({os.getpid()}, pss=True)\n"
        "print(s.rss > 0, s.pss, s.bytes_read, s.sources['pss'], '|', s.sources['bytes_read'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True None None not readable: AccessDenied")


@pytest.mark.parametrize("with_proc", [True, False])
def test_resident_memory_rises_with_an_allocation(
    with_proc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_proc:
        monkeypatch.setattr(proc, "ROOT", str(tmp_path))
    before = snapshots.resident()
    block = touch(32 * MIB)
    assert 31 * MIB < snapshots.resident() - before < 36 * MIB
    block.close()
