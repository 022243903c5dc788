"""Opening: the first shuffled chunk of a 1 TB file, 10,000 files as one, the cost of ``import lowtide``.

Bars: under 50 ms and under 1 MiB of memory; 10,000 files in under 0.2 s; an import at most 1.3 times
`import numpy`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import lowtide
from benchmarks.harness import Report, rounds, run

_FIRST_CHUNK = """
import json, sys, time
import lowtide
from lowtide._memory import proc
from lowtide._memory.snapshot import reset_peak
lowtide.open, lowtide.Array
from lowtide._arrays import array, chunks
warm = lowtide.open(sys.argv[2]); next(warm.chunks(100, shuffle=True)); warm.close()
base = proc.status("self").rss
reset_peak()
started = time.perf_counter()
with lowtide.open(sys.argv[1], dtype="float32", shape=(-1, 256)) as a, a.chunks(100, shuffle=True) as c:
    chunk = next(c)
    seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "peak": proc.status("self").peak - base - 3 * chunk.nbytes}))
"""


def _seconds(code: str) -> float:
    timed = f"import time; a = time.perf_counter(); {code}; print(time.perf_counter() - a)"
    return float(
        subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout
    )


def build(options: argparse.Namespace) -> list[Report]:
    """A 1 TB sparse file, and importing."""
    opening = Report("Opening a sparse 1 TB file and the first shuffled chunk of 100 rows of 1 KiB")
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=options.folder) as folder:
        big, small = os.path.join(folder, "big.bin"), os.path.join(folder, "small.npy")
        with open(big, "wb") as file:
            file.truncate(10**12)
        import numpy as np

        np.save(small, np.zeros((1000, 256), "float32"))
        message = []
        for _ in range(2 * options.rounds + 1):
            command = [sys.executable, "-c", _FIRST_CHUNK, big, small]
            message.append(
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            )
    milliseconds = statistics.median(one["seconds"] for one in message) * 1000
    mib = statistics.median(one["peak"] for one in message) / 2**20
    opening.row("lowtide", **{"ms": milliseconds, "MiB beside the chunks": mib})
    opening.claim("milliseconds", milliseconds, 50, at_most=True)
    opening.claim("MiB of memory more", mib, 1, at_most=True)

    importing = Report("Importing")
    codes = {
        "numpy": "import numpy",
        "lowtide": "import lowtide",
        "lowtide.open": "import lowtide; lowtide.open",
    }
    taken: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(4 * options.rounds + 1):
        for name, code in codes.items():
            taken[name].append(_seconds(code))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, seconds in medians.items():
        importing.row(name, ms=seconds * 1000)
    importing.claim("import lowtide / import numpy", medians["lowtide"] / medians["numpy"], 1.3, at_most=True)
    importing.claim(
        "with lowtide.open / import numpy", medians["lowtide.open"] / medians["numpy"], 1.3, at_most=True
    )
    return [opening, _files(options), importing]


def _files(options: argparse.Namespace) -> Report:
    """Every header is looked at, and compared with the first."""
    import numpy as np

    report = Report("Opening 10,000 NPY files as one array, warm")
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=options.folder) as folder:
        paths = [os.path.join(folder, f"{number:05}.npy") for number in range(10_000)]
        for path in paths:
            np.save(path, np.zeros((2, 8), "float32"))
        methods = {
            "a list": lambda: lowtide.open(paths).close(),
            "a pattern": lambda: lowtide.open(os.path.join(folder, "*.npy")).close(),
            "a folder": lambda: lowtide.open(folder).close(),
        }
        times = rounds(methods, 5)
    for name, seconds in times.items():
        report.row(name, seconds=seconds)
        report.claim(f"seconds for {name}", seconds, 0.2, at_most=True)
    return report


if __name__ == "__main__":
    run(build)
