"""Real memory limits for tests: a separate cgroup, and a command run inside it.

with memory_cgroup("256 MiB") as group:
    done = group.run([sys.executable, "-c", "..."])
    assert group.peak() < 100 * 2**20 and group.oom_kills() == 0
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lowtide._memory import cgroup
from lowtide._sizes import parse_size
from tests.support.missing import missing

# The shell enters the group before it becomes the command, so that every byte of the command is charged.
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class CgroupUnavailableError(RuntimeError):
    """No cgroup could be made; the message says why."""


@dataclass(frozen=True)
class LimitedGroup:
    """A memory cgroup made for a test."""

    path: str
    version: int

    def command(self, command: Sequence[str]) -> list[str]:
        """``command``, wrapped so that it runs inside the group."""
        return ["/bin/sh", "-c", _ENTER, self.path, *command]

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command inside the group to its end, with its output captured as text."""
        options = {"capture_output": True, "text": True, "timeout": 120, **options}
        return subprocess.run(self.command(command), check=False, **options)

    def _group(self) -> cgroup.MemoryCgroup:
        kind = next(kind for kind in cgroup.VERSIONS if kind.version == self.version)
        return kind(self.path, self.path)

    def peak(self) -> int:
        """The highest usage so far."""
        result = self._group().peak()
        assert result is not None, "this kernel does not keep a peak (memory.peak came with 5.19)"
        return result

    def reset_peak(self) -> None:
        """Let the peak start again from the usage of now (version 1 only)."""
        _write(f"{self.path}/memory.max_usage_in_bytes", "0")

    def usage(self) -> int:
        """Bytes charged now: heap and page cache of everything that ran inside."""
        result = self._group().usage()
        assert result is not None
        return result

    def limit_hits(self) -> int:
        """How often the limit was met, so that the kernel had to reclaim.

        Version 1 on Linux 6.18 always says 0, even after a kill: a count above 0 means something, 0 does not.
        """
        if self.version == 1:
            # With swap forbidden it is the limit on memory and swap together that is met first.
            names = ("memory.failcnt", "memory.memsw.failcnt")
            return sum(
                int(_read(f"{self.path}/{name}")) for name in names if os.path.exists(f"{self.path}/{name}")
            )
        return _events(self.path, "memory.events")["max"]

    def oom_kills(self) -> int:
        """How many processes the kernel killed for memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _events(self.path, name).get("oom_kill", 0)


@contextlib.contextmanager
def memory_cgroup(limit: int | str) -> Iterator[LimitedGroup]:
    """A new group below this process's own with ``limit`` bytes and no swap; removed at the end."""
    group = _make(parse_size(limit))
    try:
        yield group
    finally:
        _remove(group)


def _make(limit: int) -> LimitedGroup:
    here = cgroup.find()
    if here is None:
        raise CgroupUnavailableError("no memory cgroup is visible on this machine")
    name = f"lowtide-test-{uuid.uuid4().hex[:12]}"
    tried = []
    # In version 2 a group with processes may not have children with controllers: try further up as well.
    for parent in dict.fromkeys((here.path, os.path.dirname(here.path), here.mount)):
        if not parent.startswith(here.mount):
            continue
        path = f"{parent}/{name}"
        try:
            if here.version == 2:
                _write(f"{parent}/cgroup.subtree_control", "+memory")
            os.mkdir(path)
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
            continue
        try:
            _write(f"{path}/{'memory.limit_in_bytes' if here.version == 1 else 'memory.max'}", str(limit))
        except OSError as error:
            os.rmdir(path)
            tried.append(f"{parent}: {error.strerror}")
            continue
        _forbid_swap(path, here.version, limit)
        return LimitedGroup(path, here.version)
    raise CgroupUnavailableError("no memory cgroup can be made here (" + "; ".join(tried) + ")")


def _forbid_swap(path: str, version: int, limit: int) -> None:
    name, value = ("memory.memsw.limit_in_bytes", limit) if version == 1 else ("memory.swap.max", 0)
    with contextlib.suppress(OSError):  # a kernel without swap accounting
        _write(f"{path}/{name}", str(value))


def _remove(group: LimitedGroup) -> None:
    """Remove the group; what still runs in it was started by the test and is ended first."""
    deadline = time.monotonic() + 10
    while True:
        for pid in map(int, _read(f"{group.path}/cgroup.procs").split()):
            # One that is almost gone has no number any more, and 0 would be this process and all beside it.
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, 9)
        try:
            os.rmdir(group.path)
        except OSError:  # the last process is still on its way out
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def require_memory_cgroups() -> None:
    """Skip the test where a person's machine has no cgroups to give; fail it in CI, which must have them."""
    try:
        with memory_cgroup("16 MiB"):
            pass
    except CgroupUnavailableError as error:
        missing(f"memory limits cannot be set: {error}")


@pytest.fixture
def limited() -> Any:
    """``memory_cgroup`` for tests that need a real limit."""
    require_memory_cgroups()
    return memory_cgroup


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _events(path: str, name: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in _read(f"{path}/{name}").splitlines())}
