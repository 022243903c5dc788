"""Would O_DIRECT with asynchronous AIO be worth a ``cache="direct"``? Shuffled rows of 1 KiB, cold.

Bar for adding it: 1.2 times ``cache="drop"``, cold or in a container. ``io_submit`` on such a descriptor
queues the reads and returns; up to 1,024 are with the device at once, and nothing goes through the page
cache.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.support.cgroup import CgroupUnavailableError, memory_cgroup

import lowtide
from benchmarks.harness import MIB, Report, fio, make_cold, matrix, rounds, run
from lowtide._io import aio
from lowtide._io.extents import Extents
from lowtide._io.reader import Cache
from lowtide._permutation import Shuffled

ROWS, CHUNKS = 4096, 16
BLOCK = 512  # what O_DIRECT wants offsets, lengths and memory to be multiples of
DIRECT, DROP, KEEP = "O_DIRECT, asynchronous AIO", "lowtide, cache=drop", "lowtide"


def direct(path: str) -> None:
    """What a reader with O_DIRECT would do for each chunk."""
    with lowtide.open(path) as array:
        rows, width, start = len(array), array.row_nbytes, array._layout.offset
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    order, held = Shuffled(rows, 1), 2 * BLOCK + width
    memory = mmap.mmap(-1, ROWS * held)
    buffer = np.frombuffer(memory, np.uint8)
    records = np.ndarray((len(buffer) - width + 1,), np.dtype((np.void, width)), memory, strides=(1,))
    slots = np.arange(ROWS, dtype=np.int64) * held
    try:
        for chunk in range(CHUNKS):
            offsets = np.sort(start + order(chunk * ROWS, (chunk + 1) * ROWS) * width)
            first = offsets // BLOCK * BLOCK
            lengths = -(-(offsets + width - first) // BLOCK) * BLOCK
            extents = Extents(first, slots, lengths)
            for i in range(0, ROWS, aio.DEPTH):
                results = aio.read(fd, extents[i : i + aio.DEPTH], buffer, 0)
                assert results is not None
                assert (results > 0).all()
            records[slots + offsets - first]
    finally:
        os.close(fd)


def walk(path: str, cache: Cache) -> None:
    """The same rows from lowtide, row by row."""
    with (
        lowtide.open(path, cache=cache) as array,
        array.chunks(ROWS, shuffle=True, seed=1) as chunks,
    ):
        for _ in range(CHUNKS):
            next(chunks)


METHODS: dict[str, Callable[[str], None]] = {
    DIRECT: direct,
    DROP: lambda path: walk(path, "drop"),
    KEEP: lambda path: walk(path, "keep"),
}


def _contained(path: str, name: str) -> float:
    make_cold(path)
    with memory_cgroup(160 * MIB) as group:
        command = group.command([sys.executable, "-m", "benchmarks.direct", "--walk", path, name])
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
        )
    return float(json.loads(done.stdout))


def build(options: argparse.Namespace) -> list[Report]:
    """O_DIRECT, cold and in a container."""
    cold = Report("O_DIRECT: shuffled rows of 1 KiB from 1 GiB, cold")
    contained = Report("O_DIRECT: the same in a memory cgroup of 160 MiB")
    with matrix(2**30, options.folder) as path:
        methods = {name: lambda method=method: method(path) for name, method in METHODS.items()}
        times = rounds(methods, options.rounds, before=lambda: make_cold(path))
        speed = {name: ROWS * CHUNKS / seconds for name, seconds in times.items()}
        try:
            speed["fio, 1 KiB, libaio, depth 64"] = fio(path, rw="randread", bs="1k", depth=64, seconds=2)[
                "iops"
            ]
        except FileNotFoundError:
            cold.notes.append("fio is not installed (Debian: apt-get install fio)")
        for name, rows in speed.items():
            cold.row(name, **{"rows/s": rows})
        cold.claim(f"{DIRECT} / {DROP}", speed[DIRECT] / speed[DROP], 1.2)
        try:
            seconds = {
                name: float(np.median([_contained(path, name) for _ in range(options.rounds)]))
                for name in METHODS
            }
            for name, taken in seconds.items():
                contained.row(name, **{"rows/s": ROWS * CHUNKS / taken})
            contained.claim(f"{DIRECT} / {DROP}", seconds[DROP] / seconds[DIRECT], 1.2)
        except CgroupUnavailableError as error:
            contained.notes.append(f"skipped: {error}")
    return [cold, contained]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--walk"]:
        started = time.perf_counter()
        METHODS[sys.argv[3]](sys.argv[2])
        print(json.dumps(time.perf_counter() - started))
    else:
        run(build, rounds=3)
