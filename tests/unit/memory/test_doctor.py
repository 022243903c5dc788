"""What the doctor finds, and says when it finds nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lowtide._io import pagecache
from lowtide._memory import cgroup, doctor, proc
from lowtide.errors import NotFoundError

MIB = 2**20


def found(path: Path) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(str(path))}


def test_everything_that_was_asked_for_is_looked_at(tmp_path: Path) -> None:
    names = found(tmp_path).keys()
    wanted = {
        "RWF_NOWAIT", "RWF_DONTCACHE", "posix_fadvise", "page cache", "memory", "read-ahead", "descriptors",
        "true peaks", "/proc", "system",
    }  # fmt: skip
    assert wanted <= names


def test_advice_is_one_line_and_only_where_something_is_not_fine(tmp_path: Path) -> None:
    for finding in found(tmp_path).values():
        assert "\n" not in finding.advice
        assert not (finding.fine and finding.advice), finding


def test_a_file_system_without_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    findings = found(tmp_path)
    assert findings["RWF_DONTCACHE"].fine is False
    assert "posix_fadvise" in findings["RWF_DONTCACHE"].advice


def test_a_byte_that_is_not_cached_still_proves_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "preadv", later)
    assert found(tmp_path)["RWF_NOWAIT"].fine is True


def test_an_old_kernel_counts_pages_the_slow_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "_cachestat_missing", True)
    assert found(tmp_path)["page cache"].value == "by mincore"


def test_a_limit_below_the_machines_memory_is_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group(cgroup.CgroupV2):
        def limit(self) -> int:
            return 256 * MIB

        def working_set(self) -> int:
            return 250 * MIB

    monkeypatch.setattr(cgroup, "find", lambda *_: Group("/x", "/x"))
    findings = found(tmp_path)
    assert findings["memory"].value.startswith("limit 256.0 MiB of the machine's ")
    assert "plan for 256.0 MiB" in findings["memory"].advice
    assert findings["working set"].fine is False


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", str(tmp_path / "none"))
    findings = found(tmp_path)
    assert findings["/proc"].fine is False
    assert findings["true peaks"].fine is False


def test_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert found(tmp_path)["descriptors"].advice == "corpora of many shards need more: `ulimit -n 4096`"


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        doctor.examine(str(tmp_path / "none"))


def test_a_file_is_looked_at_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"x")
    before: Any = path.stat().st_mtime_ns
    assert found(path)["RWF_NOWAIT"].fine is not None
    assert path.stat().st_mtime_ns == before
    assert os.listdir(tmp_path) == ["a.bin"]
