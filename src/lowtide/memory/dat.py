"""The ``.dat`` format of memory_profiler, which other tools read and write.

CMDLINE python train.py
MEM 71.218750 1700000000.1234
CHLD 4711 12.500000 1700000000.2345
FUNC __main__.step 71.2188 1700000000.12 80.0000 1700000001.34
"""

from __future__ import annotations

import math
import shlex

from lowtide.errors import FormatError, writing
from lowtide.memory.recording import Point, Recording

_MIB = 2**20


def save(path: str, recording: Recording) -> None:
    """Write the memory of a recording, heap and mapped files together."""
    series = recording.series()
    try:
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"CMDLINE {shlex.join(recording.command)}\n".replace("\n", " ").strip() + "\n")
            for time, total in zip(series.time, series.total, strict=True):
                file.write(f"MEM {total / _MIB:.6f} {recording.started + time:.4f}\n")
    except OSError as error:
        raise writing(path, error) from error


def parse(data: bytes, path: str) -> Recording:
    """A recording from the text of a ``.dat`` file.

    The file tells one figure a moment, so there is no split into heap and mapped files and no bytes read.
    Children (``CHLD``) are added to the parent at the sample before them.

    >>> recording = parse(b"CMDLINE sleep 1\\nMEM 2.5 100.0\\nMEM 3.5 100.1\\n", "x.dat")
    >>> [(point.time, point.anon) for point in recording.points]
    [(0.0, 2621440), (0.09999..., 3670016)]
    """
    command: list[str] = []
    moments: list[tuple[float, float]] = []
    children: list[tuple[float, float]] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        word, _, rest = line.partition(" ")
        if word == "CMDLINE":
            command = rest.split()
        elif word == "MEM":
            moments.append(_pair(path, number, rest.split()))
        elif word == "CHLD":
            children.append(_pair(path, number, rest.split()[1:]))
        elif word not in ("FUNC", ""):
            raise FormatError(
                f"{path}, line {number}: {line[:40]!r} is not a line of memory_profiler's .dat format"
            )
    if not moments:
        raise FormatError(f"{path}: no MEM line; this is not a .dat file of memory_profiler, or it is empty")
    moments.sort(key=lambda moment: moment[1])
    started = moments[0][1]
    recording = Recording(command, 0, started, _interval(moments), split=False)
    extra = _children_at(moments, children)
    for (memory, time), more in zip(moments, extra, strict=True):
        recording.add(Point(time - started, 0, 1, round((memory + more) * _MIB), 0, 0, 0, 0, 0, 0, 0))
    recording.ended = moments[-1][1]
    recording.blind.append(
        "heap and mapped files apart, bytes read, page cache: a .dat file does not have them"
    )
    return recording


def _pair(path: str, number: int, words: list[str]) -> tuple[float, float]:
    try:
        memory, time = float(words[0]), float(words[1])
    except (ValueError, IndexError) as error:
        raise FormatError(f"{path}, line {number}: expected a size in MiB and a time") from error
    if not (math.isfinite(memory) and math.isfinite(time) and memory >= 0):
        raise FormatError(f"{path}, line {number}: {memory} MiB at {time} makes no sense")
    return memory, time


def _interval(moments: list[tuple[float, float]]) -> float:
    return (moments[-1][1] - moments[0][1]) / max(1, len(moments) - 1)


def _children_at(moments: list[tuple[float, float]], children: list[tuple[float, float]]) -> list[float]:
    extra = [0.0] * len(moments)
    index = 0
    for memory, time in sorted(children, key=lambda child: child[1]):
        while index + 1 < len(moments) and moments[index + 1][1] <= time:
            index += 1
        extra[index] += memory
    return extra
