"""The two curves, measured on a small array, and the size of the array."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import lowtide
from lowtide._compare.runs import Run
from lowtide.demo import walks
from lowtide.errors import DiskFullError

MIB = 2**20


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    with walks.array(str(tmp_path_factory.mktemp("walks") / "scratch"), 32 * MIB) as path:
        return list(walks.walk(path))


def test_both_readers_read_everything_in_both_orders(runs: list[Run]) -> None:
    assert [(walks.name(walk), walk.shuffled) for walk in runs] == [
        ("np.memmap", False), ("lowtide", False), ("np.memmap", True), ("lowtide", True),
    ]  # fmt: skip
    assert all(walk.figures["bytes_read"] == 32 * MIB for walk in runs)


def test_memmap_peak_is_file_size_and_lowtide_peak_is_small(runs: list[Run]) -> None:
    for walk in runs:
        if walks.name(walk) == "np.memmap":
            assert 31 * MIB < walks.peak(walk) < 48 * MIB
        else:
            assert walks.peak(walk) < 8 * MIB


def test_memmap_memory_grows_with_bytes_read(runs: list[Run]) -> None:
    theirs = {walk.shuffled: walk.figures["samples"] for walk in runs if walks.name(walk) == "np.memmap"}
    for read, resident in theirs[False]:
        assert abs(resident - read) < 8 * MIB
    early = [resident for read, resident in theirs[True] if 0 < read <= 4 * MIB]
    assert max(early) > 12 * MIB


def test_peak_defaults_to_highest_sample(runs: list[Run]) -> None:
    figures = runs[0].figures.copy()
    figures["peak"] = None
    without = Run("np.memmap", False, False, figures, None)
    assert walks.peak(without) == max(size for _, size in figures["samples"])


def test_array_is_removed_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with walks.array(str(tmp_path / "scratch"), 4 * MIB) as path:
            with lowtide.open(path) as array:
                assert array.nbytes == 4 * MIB
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def sizes(monkeypatch: pytest.MonkeyPatch, *, disk: int, memory: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=disk))
    monkeypatch.setattr(walks, "available", lambda: memory)


def test_array_size_fits_memory_and_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for disk, memory, expected in (
        (10_000, 10_000, 1024),
        (10_000, 2048, 1024),
        (10_000, 2047, 512),
        (1124, 10_000, 1024),
        (1123, 10_000, 512),
        (400, 300, 128),
        (10_000, 10, 64),
    ):
        sizes(monkeypatch, disk=disk * MIB, memory=memory * MIB)
        assert walks.fitting_size(1024 * MIB, str(tmp_path), 100 * MIB) == expected * MIB


def test_full_disk_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes(monkeypatch, disk=163 * MIB, memory=10_000 * MIB)
    with pytest.raises(DiskFullError, match=r"not enough free space \(163.0 MiB, expected 164.0 MiB\)"):
        walks.fitting_size(1024 * MIB, str(tmp_path), 100 * MIB)
