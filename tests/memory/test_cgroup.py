"""The memory cgroup of a process, and the limit that applies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide._memory import cgroup, proc
from tests.support.trees import FakeTree as Tree

MIB = 2**20


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def test_version_2_uses_smallest_limit_of_all_parents(tree: Tree) -> None:
    tree.process("0::/pod/container\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    tree.group("", stat="anon 1")
    tree.group("pod", max=100 * MIB, current=70 * MIB)
    path = tree.group(
        "pod/container", max="max", current=64 * MIB, peak=80 * MIB,
        stat=f"anon {10 * MIB}\nfile {50 * MIB}\ninactive_file {40 * MIB}",
    )  # fmt: skip
    current = cgroup.find()
    assert current == cgroup.CgroupV2(path, str(tree.mount))
    assert current.limit() == 100 * MIB
    assert current.usage() == 64 * MIB
    assert current.working_set() == 24 * MIB
    assert current.peak() == 80 * MIB
    assert current.parts() == (10 * MIB, 50 * MIB)


def test_hybrid_hierarchy_uses_version_1(tree: Tree) -> None:
    mount = tree.mount / "memory"
    tree.process(
        "4:memory:/jobs/7\n0::/\n",
        f"35 31 0:32 / {mount} rw,relatime - cgroup cgroup rw,memory",
        f"41 31 0:38 / {tree.mount}/unified rw,relatime - cgroup2 cgroup2 rw",
    )
    tree.group("unified")
    tree.group("memory", limit_in_bytes=2**63 - 4096)
    tree.group("memory/jobs", limit_in_bytes=300 * MIB)
    path = tree.group(
        "memory/jobs/7", limit_in_bytes=2**63 - 4096, usage_in_bytes=90 * MIB, max_usage_in_bytes=95 * MIB,
        stat=f"cache 0\nrss 0\ninactive_file 0\ntotal_cache {60 * MIB}\ntotal_rss {20 * MIB}\n"
             f"total_inactive_file {50 * MIB}\nhierarchical_memory_limit {300 * MIB}",
    )  # fmt: skip
    current = cgroup.find()
    assert current is not None
    assert (current.version, current.path) == (1, path)
    assert current.limit() == 300 * MIB
    assert current.working_set() == 40 * MIB
    assert current.parts() == (20 * MIB, 60 * MIB)


def test_version_1_sums_kills_of_child_groups_but_not_of_root(tree: Tree) -> None:
    def control(kills: int) -> str:
        return f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}"

    root = tree.group("memory", oom_control=control(1), failcnt=0)
    (tree.mount / "memory/release_agent").touch()
    tree.group("memory/other", oom_control=control(8), failcnt=0)
    path = tree.group("memory/job", oom_control=control(2), failcnt=0)
    tree.group("memory/job/idle", oom_control=control(0), failcnt=0)
    worker = tree.group("memory/job/a/worker", oom_control=control(4), failcnt=0)
    job = cgroup.CgroupV1(path, root)
    assert job.kills() == {path: 2, worker: 4}
    assert (job.killed(), job.events()["oom_kill"]) == (6, 2)
    assert cgroup.CgroupV1(root, root).killed() == 1


def test_version_1_reports_limits_of_hidden_parents(tree: Tree) -> None:
    tree.process(
        "4:memory:/docker/abc\n", f"35 31 0:32 /docker/abc {tree.mount} rw - cgroup cgroup rw,memory"
    )
    path = tree.group(
        "", limit_in_bytes=2**63 - 4096, usage_in_bytes=1, stat=f"hierarchical_memory_limit {200 * MIB}"
    )
    current = cgroup.find()
    assert current is not None
    assert current.path == path.rstrip("/")
    assert current.limit() == 200 * MIB


def test_path_outside_the_visible_tree_falls_back_to_the_mount(tree: Tree) -> None:
    tree.process("0::/../../other\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    path = tree.group("", max=50 * MIB, current=10 * MIB, stat="inactive_file 0")
    current = cgroup.find()
    assert current is not None
    assert (current.path, current.limit()) == (path.rstrip("/"), 50 * MIB)


def test_missing_limit_is_none(tree: Tree) -> None:
    tree.process("0::/\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    tree.group("", stat="anon 1")
    current = cgroup.find()
    assert current is not None
    assert current.limit() is None
    assert current.usage() is None
    assert current.working_set() is None


@pytest.mark.parametrize("membership", ["", "1:cpu:/\n0::/\n"], ids=["nothing", "no memory controller"])
def test_missing_memory_controller_returns_none(tree: Tree, membership: str) -> None:
    tree.process(membership, f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    assert cgroup.find() is None


def test_missing_proc_returns_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ROOT", str(tmp_path))
    assert cgroup.find() is None


def test_mount_point_with_space_is_unescaped(tree: Tree) -> None:
    folder = tree.group("a b", current=5, stat="inactive_file 0")
    tree.process("0::/\n", f"30 23 0:26 / {folder.replace(' ', chr(92) + '040')} rw - cgroup2 cgroup2 rw")
    current = cgroup.find()
    assert current is not None
    assert current.path == folder


SEEN_FROM_INSIDE = """
from lowtide.memory import snapshot
now = snapshot()
print(now.cgroup_limit, now.cgroup_usage, now.cgroup_working_set)
"""


def test_process_sees_its_limit(limited: Any) -> None:
    with limited("96 MiB") as group:
        done = group.run([sys.executable, "-c", SEEN_FROM_INSIDE])
        assert done.returncode == 0, done.stderr
        limit, usage, working_set = map(int, done.stdout.split())
        assert limit == 96 * MIB
        # The kernel charges 64 pages at once, and the figures are read one after another.
        assert 0 < working_set <= usage + MIB
        assert usage <= group.peak() + MIB
        assert group.peak() <= limit


def test_process_over_the_limit_is_killed(limited: Any) -> None:
    with limited("48 MiB") as group:
        done = group.run([sys.executable, "-c", "x = bytearray(96 * 2**20); x[::4096] = x[::4096]"])
        assert done.returncode == -9
        assert group.oom_kills() >= 1
        assert group.peak() <= 48 * MIB


AVAILABLE = """
import mmap, sys
from lowtide.memory import available
first = available()
block = mmap.mmap(-1, 32 * 2**20); block.write(b"x" * len(block))
second = available()
with open(sys.argv[1], "rb") as file:  # page cache: it can be taken back
    while file.read(1 << 20): pass
print(first, second, available())
"""


def test_available_memory_falls_by_allocations_not_by_page_cache(limited: Any, small: Path) -> None:
    with limited("160 MiB") as group:
        done = group.run([sys.executable, "-c", AVAILABLE, str(small)])
        assert done.returncode == 0, done.stderr
        first, second, third = map(int, done.stdout.split())
        assert 100 * MIB < first < 160 * MIB
        assert 28 * MIB < first - second < 40 * MIB
        assert abs(second - third) < 8 * MIB


# Two containers with their own view of the cgroups, as a pod and a debug container beside it have them.
BESIDE = """
set -e
mount=$1 python=$4
look="import sys; from lowtide._memory import cgroup; print(cgroup.find(int(sys.argv[1])).limit())"
inside() {
    enter='echo $$ > "$0/cgroup.procs" && exec unshare -C -m --propagation private "$@"'
    own='umount "$0" && mount -t cgroup -o memory cgroup "$0" && exec "$@"'
    group=$1; shift
    exec sh -c "$enter" "$group" sh -c "$own" "$mount" "$@"
}
inside "$2" sleep 20 &
trap "kill $!" EXIT
sleep 0.3
(inside "$3" "$python" -c "$look" $!)
"""


def test_sibling_container_has_its_own_limit(limited: Any) -> None:
    here = cgroup.find()
    if here is None or here.version != 1 or os.geteuid() != 0:
        pytest.skip("needs root and cgroups of version 1")
    with limited("96 MiB") as job, limited("512 MiB") as other:
        command = ["sh", "-c", BESIDE, "sh", here.mount, job.path, other.path, sys.executable]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{96 * MIB}\n", done.stderr
