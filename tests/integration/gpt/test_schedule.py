"""lowtide._gpt.optim: the learning rate of each step."""

from __future__ import annotations

import math

import pytest

from lowtide._gpt.config import Settings, resolve
from lowtide._gpt.optim import learning_rate


def settings_for(schedule: str) -> Settings:
    return resolve({
        "data": "corpus", "device": "cpu", "schedule": schedule, "learning_rate": 1.0, "min_lr": 0.1,
        "warmup_iters": 10, "lr_decay_iters": 110, "cooldown_iters": 20, "max_iters": 200,
    })  # fmt: skip


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_schedule_has_linear_warmup_and_constant_end(schedule: str) -> None:
    settings = settings_for(schedule)
    assert [learning_rate(settings, step) for step in range(10)] == pytest.approx(
        [(step + 1) / 11 for step in range(10)]
    )
    assert learning_rate(settings, 10) == 1.0
    assert {learning_rate(settings, step) for step in (110, 111, 199)} == {0.1}


def test_cosine_decays_from_the_peak_to_the_minimum() -> None:
    settings = settings_for("cosine")
    assert learning_rate(settings, 60) == pytest.approx(0.55)
    assert learning_rate(settings, 35) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))


def test_wsd_is_flat_and_then_decays() -> None:
    settings = settings_for("wsd")
    assert {learning_rate(settings, step) for step in range(10, 91)} == {1.0}
    assert learning_rate(settings, 100) == pytest.approx(0.55)
    assert learning_rate(settings, 109) == pytest.approx(0.145)


def test_learning_rate_without_warmup_starts_at_peak() -> None:
    settings = resolve({"data": "c", "device": "cpu", "warmup_iters": 0, "learning_rate": 1.0})
    assert learning_rate(settings, 0) == 1.0
