"""The sampler process and the signals of a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from lowtide._memory import proc

SLEEPER = """
import lowtide, time
from lowtide._memory import helper
with lowtide.watch(budget="1 GiB") as w:
    time.sleep(0.3)
    try:
        print(helper.helper().pid, flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print(len(w.samples) > 3, flush=True)
time.sleep(30)
"""


def test_ctrl_c_prints_no_traceback_of_the_sampler() -> None:
    """A terminal sends Ctrl-C to the whole process group: the sampler must not notice."""
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as run:
        assert run.stdout
        sampler = int(run.stdout.readline())
        os.killpg(run.pid, signal.SIGINT)
        assert run.stdout.readline() == "interrupted\n"
        assert run.stdout.readline() == "True\n", "the sampler has continued"
        time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=20)
    assert errors.count("Traceback") == 1, errors
    assert errors.endswith("KeyboardInterrupt\n")
    assert "sampler" not in errors
    deadline = time.monotonic() + 5
    while _runs(sampler):
        assert time.monotonic() < deadline, "the sampler outlives its process"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """A dead process stays in /proc until process 1 has asked for its status, which may take seconds."""
    try:
        return proc.state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
