"""Verdicts on real programs: growing ones and bounded ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lowtide._memory import proc
from lowtide._memory.profile import command as commands
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
def test_walk_through_memmap_grows_by_file_size(gib: Path, cold: bool) -> None:
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
    assert verdict.state == "bounded", verdict.line
    # On a slow device it reads ahead as far as the default budget of 64 MiB allows.
    assert verdict.peak - verdict.base < 96 * MIB


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_walk_through_lowtide_is_bounded(gib: Path, cold: bool) -> None:
    if cold:
        drop_page_cache(gib)
    _, verdict = profile(programs.WALK_LOWTIDE, gib)
    assert verdict.state == "bounded", verdict.line
    assert 0.95 * GIB <= verdict.read <= 1.1 * GIB
    assert verdict.peak - verdict.base < 32 * MIB
    if cold:
        assert "page cache +" in verdict.line, "it is reported, and does not count as growth"


def test_heap_leak_of_one_tenth_of_reads_grows(gib: Path) -> None:
    _, verdict = profile(programs.LEAK, gib)
    assert verdict.grows
    assert verdict.cause == "heap"
    assert verdict.line.endswith(" MiB per GiB read, heap")
    assert verdict.per_read is not None
    assert 0.09 <= verdict.per_read <= 0.11


def test_mapping_shared_by_four_workers_counts_once(gib: Path) -> None:
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


def test_file_read_in_one_call_and_kept_counts_fully(gib: Path) -> None:
    """Loaded and then level, or read to the end of the run: it depends on how fast the device is."""
    drop_page_cache(gib)
    _, verdict = profile(programs.READ_AT_ONCE, gib)
    assert "flat over" not in verdict.line
    assert verdict.peak - verdict.base > 0.9 * GIB
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
    assert done.stderr.splitlines()[-1].startswith("grows")
    assert done.stderr.splitlines()[-1].endswith("page cache")
    looks = json.loads(target.read_text())["container"]
    assert looks[-1]["working_set"] - looks[0]["working_set"] > 900 * MIB


def test_reads_of_ended_children_count(small: Path) -> None:
    # A child that only reads has ended before it is seen, where the file is cached.
    body = "for _ in range(6): subprocess.run(['sh', '-c', 'cat \"$0\" > /dev/null; sleep 0.1', path])\n"
    recording, verdict = profile("import subprocess\n" + body, small)
    assert 6 * 96 * MIB <= verdict.read < 6 * 96 * MIB + 32 * MIB
    assert not verdict.grows
    assert recording.most_processes >= 2


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


@pytest.mark.parametrize("late", [False, True])
def test_orphan_stays_in_process_tree(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    start = commands.start

    def start_and_wait(*arguments: Any) -> int:
        pid = start(*arguments)
        time.sleep(0.3 if late else 0)  # as on a busy machine: the orphan is here before the first look
        return pid

    monkeypatch.setattr(commands, "start", start_and_wait)
    inner = "import time; x = bytearray(64 * 2**20); time.sleep(0.8)"
    script = f"sh -c '{sys.executable} -c \"{inner}\" &'; sleep 1.2"
    recording = profiler.record(["sh", "-c", script])
    assert judge(recording).peak > 64 * MIB


def test_processes_left_running_are_listed() -> None:
    recording = profiler.record(["sh", "-c", "sleep 5 & echo $!"])
    line = next(line for line in recording.blind if "left running" in line)
    pid = int(line.rsplit(" ", 1)[1])
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_peak_between_samples_comes_from_kernel() -> None:
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


def test_command_that_ends_immediately_is_unclear() -> None:
    recording = profiler.record(["true"])
    verdict = judge(recording)
    assert recording.status == 0
    assert verdict.line.startswith("unclear: too short to see a trend")


def test_killed_command_is_recorded() -> None:
    recording = profiler.record(["sh", "-c", "sleep 0.2; kill -9 $$"])
    assert recording.status == -9
    assert recording.points


def test_growing_heap_without_reads_grows_over_time() -> None:
    body = "import time\nkept = []\nfor _ in range(85): kept.append(b'x' * 2**21); time.sleep(0.03)\n"
    recording = profiler.record([sys.executable, "-c", body])
    verdict = judge(recording)
    assert verdict.grows
    assert verdict.per_read is None
    assert verdict.line.endswith("MiB per second, heap")


def test_buffers_filled_once_are_bounded(small: Path) -> None:
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
def test_attaching_to_invalid_pid_raises(pid: int, message: str) -> None:
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


def test_reused_pid_is_another_process() -> None:
    """The folder of the first one is dead, whatever has its number now."""
    with subprocess.Popen(["sleep", "60"]) as first:
        tree = Tree(first.pid, pinned=True)
        assert proc.status(tree.at(first.pid)).rss
        first.kill()
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    if os.geteuid() != 0 or not last_pid.exists():
        pytest.skip("needs root, to choose the next process number")
    for _ in range(200):
        last_pid.write_text(str(first.pid - 1))
        with subprocess.Popen(["sleep", "60"]) as second:
            if second.pid == first.pid:
                assert proc.status(first.pid).rss, "the number is in use again"
                with pytest.raises(proc.GONE):
                    proc.status(tree.at(first.pid))
                observer = Observer(tree)
                assert observer.point() is None
                second.kill()
                break
            second.kill()
    else:
        pytest.skip("the number was never given again")
    tree.close()


def test_program_that_changes_its_name_is_still_recorded() -> None:
    """Brackets, spaces and newlines in a name are not fields of its status."""
    body = (
        "import ctypes, time\nctypes.CDLL(None).prctl(15, b') R 1 (x\\n', 0, 0, 0)\nkept = []\n"
        "for _ in range(85): kept.append(b'x' * 2**21); time.sleep(0.03)\n"
    )
    recording = profiler.record([sys.executable, "-c", body])
    assert judge(recording).grows
    assert recording.points[-1].minor > 1000


def test_process_of_another_user_counts_with_its_full_rss() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    printed = output("""
        import os, subprocess, sys
        from lowtide._io import pagecache  # while it may still be read
        from lowtide._memory.profile.observer import Observer
        from lowtide._memory.tree import Tree

        body = "import time; x = bytearray(b'x') * 2**25; print(1, flush=True); input()"
        child = subprocess.Popen([sys.executable, "-c", body], stdin=-1, stdout=-1)
        child.stdout.readline()
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        observer = Observer(Tree(os.getpid(), pinned=True))
        observer.discover()
        point = observer.point()
        shares, detail = observer.shares(point), observer.detail()
        print(point.processes, shares.proportional[0] > 2**25, detail.data_size, len(observer.tree.denied))
        child.communicate(b"\\n")
    """)
    assert printed == "2 True None 3\n", (
        "its shares, mappings and bytes read are unknown, and that is reported"
    )


def test_deleted_files_and_files_of_another_namespace_have_sizes(small: Path, tmp_path: Path) -> None:
    body = (
        "import mmap, os, sys\nname = sys.argv[2] + '/deleted'\n"
        "with open(name, 'wb') as f: f.write(bytes(2**22))\n"
        "kept = [mmap.mmap(os.open(p, os.O_RDONLY), 0, prot=mmap.PROT_READ) for p in (sys.argv[1], name)]\n"
        "os.unlink(name); [m.read() for m in kept]; print('ready', flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", body, str(small), str(tmp_path)], stdin=-1, stdout=-1, text=True
    ) as child:
        assert child.stdout
        child.stdout.readline()
        detail = Observer(Tree(child.pid, pinned=True)).detail()
        child.communicate("\n")
    assert detail is not None
    assert detail.mapped[str(small)] == 96 * MIB
    assert detail.mapped[f"{tmp_path}/deleted (deleted)"] == 4 * MIB
    assert detail.sizes[str(small)] == 96 * MIB
    assert detail.data_size is not None
    assert 100 * MIB <= detail.data_size < 101 * MIB


def test_memory_files_count_whether_mapped_or_not(tmp_path: Path) -> None:
    body = (
        "import mmap, os\nname = '/dev/shm/lowtide-test-%d' % os.getpid()\n"
        "kept = open(name, 'w+b'); kept.write(bytes(3 * 2**20)); kept.flush()\n"
        "closed = open(name + '-b', 'wb'); closed.write(bytes(2**20)); closed.close()\n"
        "nameless = os.memfd_create('x'); os.write(nameless, bytes(2**21))\n"
        "area = mmap.mmap(kept.fileno(), 0); area.read()\n"
        "print('ready', flush=True); input(); os.unlink(name); os.unlink(name + '-b')\n"
        "print('gone', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", body], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout
        assert child.stdin
        child.stdout.readline()
        observer = Observer(Tree(child.pid, pinned=True))
        before = observer.detail()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = observer.detail()
        child.communicate("\n")
    assert before is not None
    assert after is not None
    name = f"/dev/shm/lowtide-test-{child.pid}"
    assert before.memory_files[name] == 3 * MIB == before.tmpfs
    assert before.memory_files["/memfd:x"] == 2 * MIB
    assert before.mapped.get(name) is None, "shared memory is not a mapped file"
    assert after.memory_files[name] == 3 * MIB, "it was deleted, and is open"


def test_memory_of_profiler_is_bounded_over_hours() -> None:
    """Five hours of looks in a moment: workers that come and go, files that are mapped and deleted."""
    printed = output("""
        import os, resource, sys
        from lowtide._memory import proc
        from lowtide._memory.profile import profiler
        from lowtide._memory.profile.recording import Charges, Detail, Point, Recording, Shares
        from lowtide._memory.tree import Tree

        recording = Recording(["x"], os.getpid(), 0.0, 0.025)
        def hour(number):
            for index in range(144_000):
                time = number * 3600 + index * 0.025
                recording.add(Point(time, index // 100, 4, index, index, 0, index, index, 0, 0, index))
                if index % 40 == 0:
                    recording.shares.add(Shares(time, index // 100, index, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)))
                    recording.charges.add(Charges(time, index, index, index, 0, 0, 0))
                    files = {f"/tmp/{number}-{index}-{file}": file for file in range(64)}
                    recording.details.add(
                        Detail(time, 0, (0, 0, 0), (0, 0, 0), files, 0, 0, 0, 0, {}, 0, None, None)
                    )
            return proc.status().rss

        first = [hour(number) for number in range(2)][-1]
        last = [hour(number) for number in range(2, 5)][-1]
        tree = Tree(os.getpid())
        proc.children = lambda pid: [] if pid != tree.root else [tree.next]
        for tree.next in range(10**6, 10**6 + 50_000):
            tree.discover()
        print(last - first < 8 * 2**20, len(tree.parents) < 2000, len(recording.points) <= 4096)
    """)
    assert printed == "True True True\n"


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
