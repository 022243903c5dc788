"""The truth table of ``lowtide profile``: programs whose memory is known, run again and again.

    python -m benchmarks.verdicts [--repeats 20] [--load] [--only NAME ...] [--json FILE] [--keep DIR]
    python -m benchmarks.verdicts --judge DIR

Each verdict is right, unclear (and so it says) or wrong. The claim: none is wrong. With ``--load`` as many
processes as there are cores compute beside the programs.

The whole table takes an hour. ``--json`` is written after each run and continued by the next call, so that
it can be stopped, or made in parts. ``--judge`` judges recordings of ``--keep`` again, after a change of the
verdict's code; what was recorded stays what it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import truth
from tests.support.cgroup import CgroupUnavailableError, memory_cgroup

from lowtide._io import pagecache
from lowtide._memory.profile.recording import Charges, Detail, Point, Recording, Shares
from lowtide._memory.profile.verdict import judge

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


JUDGEMENTS = ("right", "unclear", "wrong")


class Table:
    """Verdicts by program and judgement, in a file if there is one."""

    def __init__(self, path: str | None, load: bool) -> None:
        self._path, self._load = path, load
        self.programs: dict[str, dict[str, Counter[str]]] = {}
        if path and os.path.exists(path):
            stored = json.loads(Path(path).read_text())
            if stored["load"] != load:
                sys.exit(f"{path}: made {'with' if stored['load'] else 'without'} --load; pass another file")
            self.programs = {
                name: {judged: Counter(lines[judged]) for judged in JUDGEMENTS}
                for name, lines in stored["programs"].items()
            }

    def count(self, name: str, judged: str | None = None) -> int:
        """How often a program was run."""
        counts = self.programs.get(name, {})
        return sum(counts[key].total() for key in counts if judged in (None, key))

    def add(self, name: str, judged: str, line: str) -> None:
        """Add a verdict, to the file as well."""
        counts = self.programs.setdefault(name, {key: Counter() for key in JUDGEMENTS})
        counts[judged][line] += 1
        if self._path:
            text = json.dumps({"load": self._load, "programs": self.programs}, indent=1)
            Path(f"{self._path}.new").write_text(text)
            os.replace(f"{self._path}.new", self._path)

    def row(self, name: str) -> str:
        """The line of a program, and the lines that were not right."""
        lines = [_row(name, *(self.count(name, judged) for judged in JUDGEMENTS))]
        for judged in JUDGEMENTS[1:]:
            for line, count in self.programs[name][judged].most_common(3):
                lines.append(f"    {judged} {count} x {line}")
        return "\n".join(lines)

    def total(self) -> str:
        """The last line."""
        return _row(
            "all", *(sum(self.count(name, judged) for name in self.programs) for judged in JUDGEMENTS)
        )

    @property
    def wrong(self) -> bool:
        """Whether a verdict was wrong."""
        return any(self.count(name, "wrong") for name in self.programs)


def _row(name: str, right: object, unclear: object, wrong: object) -> str:
    return f"{name:<44} {right:>6} {unclear:>8} {wrong:>6}"


def main() -> None:
    """Run the programs, print a table, end with 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--load",
        type=int,
        nargs="?",
        const=os.cpu_count() or 1,
        default=0,
        metavar="PROCESSES",
        help="compute in so many processes meanwhile [default: one for each core]",
    )
    parser.add_argument("--quick", action="store_true", help="only the programs that CI runs")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="programs with this in their names"
    )
    parser.add_argument(
        "--exactly", nargs="*", default=[], metavar="NAME", help="the programs of these names"
    )
    parser.add_argument("--folder", default=None, help="where the file of 1 GiB is made, if it is not there")
    parser.add_argument(
        "--rounds", type=int, dest="repeats", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    parser.add_argument("--keep", metavar="DIR", help="keep the recordings here, for another look")
    parser.add_argument("--judge", metavar="DIR", help="judge the recordings here again, and run nothing")
    parser.add_argument("--json", metavar="FILE", help="continue the table in this file")
    options = parser.parse_args()
    if options.judge:
        table = judged_again(options.judge, options.only)
        print(table.total())
        sys.exit(table.wrong)
    table = Table(options.json, bool(options.load))
    with (
        tempfile.TemporaryDirectory(prefix="lowtide-truth-", dir=options.folder) as folder,
        load(options.load),
    ):
        data = data_file(options.folder or folder)
        print(_row("program", *JUDGEMENTS), flush=True)
        for program in truth.chosen(options.only, options.quick):
            if options.exactly and program.name not in options.exactly:
                continue
            if not program.available():
                print(f"{program.name:<44} needs {program.needs}")
                continue
            while (turn := table.count(program.name)) < options.repeats:
                line = run(program, data, folder)
                table.add(program.name, program.judged(line), line)
                if options.keep and os.path.exists(f"{folder}/recording"):
                    os.makedirs(options.keep, exist_ok=True)
                    name = f"{program.name.replace('/', '')}-{turn}"
                    os.replace(f"{folder}/recording", f"{options.keep}/{name}")
            print(table.row(program.name), flush=True)
    print(table.total())
    sys.exit(table.wrong)


def judged_again(folder: str, names: list[str]) -> Table:
    """The table of recordings that were kept, by the verdicts of today."""
    table = Table(None, False)
    for program in truth.chosen(names):
        name = program.name.replace("/", "")
        for path in sorted(Path(folder).glob(f"{name}-*")):
            if path.name.rsplit("-", 1)[0] == name:
                line = judge(recording(path)).line
                table.add(program.name, program.judged(line), line)
        if table.count(program.name):
            print(table.row(program.name), flush=True)
    return table


def recording(path: Path) -> Recording:
    """A recording that was kept."""
    fields: dict[str, Any] = pickle.loads(path.read_bytes())
    looks = {"points": Point, "details": Detail, "shares": Shares, "charges": Charges}
    again = Recording(fields["command"], fields["pid"], fields["started"], fields["interval"])
    for name, value in fields.items():
        if name in looks:
            for look in value:
                again.add(looks[name](*look))
        else:
            setattr(again, name, value)
    return again


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
    """1 GiB of random bytes, on disk and in the page cache; made once for a folder."""
    path = f"{folder}/data/data.bin"
    if os.path.exists(path):
        return path
    os.makedirs(f"{folder}/data", exist_ok=True)
    block = os.urandom(2**22)
    with open(f"{path}.new", "wb") as file:
        for _ in range(256):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    return path


@contextlib.contextmanager
def load(count: int) -> Iterator[None]:
    """Compute in ``count`` processes meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.send_signal(signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
