"""Shapes of curves, sampled at random places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowtide._memory.profile.shape import Curve, Shape, shape_of

Function = Callable[[Curve], Any]
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(0).bit_generator.state


def saw(place: Curve, teeth: float, height: float) -> Curve:
    return height * (place * teeth % 1)


def noise(place: Curve, height: float) -> Curve:
    return RANDOM.normal(0, height, len(place))


CURVES: dict[str, tuple[Function, str]] = {
    "flat": (lambda t: 50 + 0 * t, "flat"),
    "noise": (lambda t: 50 + noise(t, 4), "flat"),
    "saw": (lambda t: 50 + saw(t, 13, 160), "flat"),
    "few teeth": (lambda t: 50 + saw(t, 5.3, 160), "flat"),
    "saw with a rising floor": (lambda t: 50 + saw(t, 13, 160) + 400 * t, "rises"),
    "spikes": (lambda t: 20 + 400.0 * (t * 4 % 1 > 0.94), "flat"),
    "line": (lambda t: 50 + 400 * t, "rises"),
    "slower, to a level": (lambda t: 50 + 1000 * (1 - np.exp(-3.5 * t)), "levels off"),
    "stairs to a landing": (lambda t: 50 + 60 * np.minimum(np.floor(8 * t), 6), "undecided"),
    "late": (lambda t: 50 + 1000 * np.maximum(0, t - 0.6), "rises"),
    "loaded": (lambda t: 50 + 4000 * np.minimum(t, 0.1), "levels off"),
    "full": (lambda t: 50 + 1000 * np.minimum(t, 0.7), "levels off"),
    "stairs": (lambda t: 50 + 60 * np.floor(t * 8), "rises"),
    "step": (lambda t: 50 + 100.0 * (t > 0.5), "levels off"),
    "step at the end": (lambda t: 50 + 100.0 * (t > 0.95), "undecided"),
    "two ramps": (lambda t: 50 + 400 * np.clip(t, 0, 0.2) + 400 * np.clip(t - 0.45, 0, 0.25), "undecided"),
    "leak after a load": (lambda t: 50 + 4000 * np.minimum(t, 0.1) + 60 * t, "rises"),
    "ramp between two steps": (lambda t: 50 + 100 * t + 80.0 * (t > 0.04) + 90.0 * (t > 0.96), "rises"),
    "two steps": (lambda t: 50 + 80.0 * (t > 0.04) + 90.0 * (t > 0.96), "undecided"),
    "three steps with a slight rise": (
        lambda t: 50 + 20 * t + 70.0 * (t > 0.04) + 60.0 * (t > 0.5) + 70.0 * (t > 0.96),
        "undecided",
    ),
    "two steps and a slow one": (
        lambda t: 50 + 80.0 * (t > 0.04) + 100 * np.clip((t - 0.4) / 0.15, 0, 1) + 90.0 * (t > 0.96),
        "undecided",
    ),
    "saturating": (lambda t: 50 + 100 * (1 - np.exp(-10 * t)), "levels off"),
    "falling": (lambda t: 500 - 300 * t, "flat"),
    "hump": (lambda t: 50 + 400 * np.minimum(t, 1 - t), "flat"),
    "slower and slower": (lambda t: 50 + 400 * np.sqrt(t), "rises"),
}


def sampled(function: Function, count: int) -> Shape:
    places = np.sort(RANDOM.uniform(0, 1, count))
    places[[0, -1]] = 0, 1
    return shape_of(places, function(places), least=8)


@pytest.mark.parametrize("count", [150, 1000])
@pytest.mark.parametrize("name", CURVES)
def test_curve_has_its_shape(name: str, count: int) -> None:
    function, kind = CURVES[name]
    kinds = Counter(sampled(function, count).kind for _ in range(10))
    assert kinds[kind] >= 8  # type: ignore[index]
    assert set(kinds) <= {kind, "undecided"} | (
        {"flat", "levels off"} if kind in ("flat", "levels off") else set()
    )


@pytest.mark.parametrize("name", ["noise", "saw", "few teeth", "spikes", "flat", "hump"])
def test_sparsely_sampled_oscillation_does_not_rise(name: str) -> None:
    kinds = Counter(sampled(CURVES[name][0], 30).kind for _ in range(40))
    assert kinds["rises"] == 0


def test_figures_of_a_ramp() -> None:
    places = np.arange(1000.0)
    shape = shape_of(places, 3 * np.clip(places - 300, 0, 400), least=8)
    assert shape.kind == "levels off"
    assert shape.rise == pytest.approx(1200)
    assert shape.start == pytest.approx(310, abs=30)
    assert shape.level == pytest.approx(690, abs=30)
    assert shape.flat_part == pytest.approx(0.31, abs=0.03)
    assert shape.slope == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(("count", "reason"), [(0, "few points"), (7, "few points"), (8, "few steps")])
def test_few_points_are_undecided(count: int, reason: str) -> None:
    places = np.minimum(np.arange(float(count)), 2.0)
    assert shape_of(places, 100 * places, least=8).reason == reason


def test_rise_below_minimum_is_flat() -> None:
    places = np.arange(200.0)
    assert shape_of(places, places / 29, least=8).kind == "flat"
    assert shape_of(places, places / 19, least=8).kind == "rises"
