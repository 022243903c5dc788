"""Runs damaged files through a reader, in a process whose death, slowness and greed are findings too."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.errors import LowtideError
from tests.fuzz.mutations import mutate

_ADDRESS_SPACE = 4 * 2**30  # above what the process has at the start: protects the machine
_HANG = 60.0  # seconds, or a quarter less, until a case that does not return is ended
_DEATHS = 5  # after so many the rest of the cases is not run


@dataclass(frozen=True)
class Target:
    """A kind of file, and how a user reads it."""

    name: str
    make: Callable[[Path], None]
    """Writes valid files into an empty folder."""
    read: Callable[[Path], None]
    """Reads what is in the folder, as far as a user would; returns, or raises a ``LowtideError``."""
    damaged: str = "**/*"
    """Which of the files are damaged."""
    seconds: float = 5
    """Processor time that one case may take."""
    memory: int = 256 * 2**20
    """Peak memory that one case may add."""
    share: float = 1
    """Of the cases that were asked for, when each is expensive."""
    isolated: Callable[[Path], None] | None = None
    """How users read it whom another process protects from a library that crashes; ``read`` is faster.

    A case that ends the process is read again in this way before it is a finding.
    """


@dataclass(frozen=True)
class Finding:
    """A case that did not end as it should, and the command that repeats it."""

    target: str
    case: int
    problem: str

    def __str__(self) -> str:
        return f"{self.problem}\n    python -m tests.fuzz {self.target} --case {self.case}"


def run(target: Target, cases: int, first: int = 0) -> list[Finding]:
    """Run ``cases`` cases in their own process."""
    findings: list[Finding] = []
    last, deaths = first + max(1, int(cases * target.share)), 0
    while first < last and deaths < _DEATHS:
        command = [
            sys.executable,
            "-m",
            "tests.fuzz",
            target.name,
            "--first",
            str(first),
            "--last",
            str(last),
        ]
        child = subprocess.run(
            [*command, "--inside"], capture_output=True, text=True, errors="replace", check=False
        )
        lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
        findings += [Finding(**line["finding"]) for line in lines if "finding" in line]
        if child.returncode == 0:
            break
        case = next((line["case"] for line in reversed(lines) if "case" in line), first)
        first, deaths = case + 1, deaths + 1
        if target.isolated is None or _read_isolated(target, case):
            end = " ".join(child.stderr.split()[-60:])
            findings.append(Finding(target.name, case, f"the process ended with {child.returncode}: {end}"))
    return findings


def _read_isolated(target: Target, case: int) -> int:
    """Read one case in the protected way, and return the exit status of the process that did."""
    command = [sys.executable, "-m", "tests.fuzz", target.name, "--case", str(case), "--isolated"]
    return subprocess.run(command, capture_output=True, check=False, timeout=_HANG).returncode


def run_inside(target: Target, first: int, last: int) -> None:
    """Run cases in this process; prints each case's number before it, and findings as they come."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # hundreds of thousands of files come and go
    with tempfile.TemporaryDirectory(prefix="lowtide-fuzz-", dir=memory) as name:
        folder = Path(name)
        valid = folder / "valid"
        valid.mkdir()
        target.make(valid)
        _read_valid(target, valid)
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + _ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        warnings.simplefilter("error")
        armed = -_HANG
        for case in range(first, last):
            if (
                time.monotonic() - armed > _HANG / 4
            ):  # not for each case, which would take as long as the case
                # A loop in C hears no signal: then the process ends, with the stack for the finding.
                faulthandler.dump_traceback_later(_HANG, exit=True)
                armed = time.monotonic()
            print(json.dumps({"case": case}), flush=True)
            problem = run_case(target, valid, folder / "case", case)
            if problem is not None:
                print(json.dumps({"finding": asdict(Finding(target.name, case, problem))}), flush=True)
        faulthandler.cancel_dump_traceback_later()


def _read_valid(target: Target, valid: Path) -> None:
    """The undamaged files must be readable, or no damaged one would be read far enough."""
    copy = valid.parent / "copy"
    shutil.copytree(valid, copy)
    with contextlib.redirect_stdout(io.StringIO()):
        target.read(copy)
    shutil.rmtree(copy)
    gc.collect()


def damage(target: Target, valid: Path, folder: Path, case: int) -> Path:
    """Copy the valid files to ``folder`` and damage one of them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(valid, folder)
    rng = random.Random(f"{target.name} {case}")
    files = sorted(path for path in folder.glob(target.damaged) if path.is_file())
    victim = rng.choice(files)
    if rng.random() < 0.01:
        victim.unlink()
    else:
        victim.write_bytes(mutate(victim.read_bytes(), rng))
    return victim


def run_case(target: Target, valid: Path, folder: Path, case: int) -> str | None:
    """What was wrong with one case, or None."""
    damage(target, valid, folder, case)
    descriptors = len(os.listdir("/proc/self/fd"))
    _reset_peak()
    before = _memory("VmRSS")
    start = time.process_time()
    problem = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            target.read(folder)
    except LowtideError as error:
        if len(str(error)) > 10_000:
            problem = f"an error message of {len(str(error))} characters"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})"
    took = time.process_time() - start
    grown = _memory("VmHWM") - before
    if problem is None and took > target.seconds:
        problem = f"took {took:.1f} s, expected at most {target.seconds} s"
    if problem is None and grown > target.memory:
        problem = f"took {grown >> 20} MiB, expected at most {target.memory >> 20} MiB"
    if problem is None and len(os.listdir("/proc/self/fd")) > descriptors:
        gc.collect()
        left = len(os.listdir("/proc/self/fd")) - descriptors
        problem = f"left {left} descriptors open" if left > 0 else None
    return problem


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _memory(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024
