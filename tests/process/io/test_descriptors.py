"""The limit on open files, in processes that have a low one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide._io.descriptors import DescriptorPool
from tests.support.descriptors import first_byte, open_files, pool, some
from tests.support.process import in_child, output

__all__ = ["pool"]

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
def test_thousands_of_arrays_open_with_256_descriptors(tmp_path: Path, reader: str) -> None:
    most, left = map(int, output(THOUSANDS, tmp_path, reader).split())
    assert most < 200
    assert left < 20


def test_child_forked_during_read_can_use_pool(tmp_path: Path, pool: DescriptorPool) -> None:
    """Another thread of the parent holds a descriptor: that may not matter to the child."""
    files = some(tmp_path, 2)

    def reads() -> bool:
        pool.after_fork()  # the test's own pool is not registered
        first_byte(files[1])
        files[0].close()
        return open_files(tmp_path) == ["1.bin"]

    with files[0].opened():
        assert in_child(reads)
