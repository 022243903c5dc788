"""The shape of a curve: flat, rising to its end, or rising and then level.

Oscillations are removed first (an opening, then a closing, as for pictures: peaks narrower than the window
disappear, then valleys). What is left is described by its lower envelope, the lowest from each place on: a
saw or a spike does not move it, memory that came and stays does. A step is split off, so that a slow leak
after a large load is seen, and a load at the end is not taken for a leak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
Kind = Literal["flat", "rises", "levels off", "undecided"]

LEAST_POINTS = 8
"""Fewer points than this are not a curve."""
_BINS = 48
_WINDOW = 6  # bins: oscillations that are shorter than this are removed
_NOISE = 4.0  # standard errors that a rise must exceed
_CHANCE = 3.5  # standard errors of a straight line's rise
_LEVEL = 0.05  # of the rise: what is nearer to the end's level than this is level with it
_FLAT_PART = 0.2  # of the curve: a level end of this length means something
_END_PART = 0.12  # a level end that is shorter is the end of the program, not of the rise
_STEP_PART = 0.1  # of the curve: half of the rise in so short a time is a step
_RAMP_PART = 0.15  # of the curve: a rise to the end that is shorter may be a step
_RAMP_REST = 0.2  # of a rise: so much between steps, if it is steady, is a ramp
_LONGER = 3.0  # times the longest pause of a rise: a level end of this length is not a pause
_STEPS = 0.6  # of a rise: a pause of this length means two steps, not a ramp


@dataclass(frozen=True)
class Shape:
    """How a curve runs from its first point to its last; x in its own unit, sizes in bytes."""

    kind: Kind
    rise: float = 0.0  # what came and stayed
    start: float = 0.0  # x where the rise starts
    level: float = 0.0  # x from which it is level, or the end
    flat_part: float = 1.0  # of the curve, at its end, that is level
    slope: float = 0.0  # of the rise
    before: float = 0.0  # what came at once before this rise
    reason: str = ""  # why it is undecided
    spread: float = 0.0  # of the points around the curve without oscillations

    @property
    def rises(self) -> bool:
        """Whether it rises to its end."""
        return self.kind == "rises"


@dataclass(frozen=True)
class _Smooth:
    """A curve without its oscillations, in bins of equal width."""

    places: Curve
    levels: Curve  # with the oscillations
    values: Curve
    lowest: Curve  # from each place on
    swing: float  # of oscillations that are too long to be removed
    noise: float  # of the values
    spread: float  # of the points around it

    @property
    def rise(self) -> float:
        return float(self.lowest[-1] - self.lowest[0])

    def significant(self, start: float) -> bool:
        """Whether a straight line from ``start`` on rises by more than chance, given how much levels vary."""
        levels = self.levels[self.places >= start]
        if len(levels) < LEAST_POINTS - 2:
            return True
        index = np.arange(len(levels))
        slope, offset = np.polyfit(index, levels, 1)
        rest = levels - (slope * index + offset)
        spread = float(np.std(rest))
        if spread <= 0:
            return True
        # Neighbours that are alike count as fewer.
        alike = float(np.clip(np.mean(rest[1:] * rest[:-1]) / spread**2, 0.0, 0.9))
        count = max(3.0, len(levels) * (1 - alike) / (1 + alike))
        return bool(slope * len(levels) >= _CHANCE * spread * np.sqrt(12 / count))


def shape_of(x: Curve, y: Curve, least: float) -> Shape:
    """The shape of ``y`` over ``x``, which does not fall; rises of less than ``least`` are noise.

    >>> import numpy as np
    >>> x = np.arange(200.0)
    >>> shape_of(x, 5 * x, 100).kind, shape_of(x, 5 * np.minimum(x, 80), 100).kind
    ('rises', 'levels off')
    """
    span = float(x[-1] - x[0]) if len(x) else 0.0
    if len(x) < LEAST_POINTS or span <= 0:
        return Shape("undecided", reason="few points")
    smooth = _smooth(x, y)
    if smooth is None:
        return Shape("undecided", reason="few steps")
    return replace(_described(x, y, least, smooth), spread=smooth.spread)


def _described(x: Curve, y: Curve, least: float, smooth: _Smooth) -> Shape:
    span = float(x[-1] - x[0])
    rise = smooth.rise
    flat = Shape("flat", max(0.0, rise), float(x[-1]), float(x[0]))
    if rise < max(least, smooth.noise, smooth.swing / 2):
        return flat
    if rise < smooth.swing:
        return replace(flat, kind="undecided", reason="swings")
    step = _step(smooth)
    shape = _with_step(x, y, least, smooth, step) if step else _ramp(x, smooth)
    if shape.kind == "levels off" and not step:
        # Would it be seen in the level part if it continued? Oscillations may be larger.
        points = max(3, int(np.count_nonzero(x >= shape.level)))
        if shape.slope * shape.flat_part * span < 2 * smooth.spread * np.sqrt(12 / points):
            return flat if rise < 2 * smooth.spread else replace(shape, kind="undecided", reason="swings")
    if shape.kind in ("rises", "undecided") and not shape.before:
        earlier = y[x < shape.start - span / _BINS]
        if len(earlier) >= len(x) / 4 and earlier.max() >= smooth.lowest[-1] - 0.1 * rise:
            return flat  # as high as before: one more tooth of a saw
        if shape.rises and not (smooth.significant(shape.start) or _in_quarters(x, y, shape.start)):
            certain = rise < 2 * smooth.spread
            return flat if certain else replace(shape, kind="undecided", reason="swings")
    return shape


def summit_of(y: Curve, near: float = 0.97) -> int:
    """The last point that is about as high as the highest."""
    return int(np.flatnonzero(y >= near * y.max())[-1])


def without_end(time: Curve, y: Curve, several: bool = False) -> int:
    """How many points there are before a program frees its memory and ends, one of ``several`` or alone."""
    span, depth = float(time[-1] - time[0]), float(y.max() - y.min())
    summit = summit_of(y)
    if several and time[-1] - time[summit] > 0.35 * span:
        summit = summit_of(y, 0.9)  # some of them ended early
    fall = float(y[summit] - y[-1]) / max(depth, 1.0)
    rest = float(time[-1] - time[summit]) / max(span, 1e-9)
    downwards = bool((np.diff(y[summit:]) <= 0.01 * depth).all())
    ends = (downwards and fall >= 0.05 and rest <= 0.3) or (
        fall >= 0.5 and rest <= (0.35 if several else 0.15)
    )
    return summit + 1 if ends else len(y)


def _with_step(x: Curve, y: Curve, least: float, smooth: _Smooth, step: tuple[int, int]) -> Shape:
    """The shape of a curve of which half the rise came in one step: what happened around it."""
    first, last = (float(smooth.places[index]) for index in step)
    height = float(smooth.lowest[step[1]] - smooth.lowest[step[0]])
    span = float(x[-1] - x[0])
    rest = (float(x[-1]) - last) / span
    if rest >= _FLAT_PART:
        after = x >= last
        then = shape_of(x[after], y[after], least)
        shape = Shape(
            "levels off", smooth.rise, first, last, rest, height / max(last - first, 1e-9), reason=then.reason
        )
        if then.kind == "flat" or then.reason in ("few points", "few steps"):
            return replace(shape, reason="")
        if then.rises:
            return replace(then, before=max(height, float(smooth.lowest[step[1]] - y[0])))
        pause = then.start - last
        if then.kind == "levels off" and float(x[-1]) - then.level >= max(1.5 * pause, _FLAT_PART * span):
            return replace(shape, level=then.level, flat_part=(float(x[-1]) - then.level) / span)
        if then.kind == "levels off" and then.rise < height / 4:
            return replace(shape, reason="")
        return replace(shape, kind="undecided", reason=then.reason or "two steps")
    earlier = x <= first
    before = shape_of(x[earlier], y[earlier], least)
    if before.rises:
        return replace(before, rise=smooth.rise, level=float(x[-1]))
    return Shape("undecided", smooth.rise, first, last, rest, reason="late step")


def _ramp(x: Curve, smooth: _Smooth) -> Shape:
    """The shape of a curve that rises without a step of half its height."""
    places, lowest, rise, span = smooth.places, smooth.lowest, smooth.rise, float(x[-1] - x[0])
    tolerance = max(_LEVEL * rise, smooth.swing / 2, smooth.noise / 4)
    # Where each tenth of the rise was passed for good.
    level = int(np.argmax(lowest >= lowest[-1] - tolerance))
    crossings = [int(np.argmax(lowest >= lowest[0] + part * rise)) for part in np.arange(0.05, 0.951, 0.1)]
    crossings = [*(index for index in crossings if index < level), level]
    start = max(0, crossings[0] - 1)
    first, last = float(places[start]), float(places[level])
    pause = float(np.diff(places[crossings]).max(initial=0.0))
    still = max((_still(lowest[a : b + 1]) for a, b in pairwise(crossings)), default=0) * span / len(lowest)
    flat, extent = float(x[-1]) - last, last - first
    slope = _theil_sen(places[start : level + 1], smooth.values[start : level + 1])
    shape = Shape("rises", rise, first, last, flat / span, slope)
    if flat >= _FLAT_PART * span:
        # Not much longer than a pause before it says nothing: the next step may follow.
        longer = flat >= _LONGER * still
        return replace(
            shape, kind="levels off" if longer else "undecided", reason="" if longer else "two steps"
        )
    if extent < _RAMP_PART * span:
        return replace(shape, kind="undecided", reason="late step")
    if pause >= _STEPS * extent or _few_steps(lowest, rise):
        return replace(shape, kind="undecided", reason="two steps")
    if flat >= _END_PART * span and flat >= 1.5 * pause:
        return replace(shape, kind="undecided", reason="just level")
    return shape


def _still(lowest: Curve) -> int:
    """Bins in a row in which a rise paused: a curve that only slows down does not."""
    moves = np.diff(lowest)
    still = np.concatenate(([False], moves < moves.mean() / 4, [False])) if len(moves) else np.zeros(1, bool)
    edges = np.flatnonzero(np.diff(still))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _few_steps(lowest: Curve, rise: float) -> bool:
    """Whether most of the rise came in four steps or fewer, with pauses between them."""
    if len(lowest) < _BINS // 2:  # too coarse to tell a step from a ramp
        return False
    moves = np.diff(lowest)
    steep = np.flatnonzero(moves >= 0.03 * rise)
    groups = np.split(steep, np.flatnonzero(np.diff(steep) > 1) + 1)
    narrow = [group for group in groups if 0 < len(group) <= _STEP_PART / 2 * len(lowest) + 1]
    height = sum(float(lowest[group[-1] + 1] - lowest[group[0]]) for group in narrow)
    if not 0 < len(narrow) <= 4 or height < 0.6 * rise:
        return False
    # A ramp that has a step at its start and another at its end is still a ramp.
    between = np.delete(moves, np.concatenate(narrow))
    steady = np.count_nonzero(between >= between.mean() / 3) >= 0.6 * len(between)
    return not (steady and rise - height >= _RAMP_REST * rise)


def _step(smooth: _Smooth) -> tuple[int, int] | None:
    """First and last bin of the shortest stretch with half of the rise, if it is short enough for a step."""
    lowest, half = smooth.lowest, smooth.rise / 2
    ends = np.searchsorted(lowest, lowest + half)  # the lower envelope never falls
    starts = np.flatnonzero(ends < len(lowest))
    if not len(starts):
        return None
    lengths = ends[starts] - starts
    if lengths.min() > _STEP_PART * len(lowest):
        return None
    first = int(starts[np.argmin(lengths)])
    last = int(ends[first])
    # The step includes the steep parts beside it.
    steepness = float(lowest[last] - lowest[first]) / (last - first)
    while first > 0 and lowest[first] - lowest[first - 1] >= steepness / 4:
        first -= 1
    while last < len(lowest) - 1 and lowest[last + 1] - lowest[last] >= steepness / 4:
        last += 1
    return (first, last) if last - first <= 2 * _STEP_PART * len(lowest) else None


def _smooth(x: Curve, y: Curve) -> _Smooth | None:
    """The curve without oscillations; ``None`` where x moves in so few steps that there is no curve."""
    span = float(x[-1] - x[0])
    count = int(np.clip(len(x) // 3, 16, _BINS))
    bins = np.minimum(((x - x[0]) / span * count).astype(int), count - 1)
    used = np.unique(bins)
    if len(used) < LEAST_POINTS - 2:
        return None
    medians = np.array([np.median(y[bins == index]) for index in used])
    places = x[0] + (np.arange(count) + 0.5) * span / count
    levels = np.interp(np.arange(count), used, medians)
    window = max(3, count * _WINDOW // _BINS)
    values = _without_oscillation(levels, window)
    swing = _swing(values)
    if swing > 0 and (period := _period(levels)) <= count / 3:
        values = _without_oscillation(levels, max(window, round(1.2 * period)))
        swing = _swing(values)
    spread = float(np.std(y - np.interp(x, places, values)))
    noise = _NOISE * spread / max(1.0, np.sqrt(len(x) * window / count))
    return _Smooth(places, levels, values, _lowest(values), swing, noise, spread)


def _lowest(values: Curve) -> Curve:
    return np.minimum.accumulate(values[::-1])[::-1]


def _swing(values: Curve) -> float:
    """By how much a curve goes up and down: the highest so far above the lowest from there on."""
    return float(np.median(np.maximum.accumulate(values) - _lowest(values)))


def _period(levels: Curve) -> float:
    """Bins between two maxima, from how often the curve crosses its own line."""
    index = np.arange(len(levels))
    above = levels > np.polyval(np.polyfit(index, levels, 1), index)
    return 2 * len(levels) / max(1, int(np.count_nonzero(np.diff(above))))


def _without_oscillation(levels: Curve, window: int) -> Curve:
    """An opening, then a closing: peaks and valleys vanish, a ramp and a step stay what they are."""
    half = window // 2
    smooth = np.pad(levels, 4 * half, mode="edge")  # the ends stay, as if the curve continued like this
    for choose in (np.min, np.max, np.max, np.min):
        smooth = choose(np.lib.stride_tricks.sliding_window_view(smooth, 2 * half + 1), axis=1)
    return smooth


def _in_quarters(x: Curve, y: Curve, start: float) -> bool:
    """Whether both the lowest and the highest rise from each quarter of the rest to the next."""
    quarters = np.minimum(((x - start) / (x[-1] - start) * 4).astype(int), 3)
    parts = [y[(x >= start) & (quarters == index)] for index in range(4)]
    if min(map(len, parts)) < 3:
        return False
    ends = np.array([[part.min(), part.max()] for part in parts])
    return bool((np.diff(ends, axis=0) > 0.1 * (ends[-1] - ends[0])).all() and (ends[-1] > ends[0]).all())


def _theil_sen(x: Curve, y: Curve) -> float:
    """The median of the slopes between all pairs of points."""
    if len(x) < 2:
        return 0.0
    left, right = np.triu_indices(len(x), 1)
    return float(np.median((y[right] - y[left]) / (x[right] - x[left])))
