"""Schedules: batch size and length as functions of the step.

A schedule is a map from the first step of each value to the value, such as ``{0: 32, 1000: 64}``. Between two
changes steps are alike: that is a phase. Samples are numbered through all phases of one length, so that the
first sample of a step is arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from lowtide._sizes import whole
from lowtide.errors import ArgumentError

Setting = int | Mapping[int, int]
"""One value, or a value for each step from which it holds."""


class Phase(NamedTuple):
    """Steps of one batch size and length, up to the next phase."""

    step: int
    """The first one."""
    batch_size: int
    length: int
    stretch: int
    """The number of its length among those of the schedule."""
    first: int
    """Samples of the same stretch before it."""

    def sample(self, step: int) -> int:
        """The first sample of a step, counted within the stretch."""
        return self.first + (step - self.step) * self.batch_size


class Schedule:
    """The phases of batches, and the steps of their samples.

    >>> schedule = Schedule({0: 2, 10: 4}, {0: 8, 20: 16})
    >>> schedule.at(15), schedule.stretches
    (Phase(step=10, batch_size=4, length=8, stretch=0, first=20), [(8, 60), (16, None)])
    >>> schedule.step_of(0, 25), schedule.step_of(1, 0)
    (11, 20)
    """

    def __init__(self, batch_size: Setting, length: Setting) -> None:
        self.batch_sizes = by_step("batch_size", batch_size)
        self.lengths = by_step("length", length)
        self.phases: list[Phase] = []
        self.stretches: list[tuple[int, int | None]] = []
        """Each length, and its number of samples; None for the last one, which does not end."""
        self.totals: list[int] = []
        """Samples of all stretches before each."""
        first = total = 0
        for step in sorted({*self.batch_sizes, *self.lengths}):
            if self.phases:
                first += (step - self.phases[-1].step) * self.phases[-1].batch_size
            if step in self.lengths:
                if self.stretches:
                    self.stretches[-1] = self.stretches[-1][0], first
                total += first
                self.stretches.append((self.lengths[step], None))
                self.totals.append(total)
                first = 0
            size, length = value_at(self.batch_sizes, step), value_at(self.lengths, step)
            self.phases.append(Phase(step, size, length, len(self.stretches) - 1, first))
        self._steps = [phase.step for phase in self.phases]

    def at(self, step: int) -> Phase:
        """The phase of a step."""
        return self.phases[bisect_right(self._steps, step) - 1]

    def total(self, step: int) -> int:
        """Samples of all lengths before a step."""
        phase = self.at(step)
        return self.totals[phase.stretch] + phase.sample(step)

    def step_of(self, stretch: int, sample: int) -> int:
        """The step of a sample of a stretch."""
        phases = [phase for phase in self.phases if phase.stretch == stretch]
        phase = phases[bisect_right(phases, sample, key=lambda phase: phase.first) - 1]
        return phase.step + (sample - phase.first) // phase.batch_size

    @property
    def settings(self) -> dict[str, int | dict[int, int]]:
        """Its arguments, as they are saved in a state."""
        values = {"batch_size": self.batch_sizes, "length": self.lengths}
        return {name: steps[0] if len(steps) == 1 else steps for name, steps in values.items()}


def by_step(name: str, setting: Setting) -> dict[int, int]:
    """The values of a setting by their first step, without those that change nothing.

    >>> by_step("batch_size", {1000: 64, 0: 32, 2000: 64})
    {0: 32, 1000: 64}
    """
    if not isinstance(setting, Mapping):
        return {0: whole(name, setting, 1)}
    values = {whole(f"a step of {name}", step, 0): whole(name, setting[step], 1) for step in setting}
    if 0 not in values:
        raise ArgumentError(f"{name} by step must start at step 0, got steps {sorted(values)}")
    kept: dict[int, int] = {}
    for step in sorted(values):
        if not kept or values[step] != list(kept.values())[-1]:
            kept[step] = values[step]
    return kept


def value_at(values: Mapping[int, int], step: int) -> int:
    """The value that holds at a step."""
    return values[max(first for first in values if first <= step)]


def past(values: Mapping[int, int], step: int) -> dict[int, int]:
    """The values that held before a step; that of step 0 at least."""
    return {first: value for first, value in values.items() if first < max(step, 1)}
