"""One pass of ``lowtide compare`` in a separate process: a pickled task in, figures as JSON out."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.stored import StoredArray
from lowtide._memory import proc
from lowtide._memory.snapshot import reset_peak, resident
from lowtide._permutation import Order, Sequential, Shuffled
from lowtide.errors import LowtideError

METHODS = ("np.memmap", "memmap", "remap", "advise", "pread", "pread, drop")
REMOTE_METHODS = ("obstore", "remote")
"""For an array in a bucket: what obstore itself offers, and lowtide's reader."""
_SAMPLES = 100


class Walk(NamedTuple):
    """The settings of a walk."""

    layout: Layout
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
    layout = replace(task.layout, shape=(task.limit_rows, *task.layout.shape[1:]))
    usual = {"np.memmap": _memmap_chunks, "obstore": _obstore_chunks}
    chunks = usual.get(task.method, _chunks)(layout, task)
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
        if now - started > task.seconds:
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
    reader, _, drop = task.method.partition(", ")
    array = StoredArray(layout, reader=reader, cache="drop" if drop else "keep")  # type: ignore[arg-type]
    chunks = array.chunks(task.rows, shuffle=task.shuffled)
    if not task.shuffled:
        return chunks
    # Readers are compared, not budgets: with more than the least budget, small files would be loaded.
    return array.chunks(task.rows, shuffle=True, budget=chunks._plan.least)


def _memmap_chunks(layout: Layout, task: Walk) -> Iterator[npt.NDArray[Any]]:
    """The usual code without lowtide: one mapping, from which each chunk is copied."""
    order = "F" if layout.fortran else "C"
    mapped = np.memmap(layout.path, layout.dtype, "r", layout.offset, layout.shape, order)  # type: ignore[call-overload]
    rows: Order = Shuffled(len(mapped)) if task.shuffled else Sequential(len(mapped))
    for start in range(0, len(mapped), task.rows):
        stop = min(len(mapped), start + task.rows)
        yield mapped[rows(start, stop)] if task.shuffled else np.array(mapped[start:stop])


def _obstore_chunks(layout: Layout, task: Walk) -> Iterator[npt.NDArray[Any]]:
    """The usual code without lowtide: one request per chunk, or for the rows of each ``get_ranges``."""
    import obstore

    from lowtide._io.remote import address, requests

    if layout.identity is None or layout.identity.options is None:
        raise LowtideError(f"{layout.path}: is not an array in a bucket")
    place = address.parse(layout.path)
    client = requests.client_of(place, layout.identity.options)
    count, width = layout.shape[0], layout.nbytes // layout.shape[0]
    rows: Order = Shuffled(count) if task.shuffled else Sequential(count)
    for start in range(0, count, task.rows):
        numbers = rows(start, min(count, start + task.rows))
        offsets = layout.offset + numbers * width
        if task.shuffled:
            parts = obstore.get_ranges(
                client, place.path, starts=offsets.tolist(), lengths=[width] * len(offsets)
            )
        else:
            length = len(offsets) * width
            parts = [obstore.get_range(client, place.path, start=int(offsets[0]), length=length)]
        yield np.concatenate([np.frombuffer(memoryview(part), layout.dtype) for part in parts])


def walk_apart(task: Walk) -> Figures:
    """Walk in a separate process, so that its memory is that of the walk alone."""
    command = [sys.executable, "-m", "lowtide._compare.walks"]
    ended = subprocess.run(command, input=pickle.dumps(task), capture_output=True, check=False)
    if ended.returncode:
        ending = f"exit status {ended.returncode}" if ended.returncode > 0 else f"signal {-ended.returncode}"
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:] or [ending]
        raise LowtideError(f"a walk failed: {last[0]}")
    figures: Figures = json.loads(ended.stdout)
    return figures


if __name__ == "__main__":
    try:
        json.dump(walk(pickle.load(sys.stdin.buffer)), sys.stdout)  # noqa: S301 - of the parent process
    except LowtideError as error:
        sys.exit(str(error))
