"""The limit on open files, in processes that have a low one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide._io import descriptors
from lowtide._io.descriptors import DescriptorPool, File
from tests.support.process import in_child, output


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


THOUSANDS = """
    import os, resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    import numpy as np, lowtide
    folder, reader = sys.argv[1:]
    arrays = []
    for i in range(3000):
        path = f"{folder}/{i}.bin"
        with open(path, "wb") as file:
            file.write(np.full(20, i, "u2").tobytes())
        arrays.append(lowtide.open(path, dtype="u2", reader=reader))
    for _ in range(2):
        assert all(int(a[i % 20]) == i for i, a in enumerate(arrays))
    print(len(os.listdir("/proc/self/fd")))
    for a in arrays:
        a.close()
    print(len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize("reader", ["pread", "memmap"])
def test_thousands_of_arrays_with_256_descriptors(tmp_path: Path, reader: str) -> None:
    most, left = map(int, output(THOUSANDS, tmp_path, reader).split())
    assert most < 200
    assert left < 20


def test_a_fork_in_the_middle_of_a_read(tmp_path: Path, pool: DescriptorPool) -> None:
    """Another thread of the parent holds a descriptor: that may not matter to the child."""
    files = some(tmp_path, 2)

    def reads() -> bool:
        pool.after_fork()  # the test's own pool is not registered
        first_byte(files[1])
        files[0].close()
        return open_files(tmp_path) == ["1.bin"]

    with files[0].opened():
        assert in_child(reads)
