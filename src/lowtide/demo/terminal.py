"""Curves in a terminal: areas of block characters, without colours and in narrow windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"

Point = tuple[float, float]


def area(points: Sequence[Point], x_to: float, y_to: float, width: int, height: int) -> list[str]:
    """Return lines of text, the highest first. Every value above 0 is visible.

    >>> print("\\n".join(area([(0, 0), (4, 4)], 4, 4, width=8, height=2)))
        ▁▃▅▇
    ▁▃▅▇████
    """
    columns = []
    for column in range(width):
        value = _value_at(points, (column + 0.5) / width * x_to)
        level = round(value / y_to * 8 * height)
        columns.append(max(level, 1 if value > 0 else 0))
    return [
        "".join(_EIGHTHS[min(8, max(0, level - 8 * row))] for level in columns)
        for row in reversed(range(height))
    ]


def _value_at(points: Sequence[Point], x: float) -> float:
    """Interpolate between the two points around ``x``; 0 outside of all points."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * ((x - x0) / (x1 - x0) if x1 > x0 else 1.0)
    return 0.0
