"""``lowtide profile``: its last line, its files and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import programs
from tests.support.process import output

MIB = 2**20
LOWTIDE = [sys.executable, "-c", "from lowtide.cli import main; main()"]


def profile(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*LOWTIDE, "profile", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.bin"
    path.write_bytes(os.urandom(MIB) * 256)
    return path


def test_memmap_walk_writes_every_output_file(data: Path, tmp_path: Path) -> None:
    files = {"--save": tmp_path / "a.json", "--dat": tmp_path / "a.dat", "--out": tmp_path / "a.html"}
    options = [str(word) for pair in files.items() for word in pair]
    done = profile("--budget", "64MiB", *options, "--", *programs.program(programs.WALK_MEMMAP, str(data)))
    assert done.returncode == 3
    assert done.stdout == "", "the standard output is the command's"
    *_, over, last = done.stderr.splitlines()
    assert last.startswith("grows: ")
    assert last.endswith("mapped: train.bin")
    assert over.startswith("over budget: peak 2")
    figures = json.loads(files["--save"].read_text())
    assert figures["verdict"] == last
    assert figures["grows"] is True
    assert 900 <= figures["mib_per_gib_read"] <= 1127
    assert 256 < figures["peak_mib"] < 330
    assert 0 < figures["base_mib"] < 60
    assert figures["status"] == 0
    assert figures["budget"] == 64 * MIB
    assert len(figures["samples"]) > 10
    assert figures["mappings"][0]["path"] == str(data)
    assert files["--dat"].read_text().startswith("CMDLINE ")
    assert files["--out"].stat().st_size < 2_000_000


def test_command_status_is_kept_within_budget(data: Path) -> None:
    done = profile(
        "--budget", "1GiB", "--", *programs.program(programs.WALK_PREADV + "sys.exit(7)", str(data))
    )
    assert done.returncode == 7
    assert done.stderr.splitlines()[-1].startswith("bounded: peak ")


LEAK = "import time\nkept = []\nfor _ in range(85): kept.append(b'x' * 2**21); time.sleep(0.03)\n"


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        (["--fail-on-growth"], LEAK, 4),
        ([], LEAK, 0),
        (["--fail-on-growth"], "import time; time.sleep(0.8)", 0),
        (["--fail-on-growth", "--budget", "32MiB"], LEAK, 3),
        (["--fail-on-growth"], f"{LEAK}raise SystemExit(7)", 7),
        (["--budget", "32MiB"], f"{LEAK}raise SystemExit(7)", 7),
    ],
    ids=["grows", "not asked", "bounded", "over budget", "failed", "failed over budget"],
)
def test_fail_on_growth_sets_exit_status(options: list[str], code: str, status: int) -> None:
    done = profile(*options, "--", sys.executable, "-c", code)
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1].startswith("grows: " if code.startswith(LEAK) else "bounded: ")


@pytest.mark.parametrize(
    ("options", "own", "status"),
    [
        ([], 3, 3),
        ([], 4, 4),
        (["--budget", "1GiB"], 3, 1),
        (["--budget", "1GiB"], 4, 4),
        (["--fail-on-growth"], 4, 1),
        (["--fail-on-growth"], 3, 3),
    ],
)
def test_command_status_never_collides_with_profile_status(options: list[str], own: int, status: int) -> None:
    done = profile(*options, "--", "sh", "-c", f"exit {own}")
    assert done.returncode == status
    reported = f"the command ended with status {own}; the status is 1, since {own} has a meaning here"
    assert (reported in done.stderr) is (status != own)


def test_command_keeps_its_input_output_and_options() -> None:
    done = profile("--", "sh", "-c", 'cat; echo "$1"', "sh", "--budget", input="from outside\n")
    assert done.returncode == 0
    assert done.stdout == "from outside\n--budget\n"
    without = profile("echo", "--json", "x")
    assert without.stdout == "--json x\n", "what follows the command is the command's"


def test_command_that_ends_at_once_has_a_verdict() -> None:
    done = profile("--", "true")
    assert done.returncode == 0
    assert done.stderr.startswith("unclear: too short to see a trend")
    assert profile("--", "false").returncode == 1


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--", "no-such-command-anywhere"], 127, "no-such-command-anywhere: no such command"),
        (["--", "/etc/passwd"], 126, "not an executable file"),
        (
            ["--out", "/no/such/folder/x.html", "--", "true"],
            125,
            "/no/such/folder/x.html: no such file or directory; create its folder first",
        ),
        (["--save", "/proc/x.json", "--", "true"], 125, "/proc/x.json: no such file or directory"),
        (["--save", "-", "--", "true"], 2, "pass a file instead of -"),
        (["--budget", "12 bananas", "--", "true"], 2, "12 bananas"),
        (["--budget", "0", "--", "true"], 2, "budget of 0"),
        (["--interval", "0", "--", "true"], 2, "interval"),
        ([], 2, "COMMAND"),
    ],
)
def test_invalid_input_exits_with_a_message(words: list[str], status: int, message: str) -> None:
    done = profile(*words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_unwritable_file_exits_before_the_command_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    done = profile("--out", str(tmp_path), "--", "touch", str(marker))
    assert done.returncode == 2  # a folder
    done = profile("--dat", str(tmp_path / "none" / "x.dat"), "--", "touch", str(marker))
    assert done.returncode == 125
    assert not marker.exists()


def test_json_with_file_warns_of_deprecation(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = profile("--json", str(out), "--", "true")
    assert done.returncode == 0
    first, *_, last = done.stderr.splitlines()
    assert first == "lowtide: --json FILE is deprecated; use --save FILE"
    assert json.loads(out.read_text())["verdict"] == last


def test_full_disk_keeps_the_verdict() -> None:
    done = profile("--save", "/dev/full", "--", "true")
    assert done.returncode == 125
    assert "no space left" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("unclear: ")


def test_killed_command_has_a_report(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = profile("--save", str(out), "--", "sh", "-c", "sleep 0.1; kill -KILL $$")
    assert done.returncode == 128 + 9
    assert "ended by SIGKILL" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(("bounded: ", "unclear: "))
    assert json.loads(out.read_text())["status"] == -9


def test_bus_error_message_lists_usual_causes(tmp_path: Path) -> None:
    script = (
        "import mmap\nwith open('short', 'wb+') as file:\n"
        "    file.truncate(8192); m = mmap.mmap(file.fileno(), 8192); file.truncate(0); m[5000]"
    )
    done = profile("--", sys.executable, "-c", script, cwd=tmp_path)
    assert done.returncode == 135
    expected = "the command was ended by SIGBUS: a full /dev/shm, or a mapped file that was truncated"
    assert expected in done.stderr.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_reaches_the_command_and_keeps_the_report(number: int, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    command = [*LOWTIDE, "profile", "--save", str(out), "--", "sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as run:
        assert run.stdout
        child = int(run.stdout.readline())
        time.sleep(0.8)  # long enough for a verdict
        os.kill(run.pid, number)
        _, printed = run.communicate(timeout=20)
    assert run.returncode == 128 + number
    assert printed.splitlines()[-1].startswith("bounded: ")
    assert json.loads(out.read_text())["status"] == -number
    assert not os.path.exists(f"/proc/{child}")


def test_ctrl_c_from_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal signals both; a command that cleans up must not be interrupted a second time."""
    script = (
        "import time\ntry: print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.8); print('cleaned up', flush=True); raise SystemExit(5)\n"
    )
    command = [*LOWTIDE, "profile", "--", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "ready\n"
        os.killpg(run.pid, signal.SIGINT)
        printed, errors = run.communicate(timeout=20)
    assert printed == "cleaned up\n"
    assert run.returncode == 5
    assert errors.splitlines()[-1].startswith("bounded: ")


def test_missing_proc_exits_with_a_message(tmp_path: Path) -> None:
    patched = f"from lowtide._memory import proc; proc.ROOT = {str(tmp_path)!r}; "
    script = patched + "from lowtide.cli import main; main()"
    for words in (["profile", "--", "true"], ["watch", "1"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == (125 if words[0] == "profile" else 1)
        assert "which this system does not have" in done.stderr
        assert "Traceback" not in done.stderr


def test_profiler_does_not_import_numpy() -> None:
    """The kernel's peak of the command starts with the memory of the profiler: NumPy comes after it."""
    code = "import sys, lowtide.cli.profile, lowtide._memory.profile.profiler; print('numpy' in sys.modules)"
    assert output(code) == "False\n"
