"""A small pool of descriptors, files for it, and what a process has open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide._io import descriptors
from lowtide._io.descriptors import DescriptorPool, File


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[DescriptorPool]:
    """A pool of the test's own, of three."""
    own = DescriptorPool(3)
    monkeypatch.setattr(descriptors, "POOL", own)
    yield own
    for key in list(own._entries):
        own.discard(key)


def some(folder: Path, count: int) -> list[File]:
    for i in range(count):
        path = folder / f"{i}.bin"
        if not path.exists():
            path.write_bytes(bytes([i]) * 100)
    return [File(str(folder / f"{i}.bin"), 100) for i in range(count)]


def first_byte(file: File) -> int:
    with file.opened() as entry:
        return os.pread(entry.fd, 1, 0)[0]


def open_files(folder: Path) -> list[str]:
    """Files of ``folder`` that this process has open, by name."""
    content = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            content.append(os.path.basename(target))
    return sorted(content)
