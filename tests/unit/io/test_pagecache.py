"""The page cache: what is counted, what is evicted, and what a system that cannot do either says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lowtide._io import pagecache
from lowtide.errors import LowtideError, UnsupportedError

MIB = 2**20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports what is cached")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One MiB that is cached and on disk."""
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        file.write(bytes(MIB))
        os.fsync(file.fileno())
    path.read_bytes()
    return path


@on_linux
def test_file_that_was_read_is_resident(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pagecache.resident(path) in [(MIB, "cachestat(2)"), (MIB, "mincore(2)")]
    monkeypatch.setattr(pagecache, "_by_cachestat", lambda fd: None)
    assert pagecache.resident(path) == (MIB, "mincore(2)")


@on_linux
def test_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert pagecache.resident(tmp_path / "empty") == (0, "fstat(2)")


def test_folder_is_not_counted(tmp_path: Path) -> None:
    assert pagecache.resident(tmp_path) is None


def test_missing_file_error_has_file_name(tmp_path: Path) -> None:
    for call in (pagecache.resident, pagecache.drop):
        with pytest.raises(LowtideError) as raised:
            call(tmp_path / "none")
        assert isinstance(raised.value, FileNotFoundError)
        assert raised.value.filename == str(tmp_path / "none")


def test_without_fadvise_drop_raises_and_evict_does_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with pytest.raises(UnsupportedError, match="posix_fadvise"):
        pagecache.drop(path)
    with path.open("rb") as file:
        pagecache.evict(file.fileno())


@on_linux
def test_dropped_range_starts_two_folios_early(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *where: ranges.append(where[:2]))
    pagecache.drop_range(0, 100, 200)
    pagecache.drop_range(0, 3 * pagecache.FOLIO, 3 * pagecache.FOLIO + 10)
    assert ranges == [(0, 200), (pagecache.FOLIO, 2 * pagecache.FOLIO + 10)]
