"""Training on a corpus larger than memory: cost of the loader, and growth of memory.

Bars: over 2,000 steps of ``lowtide train`` with nanoGPT's CPU settings on a corpus of 4 GB that is cold at
the start, resident memory grows by at most 16 MiB after the first 50 steps and the loader takes at most 1 %
of the time, also inside a memory cgroup of 1 GiB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.cgroup import CgroupUnavailableError, LimitedGroup, memory_cgroup

from benchmarks.harness import Report, run
from lowtide._gpt import metrics
from lowtide.memory import drop_page_cache

GB = 10**9
SETTLED = 50  # steps until buffers, threads and allocators have their final size
VOCABULARY = 256


def build(options: argparse.Namespace) -> list[Report]:
    """The loader's share of training, and memory over it."""
    report = Report(f"training, {options.steps} steps on {options.size:g} GB")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        corpus(Path(folder), int(options.size * GB))
        _measure(report, "alone", folder, options)
        try:
            with memory_cgroup("1 GiB") as group:
                _measure(report, "in 1 GiB", folder, options, group)
                report.claim("in 1 GiB: killed", group.oom_kills(), 0, at_most=True)
        except CgroupUnavailableError as error:
            report.notes.append(f"in 1 GiB: left out, {error}")
    return [report]


def corpus(folder: Path, nbytes: int) -> None:
    """Random tokens, written in full: holes in a file are read without the device."""
    block = np.random.default_rng(0).integers(0, VOCABULARY, 2**23, dtype=np.uint16)
    for name, size in (("train", nbytes), ("val", 2**21)):
        with open(folder / f"{name}.bin", "wb") as file:
            while size > 0:
                file.write(block.tobytes()[:size])
                size -= block.nbytes
                block = np.roll(block, 1)
            file.flush()
            os.fsync(file.fileno())


def command(folder: str, out: str, steps: int) -> list[str]:
    """A run with nanoGPT's settings for a CPU."""
    return [
        sys.executable, "-m", "lowtide.cli", "train", "--data", folder, "--out", out, "--device", "cpu",
        "--vocab-size", str(VOCABULARY), "--max-iters", str(steps), "--preset", "nanogpt",
    ]  # fmt: skip


def figures(out: str) -> dict[str, float]:
    """Growth of memory and the loader's share, from the metrics of a run."""
    lines = list(metrics.read(os.path.join(out, "metrics.jsonl")))
    later = lines[SETTLED:]
    return {
        "growth": max(line["rss_mib"] for line in later) - lines[SETTLED - 1]["rss_mib"],
        "rss": later[-1]["rss_mib"],
        "loader": 100 * sum(line["loader_ms"] for line in later) / sum(line["step_ms"] for line in later),
        "step": float(np.median([line["step_ms"] for line in later])),
    }


def _measure(
    report: Report, name: str, folder: str, options: argparse.Namespace, group: LimitedGroup | None = None
) -> None:
    drop_page_cache(os.path.join(folder, "train.bin"))
    out = os.path.join(folder, f"run {name}")
    words = command(folder, out, options.steps)
    words = group.command(words) if group else words
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")
    result: dict[str, Any] = figures(out)
    report.row(
        name,
        **{
            "ms per step": result["step"],
            "loader %": result["loader"],
            "MiB at the end": result["rss"],
            "grown MiB": result["growth"],
        },
    )
    report.claim(f"{name}: MiB grown after {SETTLED} steps", result["growth"], 16, at_most=True)
    report.claim(f"{name}: percent of a step that the loader takes", result["loader"], 1, at_most=True)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--size", type=float, default=4, help="GB of the corpus")


if __name__ == "__main__":
    run(build, _more)
