"""The ``.dat`` format of memory_profiler, which other tools read and write.

CMDLINE python train.py
MEM 71.218750 1700000000.1234
CHLD 4711 12.500000 1700000000.2345
FUNC __main__.step 71.2188 1700000000.12 80.0000 1700000001.34
"""

from __future__ import annotations

import shlex
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lowtide._memory.profile.recording import KEEP, Point, Recording
from lowtide._memory.samples import thin
from lowtide._printable import brief
from lowtide.errors import FormatError, write_errors

_MIB = 2**20
_MOST_MIB = 2**43  # 8 EiB
MOST_TIME = 2**36  # seconds: the year 4147
_Curve = NDArray[np.float64]


def save(path: str, recording: Recording) -> None:
    """Write the memory of a recording, heap and mapped files together."""
    series = recording.series()
    with write_errors(path), open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"CMDLINE {shlex.join(recording.command)}\n".replace("\n", " ").strip() + "\n")
        for time, total in zip(series.time, series.total, strict=True):
            file.write(f"MEM {total / _MIB:.6f} {recording.started + time:.4f}\n")


def parse(lines: Iterable[bytes], path: str) -> Recording:
    """A recording from the lines of a ``.dat`` file. A sample takes 16 bytes, and few are kept.

    The file has one figure per sample, so there is no split into heap and mapped files and no bytes read.
    Children (``CHLD``) are added to the parent at the sample before them.

    >>> recording = parse([b"CMDLINE sleep 1", b"MEM 2.5 100.0", b"MEM 3.5 100.1"], "x.dat")
    >>> [(point.time, point.anon) for point in recording.points]
    [(0.0, 2621440), (0.09999..., 3670016)]
    """
    command: list[str] = []
    samples, children, calls = _Samples(), _Samples(), 0
    for number, line in enumerate(lines, 1):
        word, _, rest = line.strip().partition(b" ")
        if word == b"MEM":
            samples.add(path, number, rest.split())
        elif word == b"CHLD":
            children.add(path, number, rest.split()[1:])
        elif word == b"CMDLINE":
            command = rest.decode("utf-8", "replace").split()
        elif word == b"FUNC":
            calls += 1
        elif word:
            raise FormatError(
                f"{path}, line {number}: {line[:40].decode('utf-8', 'replace')!r} is not a line of "
                "memory_profiler's .dat format; pass such a file, or the JSON of `lowtide profile --save`"
            )
    if not samples.times:
        raise FormatError(f"{path}: no MEM line; pass a .dat file of memory_profiler with samples")
    times, sizes = samples.in_order()
    child_times, child_sizes = children.in_order()
    np.add.at(sizes, np.maximum(np.searchsorted(times, child_times, side="right") - 1, 0), child_sizes)
    started = float(times[0])
    recording = Recording(
        command, 0, started, float(times[-1] - started) / max(1, len(times) - 1), split=False
    )
    for index in thin(range(len(sizes)), KEEP, sizes.__getitem__):
        size = min(round(float(sizes[index]) * _MIB), 2**63)
        recording.add(Point(float(times[index]) - started, 0, 1, size, 0, 0, 0, 0, 0, 0, 0))
    recording.ended = float(times[-1])
    recording.blind.append(
        "heap and mapped files separately, bytes read, page cache: a .dat file does not have them"
    )
    if children.times:
        recording.blind.append("what children share: each counts with all that it has resident")
    if calls:
        recording.blind.append("the calls of functions in the file; `lowtide mprof plot` shows them")
    return recording


class _Samples:
    """Sizes in MiB and their times."""

    def __init__(self) -> None:
        self.sizes, self.times = array("d"), array("d")

    def add(self, path: str, number: int, words: list[bytes]) -> None:
        try:
            size, time = float(words[0]), float(words[1])
        except (ValueError, IndexError) as error:
            raise FormatError(
                f"{path}, line {number}: not a sample ({brief(b' '.join(words), 40)}, expected a size in MiB "
                "and a time); remove the line"
            ) from error
        if not (0 <= size <= _MOST_MIB and 0 <= time <= MOST_TIME):
            raise FormatError(
                f"{path}, line {number}: impossible sample ({size} MiB at {time}, expected 0 to {_MOST_MIB} "
                f"MiB at 0 to {MOST_TIME} s); remove the line"
            )
        self.sizes.append(size)
        self.times.append(time)

    def in_order(self) -> tuple[_Curve, _Curve]:
        """Times that rise, and the sizes."""
        times, sizes = np.array(self.times), np.array(self.sizes)
        order = np.argsort(times, kind="stable")
        return times[order], sizes[order]
