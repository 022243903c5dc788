"""``lowtide watch PID``: live in a terminal, plain lines when piped."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lowtide._memory.profile import live, profiler

LOWTIDE = [sys.executable, "-c", "from lowtide.cli import main; main()"]
BUSY = (
    "import time\nkept = []\nprint('ready', flush=True)\n"
    "for _ in range(500): kept.append(b'x' * 2**19); time.sleep(0.01)"
)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=-1, text=True) as child:
        assert child.stdout
        child.stdout.readline()
        yield child
        child.kill()


def watch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOWTIDE, "watch", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_pipe_gets_plain_lines_and_the_verdict(busy: subprocess.Popen[str]) -> None:
    done = watch(str(busy.pid), "--every", "0.2", "--for", "2.5")
    assert done.returncode == 0, done.stderr
    head, *lines, verdict = done.stdout.splitlines()
    assert head.split("\t") == ["seconds", "heap", "mapped", "page cache", "read", "slope"]
    assert len(lines) >= 6
    assert all(re.match(r"\d+\.\d\t[\d.]+ MiB\t", line) for line in lines)
    assert "\x1b" not in done.stdout
    assert verdict.startswith("grows: ")
    assert verdict.endswith("per second, heap")


def test_watch_ends_with_the_process() -> None:
    with subprocess.Popen(["sleep", "5"]) as child:
        done = watch(str(child.pid), "--every", "0.2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("bounded: ")


def test_terminal_gets_bars(busy: subprocess.Popen[str]) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    command = [*LOWTIDE, "watch", str(busy.pid), "--for", "1", "--budget", "64MiB"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as run:
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            text += part
    os.close(ours)
    shown = text.decode()
    assert run.returncode == 0, shown
    for word in ("heap", "mapped files", "page cache", "of 64.0 MiB, the budget", "curve", "slope", "█"):
        assert word in shown, word


def test_ctrl_c_prints_the_verdict(busy: subprocess.Popen[str]) -> None:
    with subprocess.Popen([*LOWTIDE, "watch", str(busy.pid)], stdout=-1, stderr=-1, text=True) as run:
        assert run.stdout
        run.stdout.readline()
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        printed, errors = run.communicate(timeout=20)
    assert run.returncode == 0, errors
    assert printed.splitlines()[-1].startswith(("bounded: ", "grows: "))


def test_missing_process_exits_with_a_message() -> None:
    done = watch(str(2**22 + 1))
    assert done.returncode == 1
    assert done.stderr.startswith("lowtide: /proc/4194305: there is no process 4194305")


def test_process_of_another_user_exits_with_a_message(busy: subprocess.Popen[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    script = (
        # Imported while it still may read them.
        "import lowtide.cli.watch, lowtide._memory.profile.live, lowtide._memory.profile.profiler, os\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\nfrom lowtide.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "watch", str(busy.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"/proc/{busy.pid}: process {busy.pid} belongs to " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["x"], [], ["1", "--every", "0"]])
def test_invalid_arguments_exit_with_2(words: list[str]) -> None:
    assert watch(*words).returncode == 2


def test_invalid_budget_exits_with_a_message(busy: subprocess.Popen[str]) -> None:
    done = watch(str(busy.pid), "--budget", "12 bananas")
    assert done.returncode == 1
    assert "12 bananas" in done.stderr


def test_closed_pipe_ends_the_watch(busy: subprocess.Popen[str]) -> None:
    line = f"{shlex.join([*LOWTIDE, 'watch', str(busy.pid), '--every', '0.1'])} | head -n 2"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    assert len(done.stdout.splitlines()) == 2
    assert "Traceback" not in done.stderr


def test_picture_fits_narrow_terminals(busy: subprocess.Popen[str]) -> None:
    watched = profiler.attach(busy.pid)
    watched.look()
    for width in (20, 44, 80, 200):
        assert live.picture(watched, width) is not None
