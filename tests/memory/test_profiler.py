"""Verdicts on real programs: growing ones and bounded ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide._memory import proc
from lowtide._memory.profile import profiler
from lowtide._memory.profile.observer import Observer
from lowtide._memory.profile.recording import Recording
from lowtide._memory.profile.verdict import Verdict, judge
from lowtide._memory.tree import Tree
from lowtide.errors import AccessError, NotFoundError, ProcessError, UnsupportedError
from lowtide.memory import drop_page_cache
from tests.support import programs
from tests.support.process import output

MIB, GIB = 2**20, 2**30


def profile(body: str, path: Path) -> tuple[Recording, Verdict]:
    recording = profiler.record(programs.program(body, str(path)))
    assert recording.status == 0
    return recording, judge(recording)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_walk_through_a_memmap_grows_by_the_file(gib: Path, cold: bool) -> None:
    if cold:
        drop_page_cache(gib)
    _, verdict = profile(programs.WALK_MEMMAP, gib)
    assert verdict.grows
    assert verdict.line.startswith("grows: ")
    assert verdict.line.endswith("GiB per GiB read, mapped: train.bin")
    assert verdict.per_read is not None
    assert 0.9 <= verdict.per_read <= 1.1
    assert GIB < verdict.peak < 1.15 * GIB


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_shuffled_walk_through_lowtide_is_bounded(gib: Path, cold: bool) -> None:
    """Its reads go through io_submit, which the kernel's count of bytes read leaves out."""
    if cold:
        drop_page_cache(gib)
    _, verdict = profile(programs.SHUFFLED_LOWTIDE, gib)
    assert not verdict.grows
    assert verdict.line.startswith("bounded: peak ")
    assert verdict.peak < 64 * MIB, "the interpreter, NumPy and three chunks of 4 MiB"


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_walk_through_lowtide_is_bounded(gib: Path, cold: bool) -> None:
    if cold:
        drop_page_cache(gib)
    _, verdict = profile(programs.WALK_LOWTIDE, gib)
    assert not verdict.grows
    assert verdict.line.startswith("bounded: peak ")
    assert "MiB per GiB read" in verdict.line
    # On a busy machine few looks are taken, and some of them see one chunk fewer.
    assert (verdict.per_read or 0.0) * GIB < 8 * MIB
    assert 0.95 * GIB <= verdict.read <= 1.1 * GIB
    assert verdict.peak - verdict.base < 32 * MIB
    if cold:
        assert "page cache +" in verdict.line, "it is reported, and does not count as growth"


def test_heap_leak_of_a_tenth_of_the_reads_grows(gib: Path) -> None:
    _, verdict = profile(programs.LEAK, gib)
    assert verdict.grows
    assert verdict.cause == "heap"
    assert verdict.line.endswith(" MiB per GiB read, heap")
    assert verdict.per_read is not None
    assert 0.09 <= verdict.per_read <= 0.11


def test_four_workers_on_one_map_are_not_counted_four_times(gib: Path) -> None:
    recording, verdict = profile(programs.FOUR_WORKERS, gib)
    assert recording.most_processes == 5
    assert 0.95 * GIB < verdict.peak < 1.25 * GIB
    # Each of them read the whole file, and each read counts.
    assert verdict.read > 2.5 * GIB


def test_new_map_for_each_chunk_is_bounded(gib: Path) -> None:
    drop_page_cache(gib)
    _, verdict = profile(programs.REMAP, gib)
    assert not verdict.grows
    assert verdict.read > 0.8 * GIB, "what was unmapped between two looks is known from the device"


def test_file_read_in_one_call_and_kept_grows(gib: Path) -> None:
    drop_page_cache(gib)
    _, verdict = profile(programs.READ_AT_ONCE, gib)
    assert verdict.grows
    assert verdict.cause == "heap"
    assert verdict.read < 1.1 * GIB, "the device's bytes and the call's bytes are the same bytes"


def test_active_page_cache_under_a_limit_is_growth(limited: object, tmp_path: Path, gib: Path) -> None:
    """A pod is evicted for active page cache; without a limit nobody minds it."""
    drop_page_cache(gib)
    twice = (
        "fd = os.open(path, os.O_RDONLY)\nbuffer = bytearray(1 << 22)\n"
        "for start in range(0, size, 1 << 22):\n"
        "    for _ in range(3): os.preadv(fd, [buffer], start)\n"
        "    time.sleep(0.004)\n"
    )
    target = tmp_path / "p.json"
    command = [
        sys.executable,
        "-c",
        "from lowtide.cli import main; main()",
        "profile",
        "--save",
        str(target),
        "--",
    ]
    with limited("4 GiB") as group:  # type: ignore[operator]
        done = group.run([*command, *programs.program(twice, str(gib))])
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("grows: ")
    assert done.stderr.splitlines()[-1].endswith("page cache")


def test_reads_of_ended_children_count(small: Path) -> None:
    body = "for _ in range(6): subprocess.run(['cat', path], stdout=subprocess.DEVNULL)\n"
    recording, verdict = profile("import subprocess\n" + body, small)
    assert 6 * 96 * MIB <= verdict.read < 6 * 96 * MIB + 32 * MIB
    assert not verdict.grows
    assert recording.most_processes == 2


def test_reads_of_children_without_wait_count(small: Path) -> None:
    body = (
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for _ in range(4):\n"
        "    if not os.fork():\n"
        "        open(path, 'rb', buffering=0).read()\n"
        "        time.sleep(0.15)\n"
        "        os._exit(0)\n"
        "    time.sleep(0.3)\n"
    )
    _, verdict = profile(body, small)
    assert 4 * 96 * MIB <= verdict.read < 4 * 96 * MIB + 32 * MIB


def test_orphan_stays_in_the_tree() -> None:
    inner = "import time; x = bytearray(64 * 2**20); time.sleep(0.4)"
    script = f"sh -c '{sys.executable} -c \"{inner}\" &'; sleep 0.8"
    recording = profiler.record(["sh", "-c", script])
    assert judge(recording).peak > 64 * MIB


def test_processes_left_running_are_listed() -> None:
    recording = profiler.record(["sh", "-c", "sleep 5 & echo $!"])
    line = next(line for line in recording.blind if "left running" in line)
    pid = int(line.rsplit(" ", 1)[1])
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_peak_between_looks_comes_from_the_kernel() -> None:
    """In a separate process: the kernel keeps one peak for all that a process ever started."""
    printed = output("""
        import sys
        from lowtide._memory.profile import profiler
        from lowtide._memory.profile.verdict import judge

        profiler.Profiler.look = lambda _: True
        recording = profiler.record([sys.executable, "-c", "x = bytearray(256 * 2**20); x = None"])
        print(len(recording.points), judge(recording).peak)
    """)
    points, peak = map(int, printed.split())
    assert points == 0
    assert 256 * MIB < peak < 320 * MIB


def test_command_that_ends_at_once_has_a_verdict() -> None:
    recording = profiler.record(["true"])
    verdict = judge(recording)
    assert recording.status == 0
    assert verdict.line.startswith("bounded: ")


def test_killed_command_is_recorded() -> None:
    recording = profiler.record(["sh", "-c", "sleep 0.2; kill -9 $$"])
    assert recording.status == -9
    assert recording.points


def test_growing_heap_without_reads_grows_over_time() -> None:
    body = "import time\nkept = []\nfor _ in range(60): kept.append(b'x' * 2**21); time.sleep(0.03)\n"
    recording = profiler.record([sys.executable, "-c", body])
    verdict = judge(recording)
    assert verdict.grows
    assert verdict.per_read is None
    assert verdict.line.endswith("MiB per second, heap")


def test_buffers_that_are_filled_once_are_bounded(small: Path) -> None:
    body = (
        "ring = [np.ones(1 << 23, 'u1') for _ in range(8)]\nfd = os.open(path, os.O_RDONLY)\n"
        "for turn in range(6):\n"
        "    for start in range(0, size, 1 << 23):\n"
        "        os.preadv(fd, [memoryview(ring[start // (1 << 23) % 8])], start); time.sleep(0.003)\n"
    )
    _, verdict = profile(body, small)
    assert not verdict.grows
    assert 60 * MIB < verdict.peak - verdict.base < 90 * MIB


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        (["no-such-command-anywhere"], NotFoundError, "no such command"),
        (["/etc/passwd"], AccessError, "not an executable"),
        (["/tmp"], AccessError, "/tmp"),
    ],
)
def test_command_that_cannot_run_raises(command: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        profiler.record(command)


def test_missing_proc_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", str(tmp_path))
    with pytest.raises(UnsupportedError, match="does not have"):
        profiler.record(["true"])
    with pytest.raises(UnsupportedError, match="does not have"):
        profiler.attach(1)


def test_attaching_counts_later_reads_only(small: Path) -> None:
    script = (
        "import sys, os\nf = open(sys.argv[1], 'rb', buffering=0); f.read(); f.seek(0)\n"
        "print('ready', flush=True); input(); f.read(50 * 2**20); print('read', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(small)], stdin=-1, stdout=-1, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        child.stdout.readline()
        watched = profiler.attach(child.pid)
        watched.look()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        watched.look()
        assert 50 * MIB <= watched.recording.series().read[-1] < 52 * MIB
        child.communicate("\n")
        assert not watched.look(), "the process is gone"


@pytest.mark.parametrize(
    ("pid", "message"),
    [(2**22 + 1, "no process"), (2, "kernel thread")],
    ids=["none", "kernel thread"],
)
def test_attaching_to_no_process_raises(pid: int, message: str) -> None:
    if pid == 2 and not os.path.exists("/proc/2"):
        pytest.skip("a container shows no kernel threads")
    with pytest.raises(ProcessError, match=message):
        profiler.attach(pid)


def test_attaching_to_a_zombie_raises() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    try:
        while proc.state(child) != "Z":
            time.sleep(0.01)
        with pytest.raises(ProcessError, match="has ended"):
            profiler.attach(child)
    finally:
        os.waitpid(child, 0)


def test_recording_stays_bounded() -> None:
    recording = Recording(["x"], 1, 0.0, 0.01)
    point = Observer(Tree(os.getpid())).point()
    assert point is not None
    for index in range(30_000):
        anon = 10**9 if index == 777 else index
        recording.add(point._replace(time=index / 100, anon=anon))
    assert len(recording.points) <= 4096
    assert max(entry.anon for entry in recording.points) == 10**9, "a peak outlives the thinning"
    assert recording.points[-1].time == 299.99
    assert [p.time for p in recording.points] == sorted(p.time for p in recording.points)
