"""``python -m benchmarks``: every benchmark, one after another; figures go to benchmarks/results/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALL = (
    "sequential",
    "shuffled",
    "budgets",
    "opening",
    "tokens",
    "prepare",
    "meter",
    "verdicts",
    "training",
    "gpt",
    "peers",
)

if __name__ == "__main__":
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    for name in ALL:
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(results / f"{name}.json")]
        subprocess.run([*command, *sys.argv[1:]], check=True)
