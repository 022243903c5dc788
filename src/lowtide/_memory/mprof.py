"""mprof's files: recorded beside a command, found, listed, plotted.

A recording is ``mprofile_YYYYmmddHHMMSS.dat`` in the current folder, in memory_profiler's format.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from lowtide._extras import library
from lowtide._memory import timestamps
from lowtide._memory.usage import memory_usage
from lowtide.errors import AccessError, ArgumentError, FormatError, NotFoundError, write_errors

PATTERN = "mprofile_??????????????.dat"


class Curve(NamedTuple):
    """The samples of one process: seconds since the epoch, and MiB."""

    times: list[float]
    sizes: list[float]


class Recorded(NamedTuple):
    """The contents of a file."""

    command: str
    curve: Curve
    children: dict[str, Curve]
    functions: list[tuple[str, float, float, float, float]]  # name, MiB and time at the start and the end

    def sizes_in(self, function: str) -> list[float]:
        """The samples that were taken while a function ran, and the sizes at its start and end."""
        sizes = []
        for name, before, start, after, end in self.functions:
            if name == function:
                inside = (size for time, size in zip(*self.curve, strict=True) if start <= time <= end)
                sizes += [before, after, *inside]
        return sizes


def record(
    words: Sequence[str], path: str | None, interval: float, include_children: bool, multiprocess: bool,
    python: bool = False,
) -> int:  # fmt: skip
    """Run a command and record its memory; the exit status of the command.

    With ``python`` it is a command line of Python, and calls of functions marked with ``@profile`` are noted.
    """
    path = path or time.strftime("mprofile_%Y%m%d%H%M%S.dat")
    program = timestamps.command(words, os.path.abspath(path)) if python else None
    existed = os.path.exists(path)
    with write_errors(path), open(path, "w", encoding="utf-8") as file:
        file.write(f"CMDLINE {shlex.join(words)}\n".replace("\n", " ").strip() + "\n")
    try:
        process = subprocess.Popen(program or words)
    except OSError as error:
        if not existed:
            os.unlink(path)
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(errno.ENOENT, "no such command; check its spelling", words[0]) from error
        problem = f"cannot be executed ({(error.strerror or str(error)).lower()}); pass its interpreter first"
        raise AccessError(error.errno or errno.EACCES, problem, words[0]) from error
    # Line by line, since the program appends lines too, and so that a kill loses nothing.
    with process, write_errors(path), open(path, "a", encoding="utf-8", buffering=1) as file:
        memory_usage(
            process, interval=interval, timestamps=True, include_children=include_children,
            multiprocess=multiprocess, stream=file,
        )  # fmt: skip
        return process.wait()


def paths(names: Sequence[str] = ()) -> list[str]:
    """Recordings by path or by number, 0 for the oldest and -1 for the newest; all without names."""
    existing = sorted(glob.glob(PATTERN))
    if not names:
        return existing
    chosen: list[str] = []
    for name in names:
        path = name
        if re.fullmatch("-?[0-9]+", name):
            try:
                path = existing[int(name)]
            except IndexError:
                raise ArgumentError(
                    f"there is no recording {name} ({len(existing)} are here); see `lowtide mprof list`"
                ) from None
        elif not os.path.isfile(name):
            raise NotFoundError(errno.ENOENT, "no such recording; see `lowtide mprof list`", name)
        if path not in chosen:
            chosen.append(path)
    return chosen


def read(path: str) -> Recorded:
    """The samples of a file."""
    command, curve = "", Curve([], [])
    children: dict[str, Curve] = {}
    functions = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            word, _, rest = line.strip().partition(" ")
            fields = rest.split()
            try:
                if word == "MEM":
                    curve.sizes.append(float(fields[0]))
                    curve.times.append(float(fields[1]))
                elif word == "CHLD":
                    child = children.setdefault(fields[0], Curve([], []))
                    child.sizes.append(float(fields[1]))
                    child.times.append(float(fields[2]))
                elif word == "FUNC":
                    before, start, after, stop = map(float, fields[1:5])
                    functions.append((fields[0], before, start, after, stop))
                elif word == "CMDLINE":
                    command = rest
            except (ValueError, IndexError):
                raise FormatError(
                    f"{path}, line {number}: not a sample ({line[:40]!r}, expected a size and a time); "
                    "remove the line"
                ) from None
    if not curve.times:
        raise FormatError(f"{path}: no MEM line; pass a recording of `lowtide mprof run`")
    return Recorded(command, curve, children, functions)


def plot(
    files: Sequence[str], title: str | None, output: str | None, functions: bool = True,
    window: tuple[float, float] | None = None, slope: bool = False,
) -> None:  # fmt: skip
    """Draw recordings with matplotlib, into a file or a window."""
    matplotlib = library("matplotlib", "mprof plot", "plot")
    if output:
        matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(14, 6), dpi=90)

    def draw(curve: Curve, label: str) -> None:
        times = [moment - start for moment in curve.times]
        if slope and len(set(times)) > 1:
            trend = np.polyfit(times, curve.sizes, 1)
            label += f", slope {trend[0]:.5f} MiB/s"
            axes.plot(times, np.polyval(trend, times), "--", linewidth=0.5, color="gray")
        axes.plot(times, curve.sizes, label=label)

    for path in files:
        recorded = read(path)
        start = recorded.curve.times[0]
        draw(recorded.curve, f"{os.path.basename(path)}, peak {max(recorded.curve.sizes):.1f} MiB")
        for name, child in recorded.children.items():
            draw(child, f"child {name}")
        calls: dict[str, list[tuple[float, float]]] = {}
        for name, _, first, _, last in recorded.functions if functions else ():
            calls.setdefault(name, []).append((first - start, last - first))
        for number, (name, spans) in enumerate(calls.items()):
            label = f"{name} {sum(length for _, length in spans):.3f} s in {len(spans)} calls"
            axes.broken_barh(
                spans, (0, 1), transform=axes.get_xaxis_transform(), alpha=0.15, color=f"C{number + 1}",
                label=label,
            )  # fmt: skip
    axes.set_xlabel("time (seconds)")
    axes.set_ylabel("memory used (MiB)")
    axes.set_title(title or (read(files[0]).command if len(files) == 1 else ""))
    axes.set_xlim(window)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True)
    axes.legend(loc="upper left", fontsize="small")
    if output:
        with write_errors(output):
            figure.savefig(output)
        pyplot.close(figure)
    else:
        pyplot.show()
