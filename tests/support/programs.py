"""Small programs with a known appetite, for the profiler to judge. Each reads the file that it is given."""

from __future__ import annotations

import sys

HEAD = "import os, sys, time\nimport numpy as np\npath = sys.argv[1]\nsize = os.path.getsize(path)\n"

WALK_MEMMAP = """
a = np.memmap(path, dtype="u1", mode="r")
for start in range(0, size, 1 << 22):
    int(a[start : start + (1 << 22)].sum())
"""

WALK_PREADV = """
fd = os.open(path, os.O_RDONLY)
buffer = bytearray(1 << 22)
view = np.frombuffer(buffer, "u1")
for start in range(0, size, 1 << 22):
    os.preadv(fd, [buffer], start)
    int(view.sum())
"""

WALK_LOWTIDE = """
import lowtide
for chunk in lowtide.open(path, dtype="u1", shape=(-1, 4096)).chunks(1024):
    int(chunk.sum())
"""

SHUFFLED_LOWTIDE = """
import lowtide
for chunk in lowtide.open(path, dtype="u1", shape=(-1, 4096)).chunks(1024, shuffle=True):
    int(chunk.sum())
"""

LEAK = """
fd = os.open(path, os.O_RDONLY)
buffer = bytearray(10 << 20)
view = np.frombuffer(buffer, "u1")
kept = []
for start in range(0, size, 10 << 20):
    os.preadv(fd, [buffer], start)
    int(view.sum())
    kept.append(b"x" * (1 << 20))
"""

FOUR_WORKERS = """
a = np.memmap(path, dtype="u1", mode="r")
workers = []
for _ in range(4):
    worker = os.fork()
    if not worker:
        for start in range(0, size, 1 << 22):
            int(a[start : start + (1 << 22)].sum())
        time.sleep(0.3)
        os._exit(0)
    workers.append(worker)
for worker in workers:
    os.waitpid(worker, 0)
"""

REMAP = """
for start in range(0, size, 1 << 24):
    a = np.memmap(path, dtype="u1", mode="r")
    int(a[start : start + (1 << 24)].sum())
    del a
"""

READ_AT_ONCE = """
x = np.fromfile(path, "u1")
int(x.sum())
"""


def program(body: str, path: str) -> list[str]:
    """The command that runs a program on a file."""
    return [sys.executable, "-c", HEAD + body, path]
