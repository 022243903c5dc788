"""Find out why a pod is killed: let `lowtide profile` look at the program, and mend what it names.

    python examples/killed_pod.py

Two programs read the same file. The first maps it, as many do: every page that it touches stays with it, and
with enough of them its pod is evicted. No profiler of Python's own heap sees that, since the pages are the
file's. The second reads with lowtide.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import lowtide

KILLED = """
import sys, numpy as np
rows = np.load(sys.argv[1], mmap_mode="r")
total = 0.0
for start in range(0, len(rows), 1024):
    total += rows[start : start + 1024].sum()
"""

MENDED = """
import sys, lowtide
rows = lowtide.open(sys.argv[1])
total = 0.0
for chunk in rows.chunks(1024):
    total += chunk.sum()
"""


def make(path):
    rng = np.random.default_rng(0)
    with lowtide.create(path, "float32", row_shape=1024) as out:
        for _ in range(128):
            out.append(rng.random((1024, 1024), dtype=np.float32))


def profile(program, path):
    """The last line that `lowtide profile` says: it starts with `grows` or `bounded`."""
    lowtide_profile = [sys.executable, "-m", "lowtide.cli", "profile", "--interval", "0.01", "--"]
    done = subprocess.run(
        [*lowtide_profile, sys.executable, "-c", program, str(path)],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()[-1]


def main(folder):
    path = folder / "features.npy"
    make(path)
    print(f"{path.name} has {path.stat().st_size >> 20} MiB")

    verdict = profile(KILLED, path)
    print(f"the program that is killed: {verdict}")
    assert verdict.startswith("grows"), verdict
    assert "mapped: features.npy" in verdict, "the file is named, and that it is mapped"

    verdict = profile(MENDED, path)
    print(f"the program that is mended: {verdict}")
    assert verdict.startswith("bounded"), verdict

    print(
        "In the pod: `lowtide doctor` tells its limit, `lowtide watch PID` shows a program that runs already,"
    )
    print("and `lowtide profile --out report.html -- python train.py` draws the curves.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
