"""Costs: what is learned from reads, and what is not."""

from __future__ import annotations

import pytest

from lowtide._io import costs as module
from lowtide._io.costs import Costs


def test_short_reads_determine_cost_per_read() -> None:
    costs = Costs()
    costs.learn(reads=100, nbytes=100 * 1024, seconds=0.5)
    assert costs.per_read == pytest.approx(0.005, rel=1e-3)


def test_long_reads_determine_cost_per_byte() -> None:
    costs = Costs()
    costs.learn(reads=4, nbytes=4 * 2**20, seconds=4 * 2**20 / 1e8)
    assert costs.per_byte == pytest.approx(1e-8)


def test_stall_does_not_change_cost_per_read() -> None:
    costs = Costs()
    for seconds in (0.1, 0.1, 0.1, 10.0):
        costs.learn(reads=100, nbytes=100, seconds=seconds)
    assert costs.per_read == pytest.approx(0.001, rel=1e-3)


def test_bursts_of_a_limited_device_are_averaged() -> None:
    costs = Costs()
    for seconds in (0.02, 0.18) * 16:
        costs.learn(reads=4, nbytes=10 * 2**20, seconds=seconds)
    assert costs.per_byte == pytest.approx(0.1 / (10 * 2**20), rel=0.35)


def test_medium_reads_do_not_change_costs() -> None:
    costs = Costs()
    before = costs.gap
    costs.learn(reads=1, nbytes=(module._SHORT + module.LONG) // 2, seconds=9.0)
    assert costs.gap == before
