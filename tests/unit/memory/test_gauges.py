"""The kinds of gauges: the list, and the deprecated names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lowtide
from lowtide._memory import gauges, proc
from lowtide._memory.tree import Tree
from lowtide.errors import ArgumentError, NotFoundError, UnsupportedError
from lowtide.memory import snapshot


def test_every_gauge_has_unique_name_noun_and_reading() -> None:
    names = [gauge.name for gauge in gauges.GAUGES]
    assert len(names) == len(set(names))
    for kind in gauges.GAUGES:
        gauge = kind(Tree(os.getpid(), descendants=False), {})
        assert kind.noun
        if gauge.problem() is None:
            assert gauge.read(proc.status()) >= 0


@pytest.mark.parametrize(("old", "new"), [("anon", "heap"), ("file", "mapped")])
def test_deprecated_kind_warns_and_works(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"kind='{old}' is deprecated; use kind='{new}'"):
        assert lowtide.watch(kind=old).kind == new


@pytest.mark.parametrize(("old", "new"), [("anon", "heap"), ("file", "mapped")])
def test_deprecated_snapshot_field_warns_and_works(old: str, new: str) -> None:
    now = snapshot()
    with pytest.warns(DeprecationWarning, match=f"Snapshot.{old} is deprecated; use Snapshot.{new}"):
        assert getattr(now, old) == getattr(now, new)


def test_unknown_kind_raises_with_list_of_kinds() -> None:
    with pytest.raises(ArgumentError, match=r"one of rss, heap, mapped, cache, cgroup \(got 'stack'\)"):
        gauges.named("stack")


def test_cgroup_gauge_without_a_cgroup_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide._memory.cgroup.find", lambda *_: None)
    with pytest.raises(UnsupportedError, match="kind='cgroup' needs a memory cgroup"):
        lowtide.watch(kind="cgroup").__enter__()


def test_page_cache_gauge_of_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="none"):
        lowtide.watch(kind="cache", files=[tmp_path / "none.bin"]).__enter__()


def test_parts_of_process_gauges_sum_to_rss() -> None:
    status = proc.status()
    for kind in (gauges.Resident, gauges.Heap, gauges.Mapped):
        gauge = kind(Tree(os.getpid(), descendants=False), {})
        assert sum(gauge.parts(status).values()) == status.rss
