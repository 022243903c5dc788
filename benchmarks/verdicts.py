"""The truth table of ``lowtide profile``: programs whose memory is known, run again and again.

    python -m benchmarks.verdicts [--repeats 20] [--load] [--only NAME ...] [--json FILE]

Each verdict is right, unclear (and so it says) or wrong. The claim: none is wrong. With ``--load`` as many
processes as there are cores compute beside the programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support import truth
from tests.support.cgroup import CgroupUnavailableError, memory_cgroup

from lowtide._io import pagecache

# In a separate process: the kernel keeps one peak for all that a process has ever started.
PROFILE = """
import pickle, sys
from lowtide._memory.profile import profiler
from lowtide._memory.profile.verdict import judge
recording = profiler.record(sys.argv[2:])
with open(sys.argv[1], "wb") as file: pickle.dump((recording.__dict__ | {"points": list(recording.points),
    "details": [list(map(lambda v: dict(v) if hasattr(v, "items") else v, d)) for d in recording.details],
    "shares": list(recording.shares), "charges": list(recording.charges)}), file)
print(judge(recording).line)
"""
BUSY = "while True: sum(range(100000))"


def main() -> None:
    """Run the programs, print a table, end with 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--load", action="store_true", help="compute on all cores meanwhile")
    parser.add_argument("--quick", action="store_true", help="only the programs that CI runs")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="programs with this in their names"
    )
    parser.add_argument("--folder", default=None, help="where the file of 1 GiB is made")
    parser.add_argument(
        "--rounds", type=int, dest="repeats", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    parser.add_argument("--keep", metavar="DIR", help="keep the recordings here, for another look")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    results: dict[str, dict[str, Counter[str]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lowtide-truth-", dir=options.folder) as folder,
        load(options.load),
    ):
        data = data_file(folder)
        print(f"{'program':<44} {'right':>6} {'unclear':>8} {'wrong':>6}", flush=True)
        for program in truth.chosen(options.only, options.quick):
            if not program.available():
                print(f"{program.name:<44} needs {program.needs}")
                continue
            counts: dict[str, Counter[str]] = {"right": Counter(), "unclear": Counter(), "wrong": Counter()}
            for turn in range(options.repeats):
                line = run(program, data, folder)
                judged = program.judged(line)
                counts[judged][line] += 1
                if options.keep:
                    os.makedirs(options.keep, exist_ok=True)
                    os.replace(
                        f"{folder}/recording",
                        f"{options.keep}/{judged}-{program.name.replace('/', '')}-{turn}",
                    )
            results[program.name] = counts
            figures = [counts[name].total() for name in ("right", "unclear", "wrong")]
            print(f"{program.name:<44} {figures[0]:>6} {figures[1]:>8} {figures[2]:>6}", flush=True)
            for name in ("unclear", "wrong"):
                for line, count in counts[name].most_common(3):
                    print(f"    {name} {count} x {line}")
    total = Counter[str]()
    for counts in results.values():
        total.update({name: counter.total() for name, counter in counts.items()})
    print(f"{'all':<44} {total['right']:>6} {total['unclear']:>8} {total['wrong']:>6}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    sys.exit(bool(total["wrong"]))


def run(program: truth.Program, data: str, folder: str) -> str:
    """The last line that the profiler prints about a program."""
    if program.cold:
        pagecache.drop(data)
    command = [sys.executable, "-c", PROFILE, f"{folder}/recording", *program.command(data, folder)]
    if program.limit is None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        try:
            with memory_cgroup(program.limit) as group:
                done = group.run(command)
        except CgroupUnavailableError as error:
            return f"unclear: {error}"
    return (done.stdout.splitlines() or [f"wrong: {done.stderr[-300:]}"])[-1]


def data_file(folder: str) -> str:
    """1 GiB of random bytes, on disk and in the page cache."""
    os.mkdir(f"{folder}/data")
    path = f"{folder}/data/data.bin"
    block = os.urandom(2**22)
    with open(path, "wb") as file:
        for _ in range(256):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return path


@contextlib.contextmanager
def load(active: bool) -> Iterator[None]:
    """Compute on all cores meanwhile."""
    count = (os.cpu_count() or 1) if active else 0
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.send_signal(signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
