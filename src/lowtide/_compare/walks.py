"""One pass of ``lowtide compare`` in a separate process: settings as JSON in, figures as JSON out."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from lowtide._arrays.array import Array
from lowtide._arrays.formats.layout import Layout
from lowtide._memory import proc
from lowtide._memory.snapshot import reset_peak, resident
from lowtide._permutation import Order, Sequential, Shuffled
from lowtide.errors import LowtideError

METHODS = ("np.memmap", "memmap", "remap", "advise", "pread", "pread, drop")
_SAMPLES = 100


class Walk(TypedDict):
    """The settings of a walk."""

    layout: tuple[Any, ...]
    method: str
    shuffled: bool
    rows: int
    limit_rows: int
    seconds: float


class Figures(TypedDict):
    """The figures of a walk. Bytes, except ``seconds``; memory is above that at its start."""

    bytes_read: int
    seconds: float
    complete: bool
    peak: int | None
    samples: list[tuple[int, int]]
    """(bytes read, resident memory) during the walk."""


def walk(task: Walk) -> Figures:
    """Read a file as ``task`` says, and measure."""
    path, format, offset, dtype, shape, fortran, file_size = task["layout"]
    limited = (task["limit_rows"], *shape[1:])
    layout = Layout(path, format, offset, np.dtype(dtype), limited, fortran, file_size)
    chunks = _memmap_chunks(layout, task) if task["method"] == "np.memmap" else _chunks(layout, task)
    gc.collect()
    base = resident()
    peaks = reset_peak()
    samples, total, next_sample = [(0, 0)], 0, 0
    step = layout.nbytes // _SAMPLES
    started = time.perf_counter()
    paused = 0.0
    for chunk in chunks:
        total += chunk.nbytes
        now = time.perf_counter()
        if total >= next_sample:
            samples.append((total, resident() - base))
            next_sample = total + step
            paused += time.perf_counter() - now  # measuring is not reading
        if now - started > task["seconds"]:
            break
    seconds = time.perf_counter() - started - paused
    return {
        "bytes_read": total,
        "seconds": seconds,
        "complete": total == layout.nbytes,
        "peak": proc.status("self").peak - base if peaks else None,
        "samples": samples,
    }


def _chunks(layout: Layout, task: Walk) -> Iterator[npt.NDArray[Any]]:
    reader, _, drop = task["method"].partition(", ")
    array = Array(layout, reader=reader, cache="drop" if drop else "keep")  # type: ignore[arg-type]
    return array.chunks(task["rows"], shuffle=task["shuffled"])


def _memmap_chunks(layout: Layout, task: Walk) -> Iterator[npt.NDArray[Any]]:
    """The usual code without lowtide: one map, kept, and each chunk copied out of it."""
    order = "F" if layout.fortran else "C"
    mapped = np.memmap(layout.path, layout.dtype, "r", layout.offset, layout.shape, order)  # type: ignore[call-overload]
    rows: Order = Shuffled(len(mapped)) if task["shuffled"] else Sequential(len(mapped))
    for start in range(0, len(mapped), task["rows"]):
        stop = min(len(mapped), start + task["rows"])
        yield mapped[rows(start, stop)] if task["shuffled"] else np.array(mapped[start:stop])


def task_for(layout: Layout, **settings: Any) -> str:
    """The JSON for one walk."""
    plain = replace(layout, name=None)
    where = (
        plain.path,
        plain.format,
        plain.offset,
        plain.dtype.str,
        plain.shape,
        plain.fortran,
        plain.file_size,
    )
    return json.dumps({"layout": where, **settings})


def walk_apart(task: str) -> Figures:
    """Walk in a separate process, so that its memory is that of the walk alone."""
    ended = subprocess.run(
        [sys.executable, "-m", "lowtide._compare.walks", task], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        ending = f"exit status {ended.returncode}" if ended.returncode > 0 else f"signal {-ended.returncode}"
        last = ended.stderr.strip().splitlines()[-1:] or [ending]
        raise LowtideError(f"a walk failed: {last[0]}")
    figures: Figures = json.loads(ended.stdout)
    return figures


if __name__ == "__main__":
    try:
        json.dump(walk(json.loads(sys.argv[1])), sys.stdout)
    except LowtideError as error:
        sys.exit(str(error))
