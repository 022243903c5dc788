"""Memory of ``prepare``: 1.5 GiB of JSON lines in a container of 512 MiB, and no more than for 0.5 GiB."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lowtide._memory import proc

GIB = 2**30


def grow(path: Path, nbytes: int) -> None:
    """Append documents of a few kilobytes until the file has so many bytes."""
    chance = random.Random(0)
    lines = [json.dumps({"text": "low tide, high tide. " * chance.randrange(1, 400)}) for _ in range(4000)]
    block = ("\n".join(lines) + "\n").encode()
    with open(path, "ab") as file:
        while file.tell() < nbytes:
            file.write(block)


def peak_of_processes(group: Any, command: list[str]) -> int:
    """The sum of what each process of the command held at most: VmHWM, which only ever rises."""
    process = subprocess.Popen(
        group.command(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for pid in map(int, Path(group.path, "cgroup.procs").read_text().split()):
            with suppress(OSError):  # it has just ended
                peaks[pid] = max(peaks.get(pid, 0), proc.status(pid).peak)  # one that is ending holds nothing
        time.sleep(0.02)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return sum(peaks.values())


def test_peak_does_not_grow_with_input_size(tmp_path: Path, limited: Any) -> None:
    source, out = tmp_path / "web.jsonl", tmp_path / "out"
    command = [sys.executable, "-m", "lowtide.cli", "prepare", str(source), "-o", str(out), "--workers=2"]
    peaks = []
    for nbytes in (GIB // 2, 3 * GIB // 2):
        grow(source, nbytes)
        with limited("512 MiB") as group:
            peaks.append(peak_of_processes(group, command))
            assert group.oom_kills() == 0
        shutil.rmtree(out)
    source.unlink()
    assert peaks[0] < 400 * 2**20
    assert abs(peaks[1] - peaks[0]) <= 0.1 * peaks[0], peaks
