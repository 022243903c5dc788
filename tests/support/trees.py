"""Recorded ``/proc`` and cgroup trees in a folder, for machines other than this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide._memory import proc


class FakeTree:
    """A ``/proc`` and a cgroup tree below ``folder``, read instead of the real ones."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.mount = folder / "sys" / "fs" / "cgroup"
        (folder / "proc" / "self").mkdir(parents=True)
        self.mount.mkdir(parents=True)
        monkeypatch.setattr(proc, "ROOT", str(folder / "proc"))

    def process(self, membership: str, *mounts: str) -> None:
        """Write the cgroup of this process and the mounts that it sees."""
        (self.folder / "proc/self/cgroup").write_text(membership)
        (self.folder / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in mounts))

    def meminfo(self, **sizes: int) -> None:
        """Write the figures of the machine, in bytes."""
        lines = "".join(f"{name}: {size // 1024} kB\n" for name, size in {"First": 0, **sizes}.items())
        (self.folder / "proc/meminfo").write_text(lines)

    def group(self, path: str, **files: object) -> str:
        """Write files ``memory.NAME`` of a group; its folder."""
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / f"memory.{name}").write_text(f"{value}\n")
        return str(folder)
