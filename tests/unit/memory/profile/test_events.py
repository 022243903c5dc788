"""Kills and throttling, on trees of version 2 as Linux 6.1 shows them; tests/memory has real kills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide._memory import cgroup, proc
from lowtide._memory.profile.events import EventLog
from tests.support.trees import FakeTree

MIB = 2**20
BEFORE = "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\noom_group_kill 0\n"
STAT = f"anon {118 * MIB}\nfile {5 * MIB}\nshmem {MIB}\nkernel {2 * MIB}\nsock 0"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTree]:
    """A container of 128 MiB in a pod of 256 MiB. One process was killed before; the clock is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    tree = FakeTree(tmp_path, monkeypatch)
    tree.process("0::/pod/c\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    tree.group("", stat="anon 1")
    tree.group("pod", max=256 * MIB, high="max", current=130 * MIB, stat="anon 1", events=BEFORE)
    tree.group("pod/c", max=128 * MIB, high="max", current=120 * MIB, stat=STAT, events=BEFORE)
    for pid, words in ((123, "/usr/bin/python\0train.py\0"), (124, "worker\0")):
        (tmp_path / "proc" / str(pid)).mkdir()
        (tmp_path / "proc" / str(pid) / "cmdline").write_text(words)
    yield tree
    monkeypatch.undo()
    time.tzset()


def log(tree: FakeTree) -> EventLog:
    started = EventLog(cgroup.find(), 43200.0)  # at 12:00:00
    started.look(1.0, {123: 100 * MIB, 124: 3 * MIB})
    return started


def end(tree: FakeTree, pid: int, signal: int) -> None:
    """Make a process a zombie that nobody has waited for."""
    fields = ["0"] * 50
    fields[0], fields[49] = "Z", str(signal)
    (tree.folder / "proc" / str(pid) / "stat").write_text(f"{pid} (x) {' '.join(fields)}\n")


def test_killed_process_is_reported_with_heap_and_limit(tree: FakeTree) -> None:
    seen = log(tree)
    seen.look(66.9, {123: 100 * MIB, 124: 3 * MIB})
    end(tree, 123, 9)
    end(tree, 124, 0)  # the worker ends by itself
    for path in ("pod", "pod/c"):
        tree.group(path, events="high 0\nmax 9\noom 2\noom_kill 2")
    seen.look(67.0, {})
    assert [event.text for event in seen.events] == [
        "the kernel OOM-killed process 123 (python train.py) of this container at 12:01:07: "
        "heap 118 of 128 MiB"
    ]
    assert seen.events[0].pid == 123


def test_limit_of_parent_group_is_reported(tree: FakeTree) -> None:
    seen = log(tree)
    end(tree, 124, 9)
    tree.group("pod", events="high 0\noom 2\noom_kill 2")
    tree.group("pod/c", events="high 0\noom 1\noom_kill 2")
    seen.look(1.2, {123: 100 * MIB})
    assert seen.events[0].text.endswith(f"heap 118 of 256 MiB, the limit of {tree.mount}/pod")


def test_limit_of_child_group_is_reported(tree: FakeTree) -> None:
    """The counters of the container have those of the group that a supervisor made for its worker."""
    worker = tree.group("pod/c/worker", max=96 * MIB, current=MIB, stat=STAT, events="oom 0\noom_kill 0")
    (tree.mount / "pod/c/worker/memory.events.local").write_text("oom 0\noom_kill 0\n")
    seen = log(tree)
    end(tree, 124, 9)
    for path in ("pod", "pod/c"):
        tree.group(path, events="high 0\noom 2\noom_kill 2")
    tree.group("pod/c/worker", events="oom 1\noom_kill 1")
    (tree.mount / "pod/c/worker/memory.events.local").write_text("oom 1\noom_kill 1\n")
    seen.look(1.2, {123: 100 * MIB})
    (event,) = seen.events
    assert event.text.endswith(f"heap 118 of 96 MiB, the limit of {worker}")


def test_old_figures_are_reported_with_their_age(tree: FakeTree) -> None:
    seen = log(tree)
    end(tree, 123, 9)
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.look(4.5, {124: MIB})
    assert seen.events[0].text.endswith("heap 118 of 128 MiB, at the last look 3.5 s before")


def test_kill_below_every_limit_is_attributed_to_machine(tree: FakeTree) -> None:
    seen = log(tree)
    end(tree, 123, 9)
    tree.group("pod/c", events="high 0\noom 1\noom_kill 2")
    seen.look(1.2, {124: MIB})
    assert seen.events[0].text.endswith("so the machine was out of memory")


def test_kill_in_sibling_group_is_ignored(tree: FakeTree) -> None:
    seen = log(tree)
    tree.group("pod", events="high 0\noom 2\noom_kill 2")
    seen.look(2.0, {123: MIB, 124: MIB})
    seen.finish(9.0, 123, 0)
    assert seen.events == []


def test_killed_process_outside_tree_is_reported_without_pid(tree: FakeTree) -> None:
    seen = log(tree)
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.look(2.0, {123: MIB, 124: MIB})
    assert seen.events == [], "the process may still be on its way out"
    seen.look(3.5, {123: MIB, 124: MIB})
    assert [event.pid for event in seen.events] == [None]
    assert "OOM-killed a process of this container" in seen.events[0].text


def test_shared_and_kernel_memory_that_fill_limit_are_reported(tree: FakeTree) -> None:
    tree.group("pod/c", stat=f"anon {9 * MIB}\nshmem {94 * MIB}\nkernel {20 * MIB}\nsock {2 * MIB}")
    seen = EventLog(cgroup.find(), 0.0)
    seen.look(0.0, {123: 9 * MIB})
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.finish(0.2, 123, -9)
    assert seen.events[0].text.endswith(": heap 9, shared memory and tmpfs 94, kernel memory 22 of 128 MiB")


@pytest.mark.parametrize("status", [-9, None])
def test_command_killed_at_end_is_identified(status: int | None, tree: FakeTree) -> None:
    seen = log(tree)
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.finish(2.0, 123, status)
    assert seen.events[0].pid == 123


def test_worker_killed_after_last_sample_is_identified(tree: FakeTree) -> None:
    """Its parent has waited for it and ended: there is nothing left to look at."""
    seen = log(tree)
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.finish(2.0, 123, 0)
    assert seen.events[0].pid == 124


def test_living_process_is_not_reported_as_killed(tree: FakeTree) -> None:
    seen = log(tree)
    (tree.folder / "proc/124/stat").write_text(f"124 (x) S {' '.join(['0'] * 50)}\n")
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.finish(2.0, 123, 0)
    assert seen.events[0].pid is None


def test_throttling_is_one_event_with_its_duration(tree: FakeTree) -> None:
    seen = log(tree)
    for step in range(5, 30):
        tree.group("pod", events=f"high {step * 10}\noom 1\noom_kill 1")
        tree.group("", events=f"high {step * 10}\noom 1\noom_kill 1")  # which has those of its groups
        seen.look(step * 0.3, {123: MIB})
    for step in range(30, 45):
        seen.look(step * 0.3, {123: MIB})
    (event,) = seen.events
    assert event.kind == "throttled"
    assert event.time == pytest.approx(1.25)
    assert event.until == pytest.approx(8.7)
    assert event.text == (
        "the kernel throttled this container from 12:00:01 for 7.4 s: "
        f"over memory.high of {tree.mount}/pod (290 times)"
    )


@pytest.mark.parametrize(("microseconds", "lines"), [(900_000, 0), (4_000_000, 1)])
def test_long_memory_pressure_is_an_event(microseconds: int, lines: int, tree: FakeTree) -> None:
    tree.group("pod/c", pressure="some avg10=0.00 total=100")
    seen = log(tree)
    tree.group("pod/c", pressure=f"some avg10=9.00 total={microseconds}")
    seen.finish(20.0, 123, 0)
    texts = ["processes of this container waited 4.0 s of 20.0 s for memory (PSI)"]
    assert [event.text for event in seen.events] == texts[:lines]


def test_renamed_process_is_reported_with_its_last_name(tree: FakeTree) -> None:
    seen = log(tree)
    (tree.folder / "proc/123/cmdline").write_text("trainer: epoch 3\0")
    seen.look(2.0, {123: MIB, 124: MIB})
    end(tree, 123, 9)
    tree.group("pod/c", events="oom 2\noom_kill 2")
    seen.look(3.0, {124: MIB})
    assert "process 123 ('trainer: epoch 3') of" in seen.events[0].text


def test_machine_without_cgroups_has_no_events() -> None:
    seen = EventLog(None, 0.0)
    seen.look(1.0, {1: MIB})
    seen.look(2.0, {})
    seen.finish(3.0, 1, -9)
    assert seen.events == []
    assert proc.ROOT == "/proc"


def test_pressure_is_none_without_its_file(tree: FakeTree) -> None:
    group = cgroup.find()
    assert group is not None
    assert group.pressure() is None
    tree.group("pod/c", pressure="some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0 total=1")
    assert group.pressure() == 2_500_000
