"""The progress of a run."""

from __future__ import annotations

from lowtide._prepare.summary import Progress, ProgressCounter


def test_counts_accumulate_and_are_reported_at_each_tick() -> None:
    reports: list[Progress] = []
    counter = ProgressCounter(100, 40, reports.append)
    counter.add(2, 30)
    counter.tick("alphabet")
    counter.add(1, 5, 10)
    counter.tick()
    assert reports == [
        Progress("alphabet", done=40, total=100, earlier=40, documents=2, tokens=30),
        Progress("tokens", done=50, total=100, earlier=40, documents=3, tokens=35),
    ]
