"""The big files of the token benchmark: corpora really written, and what peers' writers make of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.loaders import LOADERS, PEERS

GB = 10**9


class Corpora:
    """The big files, each made when first asked for."""

    def __init__(self, folder: str, size: float) -> None:
        self.folder = folder
        self.size = size

    @cached_property
    def small(self) -> str:
        """2 GB: several times the memory limit. Also what the peers' writers convert."""
        return _corpus(os.path.join(self.folder, "small"), min(2, self.size))

    @cached_property
    def large(self) -> str:
        return _corpus(os.path.join(self.folder, "large"), self.size)

    @cached_property
    def peers(self) -> dict[str, str]:
        """Peers, and what keeps them out of the tables (an empty text: nothing)."""
        return {name: self._convert(name) for name in PEERS}

    def _convert(self, name: str) -> str:
        loader = LOADERS[name]
        if loader.version is None:
            return "not installed"
        if loader.convert is None:
            return ""
        say(f"converting for {name}")
        command = [sys.executable, "-m", "benchmarks.loaders", name, f"convert:{self.small}"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "TMPDIR": self.folder},  # peers leave files there
            check=False,
        )
        return "" if done.returncode == 0 else f"not converted: {done.stderr.strip().splitlines()[-1]}"


def _corpus(folder: str, gigabytes: float) -> str:
    """Random tokens, really written: a hole in a file would be read without the device."""
    say(f"writing {gigabytes:g} GB of tokens")
    os.mkdir(folder)
    block = np.random.default_rng(0).integers(0, 50257, 2**24, dtype=np.uint16)
    left = int(gigabytes * GB)
    with open(os.path.join(folder, "train.bin"), "wb") as file:
        while left > 0:
            file.write(block.data.cast("B")[:left])
            left -= block.nbytes
            block += 1
        file.flush()
        os.fsync(file.fileno())
    return folder


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
