"""The findings of the doctor, on this machine and on poorer ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lowtide._io import pagecache
from lowtide._memory import cgroup, doctor, proc
from lowtide.errors import NotFoundError
from tests.support.trees import FakeTree

MIB = 2**20


def findings(path: Path) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(str(path))}


def test_every_property_is_reported(tmp_path: Path) -> None:
    names = findings(tmp_path).keys()
    expected = {
        "RWF_NOWAIT", "RWF_DONTCACHE", "posix_fadvise", "page cache", "memory", "read-ahead", "descriptors",
        "true peaks", "/proc", "system",
    }  # fmt: skip
    assert expected <= names


def test_advice_is_one_line_and_only_for_problems(tmp_path: Path) -> None:
    for finding in findings(tmp_path).values():
        assert "\n" not in finding.advice
        assert not (finding.fine and finding.advice), finding


def test_file_system_without_read_flags_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    result = findings(tmp_path)
    assert result["RWF_DONTCACHE"].fine is False
    assert "posix_fadvise" in result["RWF_DONTCACHE"].advice


def test_eagain_still_proves_rwf_nowait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "preadv", later)
    assert findings(tmp_path)["RWF_NOWAIT"].fine is True


def test_old_kernel_uses_mincore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "_cachestat_missing", True)
    assert findings(tmp_path)["page cache"].value == "by mincore"


def test_container_limit_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Group(cgroup.CgroupV2):
        def limit(self) -> int:
            return 256 * MIB

        def working_set(self) -> int:
            return 250 * MIB

    monkeypatch.setattr(cgroup, "find", lambda *_: Group("/x", "/x"))
    result = findings(tmp_path)
    assert result["memory"].value.startswith("limit 256.0 MiB of the machine's ")
    assert "plan for 256.0 MiB" in result["memory"].advice
    assert result["working set"].fine is False


def test_missing_proc_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", str(tmp_path / "none"))
    result = findings(tmp_path)
    assert result["/proc"].fine is False
    assert result["true peaks"].fine is False


def test_low_descriptor_limit_gives_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert findings(tmp_path)["descriptors"].advice == "corpora of many shards need more: `ulimit -n 4096`"


def test_missing_path_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        doctor.examine(str(tmp_path / "none"))


def test_file_is_examined_without_modifying_it(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"x")
    before: Any = path.stat().st_mtime_ns
    assert findings(path)["RWF_NOWAIT"].fine is not None
    assert path.stat().st_mtime_ns == before
    assert os.listdir(tmp_path) == ["a.bin"]


def test_memory_history_of_container_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = FakeTree(tmp_path, monkeypatch)
    tree.process("0::/pod/c\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    tree.meminfo(MemAvailable=900 * MIB)
    tree.group("", stat="anon 1")
    tree.group("pod", max=256 * MIB, current=150 * MIB, events="high 0\noom_kill 5", stat="inactive_file 0")
    tree.group(
        "pod/c", max=128 * MIB, high=100 * MIB, current=90 * MIB, peak=127 * MIB,
        events="high 1200\noom_kill 2", stat="inactive_file 0", pressure="some avg10=0.00 total=2500000",
        **{"oom.group": 1},
    )  # fmt: skip
    result = findings(tmp_path)
    assert result["available"].value == f"10.0 MiB, by {tree.mount}/pod/c/memory.high"
    assert result["OOM kills"].value == "2 since this container was started, 3 in groups beside it"
    assert "it was memory" in result["OOM kills"].advice
    assert result["highest usage"].value == "127.0 MiB, 99 % of the limit"
    assert result["highest usage"].fine is False
    assert result["throttled"].value == f"1,200 times over memory.high of 100.0 MiB ({tree.mount}/pod/c)"
    assert result["pressure"].value == "2.5 s of waiting for memory, of this container"
    assert "is killed too" in result["OOM group"].advice


def test_small_shared_memory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        f_frsize, f_blocks, f_bavail = 4096, 16384, 15000

    monkeypatch.setattr(os, "statvfs", lambda _: Small)
    assert findings(tmp_path)["/dev/shm"].value == "58.6 MiB free of 64.0 MiB"
    assert "SIGBUS (exit status 135)" in findings(tmp_path)["/dev/shm"].advice
