"""``lowtide watch PID``: live in a terminal, plain lines when piped."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lowtide._memory.profile import live, profiler

LOWTIDE = [sys.executable, "-c", "from lowtide.cli import main; main()"]
OWN = str(os.getpid())
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
    assert printed.splitlines()[-1].startswith(("bounded: ", "grows", "unclear: "))


def test_missing_process_exits_with_a_message() -> None:
    done = watch(str(2**22 + 1))
    assert done.returncode == 1
    assert done.stderr.startswith("lowtide: /proc/4194305: there is no process 4194305")


def test_process_of_another_user_exits_with_a_message(busy: subprocess.Popen[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    script = (
        # Imported while it still may read them.
        "import lowtide.cli.watch, lowtide._memory.profile.live, lowtide._memory.profile.targets, os\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\nfrom lowtide.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "watch", str(busy.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"/proc/{busy.pid}: process {busy.pid} belongs to " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["1", "2"], ["1", "--every", "0"]])
def test_invalid_arguments_exit_with_2(words: list[str]) -> None:
    assert watch(*words).returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "no process is called ''; list"),
        (["no-such-program"], "no process is called no-such-program; list running processes with `ps -e`"),
        (["/no/such/group"], "/no/such/group: no such cgroup; list them with `ls /"),
        (["/tmp"], "/tmp: a folder without a memory cgroup; "),
        ([OWN, "--openmetrics", "70000"], "70000: not a port (expected 0 to 65535)"),
        ([OWN, "--openmetrics", "/no/such/x.prom"], "/no/such/x.prom: no such file or directory"),
    ],
)
def test_target_that_does_not_exist_exits_with_a_message(words: list[str], message: str) -> None:
    done = watch(*words)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_process_is_watched_by_its_name(tmp_path: Path) -> None:
    script = tmp_path / "train-by-name.py"
    script.write_text(BUSY)
    with subprocess.Popen([sys.executable, str(script)], stdout=-1, text=True) as child:
        assert child.stdout
        child.stdout.readline()
        try:
            first = watch("train-by-name.py", "--for", "0.6", "--every", "0.3")
            assert first.returncode == 0, first.stderr
            assert len(first.stdout.splitlines()) >= 3
            with subprocess.Popen([sys.executable, str(script)], stdout=-1) as other:
                assert other.stdout
                other.stdout.readline()
                done = watch("train-by-name.py", "--for", "0.3")
                other.kill()
        finally:
            child.kill()
    assert done.returncode == 1
    assert "2 processes are called train-by-name.py: " in done.stderr
    assert f"{child.pid} (" in done.stderr
    assert f"{other.pid} (" in done.stderr


def test_process_that_calls_exec_is_watched_to_the_end(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 0.7; exec sleep 1.2"]) as child:
        done = watch(str(child.pid), "--every", "0.2")
    assert done.returncode == 0
    assert float(done.stdout.splitlines()[-2].split("\t")[0]) > 0.6, "beyond the change"


def test_json_lines_have_the_gauges_and_end_with_the_verdict(busy: subprocess.Popen[str]) -> None:
    done = watch(str(busy.pid), "--every", "0.2", "--for", "1", "--jsonl")
    assert done.returncode == 0, done.stderr
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert len(lines) >= 2
    for line in lines:
        assert line["memory"] == pytest.approx(line["heap"] + line["mapped"] + line["shared"], abs=3)
        assert line["memory_peak"] >= line["memory"]
        assert line["container_peak"] is None or line["container_peak"] > 0
    assert lines[-1]["heap"] > lines[0]["heap"]
    assert last["verdict"].startswith(("bounded: ", "grows", "unclear: "))
    assert last["events"] == []


def test_metrics_are_served_on_localhost_only(busy: subprocess.Popen[str]) -> None:
    command = [*LOWTIDE, "watch", str(busy.pid), "--every", "0.1", "--openmetrics", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=-1, text=True) as run:
        assert run.stderr
        line = run.stderr.readline()
        match = re.fullmatch(r"metrics: (http://127\.0\.0\.1:(\d+)/metrics)\n", line)
        assert match, line
        deadline = time.monotonic() + 20
        while True:
            with urllib.request.urlopen(match[1]) as answer:
                kind, text = answer.headers["Content-Type"], answer.read().decode()
            if "lowtide_heap_bytes{" in text or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(match[1] + "/other")
        taken = watch(str(busy.pid), "--openmetrics", match[2])
        run.send_signal(signal.SIGINT)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["lowtide_heap_bytes"].samples
    assert sample.labels == {"target": str(busy.pid)}
    assert sample.value > 2**20
    assert families["lowtide_read_bytes"].type == "counter"
    assert taken.returncode == 1
    assert taken.stderr.startswith(f"lowtide: 127.0.0.1:{match[2]}: address already in use; pass another")


def test_metrics_file_is_complete(busy: subprocess.Popen[str], tmp_path: Path) -> None:
    path = tmp_path / "lowtide.prom"
    done = watch(str(busy.pid), "--every", "0.1", "--for", "0.6", "--openmetrics", str(path))
    assert done.returncode == 0, done.stderr
    names = {family.name for family in text_string_to_metric_families(path.read_text())}
    assert {"lowtide_heap_bytes", "lowtide_memory_peak_bytes", "lowtide_processes"} <= names
    assert os.listdir(tmp_path) == ["lowtide.prom"]


def test_invalid_budget_exits_with_a_message(busy: subprocess.Popen[str]) -> None:
    done = watch(str(busy.pid), "--budget", "12 bananas")
    assert done.returncode == 2, "as for profile"
    assert "Invalid value for '--budget': size '12 bananas'" in done.stderr


def test_closed_pipe_ends_the_watch(busy: subprocess.Popen[str]) -> None:
    line = f"{shlex.join([*LOWTIDE, 'watch', str(busy.pid), '--every', '0.1'])} | head -n 2"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    assert len(done.stdout.splitlines()) == 2
    assert "Traceback" not in done.stderr


def test_live_picture_renders_at_any_width(busy: subprocess.Popen[str]) -> None:
    watched = profiler.attach(busy.pid)
    watched.look()
    for width in (20, 44, 80, 200):
        assert live.picture(watched, width) is not None
