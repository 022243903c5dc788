"""What a process may still take: the least of the machine and every limit, on recorded trees."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide._memory import available, proc
from lowtide._sizes import parse_size
from lowtide.errors import ArgumentError
from tests.support.trees import FakeTree

MIB = 2**20


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    return FakeTree(tmp_path, monkeypatch)


def version_2(tree: FakeTree, path: str) -> None:
    tree.process(f"0::{path}\n", f"30 23 0:26 / {tree.mount} rw - cgroup2 cgroup2 rw")
    tree.group("", stat="anon 1")


def test_available_without_limits_is_meminfo_available(tree: FakeTree) -> None:
    version_2(tree, "/")
    tree.meminfo(MemTotal=1000 * MIB, MemAvailable=600 * MIB)
    assert lowtide.memory.available() == 600 * MIB


def test_lowest_headroom_of_all_parent_groups_is_used(tree: FakeTree) -> None:
    version_2(tree, "/pod/container")
    tree.meminfo(MemAvailable=600 * MIB)
    # The parent has the larger limit, and a neighbour that uses most of it.
    tree.group("pod", max=400 * MIB, current=380 * MIB, stat=f"inactive_file {10 * MIB}")
    tree.group("pod/container", max=200 * MIB, current=60 * MIB, stat="inactive_file 0")
    assert lowtide.memory.available() == 30 * MIB


def test_page_cache_and_slab_are_available_but_shared_memory_is_not(tree: FakeTree) -> None:
    version_2(tree, "/c")
    tree.meminfo(MemAvailable=600 * MIB)
    stat = (
        f"anon {20 * MIB}\nfile {170 * MIB}\nshmem {60 * MIB}\nactive_file {30 * MIB}\n"
        f"inactive_file {80 * MIB}\nslab_reclaimable {5 * MIB}"
    )
    tree.group("c", max=200 * MIB, current=200 * MIB, stat=stat)
    assert lowtide.memory.available() == 115 * MIB


def test_memory_high_counts_like_limit(tree: FakeTree) -> None:
    version_2(tree, "/c")
    tree.meminfo(MemAvailable=600 * MIB)
    tree.group("c", max=200 * MIB, high=100 * MIB, current=90 * MIB, stat="inactive_file 0")
    assert lowtide.memory.available() == 10 * MIB
    tree.group("c", high=80 * MIB)
    assert lowtide.memory.available() == 0


def test_version_1_counts_swap_and_hidden_parents(tree: FakeTree) -> None:
    tree.process("4:memory:/d/x\n", f"35 31 0:32 /d/x {tree.mount} rw - cgroup cgroup rw,memory")
    tree.meminfo(MemAvailable=600 * MIB)
    stat = f"total_inactive_file {10 * MIB}\nhierarchical_memory_limit {250 * MIB}"
    tree.group("", limit_in_bytes=2**63 - 4096, usage_in_bytes=100 * MIB, stat=stat)
    assert lowtide.memory.available() == 160 * MIB
    tree.group("", **{"memsw.limit_in_bytes": 300 * MIB, "memsw.usage_in_bytes": 260 * MIB})
    assert lowtide.memory.available() == 50 * MIB


def test_each_bound_has_its_source(tree: FakeTree) -> None:
    version_2(tree, "/c")
    tree.meminfo(MemAvailable=600 * MIB)
    path = tree.group("c", max=200 * MIB, current=0, stat="inactive_file 0")
    assert list(available.bounds()) == [
        (600 * MIB, f"{proc.ROOT}/meminfo MemAvailable"),
        (200 * MIB, f"{path}/memory.max"),
    ]


def test_rlimit_of_process_is_a_bound(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    version_2(tree, "/")
    tree.meminfo(MemAvailable=600 * MIB)
    (tree.folder / "proc/self/status").write_text(f"Name:\tx\nVmSize:\t{30 * 1024} kB\n")
    limits = {resource.RLIMIT_AS: 70 * MIB}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits.get(kind, -1), -1))
    assert lowtide.memory.available() == 40 * MIB


def test_percentage_is_relative_to_available_memory(tree: FakeTree) -> None:
    version_2(tree, "/c")
    tree.meminfo(MemAvailable=600 * MIB)
    tree.group("c", max=200 * MIB, current=100 * MIB, stat="inactive_file 0")
    assert parse_size("25%") == 25 * MIB
    assert parse_size(" 12.5 % ") == 12.5 * MIB
    assert lowtide.watch(budget="50%").budget == 50 * MIB


@pytest.mark.parametrize("text", ["%", "101%", "-1%", "5 MiB%", "5%%", "1e1%"])
def test_percentage_out_of_range_raises(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not understood; write"):
        parse_size(text)


def test_pass_accepts_budget_in_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "available", lambda: 8 * MIB)
    with lowtide.create(tmp_path / "a.npy", dtype="u1", row_shape=(1024,)) as out:
        out.append([[7] * 1024] * 4096)
    with lowtide.open(tmp_path / "a.npy") as array:
        assert len(next(iter(array.chunks(budget="25%")))) == len(next(iter(array.chunks(budget="2 MiB"))))
