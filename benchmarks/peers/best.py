"""The best possible on this machine, measured in the same run: what makes figures of two machines comparable.

Warm and in order, nothing that copies is faster than a copy from an array in memory (``worker.RAM``). Cold,
nothing that reads sample by sample is faster than fio with many such reads under way; longer runs are.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence

from benchmarks.harness import MIB, fio
from benchmarks.peers.work import Work

READS: dict[Work, tuple[str, int]] = {"tokens": ("2k", 64), "rows": ("1k", 256)}
"""The size of a sample, and how many are asked for at once. 2 KiB is a window but for its last token."""
_SECONDS = 2.0


def random_reads(work: Work, path: str, enter: Sequence[str] = ()) -> float | None:
    """MiB/s that fio gets from the device with reads of one sample each; None where fio is missing."""
    if shutil.which("fio") is None:
        return None
    size, depth = READS[work]
    return fio(path, rw="randread", bs=size, depth=depth, seconds=_SECONDS, enter=enter)["bytes"] / MIB


def dd(path: str) -> float | None:
    """MiB/s of one pass of dd into one buffer, with the file in the page cache as it is."""
    if shutil.which("dd") is None:
        return None
    pending = time.perf_counter()
    ended = subprocess.run(
        ["dd", f"if={path}", "of=/dev/null", "bs=4M"], capture_output=True, text=True, check=True
    )
    taken = time.perf_counter() - pending
    nbytes = next(int(line.split()[0]) for line in ended.stderr.splitlines() if " bytes " in line)
    return nbytes / taken / MIB
