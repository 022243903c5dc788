"""True peaks of nested blocks, from the one mark that the kernel keeps."""

from __future__ import annotations

import mmap

import pytest

from lowtide._memory import proc
from lowtide._memory.peaks import Peak
from tests.support.pages import touch

MIB = 2**20
# The kernel's mark is short by a few dozen pages when what made it was given back.
SLACK = 64 * mmap.PAGESIZE * 4


def test_peak_includes_freed_memory() -> None:
    peak = Peak()
    touch(48 * MIB).close()
    assert peak.known
    assert 48 * MIB - SLACK <= peak.read() - peak.base <= 48 * MIB + SLACK
    peak.close()


def test_held_memory_is_exact_to_one_page() -> None:
    for _ in range(2):  # the first time round may touch pages of the interpreter
        peak = Peak()
        block = touch(16 * MIB)
        growth = peak.read() - peak.base
        block.close()
        peak.close()
    assert growth == 16 * MIB


def test_inner_peak_does_not_reset_outer_peak() -> None:
    outer = Peak()
    touch(64 * MIB).close()
    inner = Peak()
    touch(16 * MIB).close()
    assert 16 * MIB - SLACK <= inner.read() - inner.base <= 16 * MIB + SLACK
    inner.close()
    assert outer.read() - outer.base >= 64 * MIB - SLACK
    outer.close()


def test_inner_peak_counts_for_outer_peak() -> None:
    outer, inner = Peak(), Peak()
    touch(32 * MIB).close()
    inner.close()
    assert outer.read() - outer.base >= 32 * MIB - SLACK
    outer.close()


def test_new_high_is_known_without_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    touch(32 * MIB).close()
    monkeypatch.setattr(proc, "reset_peak", lambda: False)
    peak = Peak()
    block = touch(4 * MIB)
    peak.read()
    vouched_for = peak.known
    assert not vouched_for, "below the old mark nobody can"
    block.close()
    marked = proc.status().peak
    higher = touch((marked - proc.status().rss) // MIB * MIB + 32 * MIB)
    assert peak.read() > marked
    assert peak.known
    higher.close()
    peak.close()
