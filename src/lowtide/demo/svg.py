"""Line charts as SVG: no library, no script, readable on light and dark ground.

A chart is markup for a page that has ``STYLE`` once, or with ``standalone`` a file of its own, such as the
picture in a README. There it carries its own ground: a picture is told what the reader's system prefers, and
not which theme the page around it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Point = tuple[float, float]
Side = Literal["above", "below", "right"]

_FONT = 'font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
_LIGHT = {
    "ground": "#ffffff", "frame": "#dfe5ea", "grid": "#e6ebef", "text": "#17212b", "soft": "#5b6b7a",
    "theirs": "#b9541a", "ours": "#1f6f8b", "faint": "#a9bccb",
}  # fmt: skip
_DARK = {
    "ground": "#18212a", "frame": "#2a3641", "grid": "#2a3641", "text": "#e6edf3", "soft": "#9fb0bf",
    "theirs": "#f2a162", "ours": "#4fb3d1", "faint": "#50677a",
}  # fmt: skip
_LINES = ("theirs", "ours", "faint")

_TOP, _RIGHT, _BOTTOM, _LEFT = 52, 20, 48, 58  # around the lines, for the title and the axes
_ABOVE_LINE, _BELOW_LINE, _BESIDE_LINE = -9, 19, 12


@dataclass(frozen=True, slots=True)
class Line:
    """One line, with its name written at it: ``at`` is how far along the horizontal axis, from 0 to 1."""

    name: str
    points: Sequence[Point]
    colour: Literal["theirs", "ours", "faint"]
    at: float = 1.0
    side: Side = "above"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a common ground. Both axes begin at 0; the one of x ends at ``x_to`` or the last point."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_to: float | None = None

    def svg(self, width: int = 720, height: int = 340, *, standalone: bool = False) -> str:
        """The markup, so many units wide and high."""
        return _Drawing(self, width, height).markup(standalone)


def ticks(high: float, most: int) -> list[float]:
    """At most ``most`` round numbers from 0 to ``high``, evenly apart.

    >>> ticks(1, 6), ticks(512, 6)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 100.0, 200.0, 300.0, 400.0, 500.0])
    """
    power = math.floor(math.log10(high / most))
    steps = [factor * 10.0**exponent for exponent in (power, power + 1) for factor in (1, 2, 5)]
    step = next(step for step in steps if math.floor(high / step + 1e-9) < most)
    return [round(number * step, 9) for number in range(math.floor(high / step + 1e-9) + 1)]


def _rules(colours: dict[str, str]) -> str:
    rules = [
        f".chart .ground {{ fill: {colours['ground']}; stroke: {colours['frame']} }}",
        f".chart .grid {{ stroke: {colours['grid']} }}",
        f".chart text {{ fill: {colours['soft']} }}",
        f".chart .title {{ fill: {colours['text']} }}",
    ]
    for name in _LINES:
        rules += [
            f".chart path.{name} {{ stroke: {colours[name]} }}",
            f".chart text.{name} {{ fill: {colours[name if name != 'faint' else 'soft']} }}",
        ]
    return "\n".join(rules)


STYLE = f"""\
.chart text {{ {_FONT}; font-size: 13px }}
.chart .title {{ font-size: 16px; font-weight: 650 }}
.chart .label {{ font-weight: 600 }}
.chart path {{ fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round }}
.chart path.dashed {{ stroke-dasharray: 2 6 }}
{_rules(_LIGHT)}
@media (prefers-color-scheme: dark) {{
{_rules(_DARK)}
}}
"""


class _Drawing:
    """A chart at one size."""

    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self._chart, self._width, self._height = chart, width, height
        points = [point for line in chart.lines for point in line.points]
        self._x_to = chart.x_to or max((x for x, _ in points), default=0.0) or 1.0
        # A little air, so that a line at the top is not taken for the frame.
        self._y_to = 1.08 * max((y for _, y in points), default=0.0) or 1.0

    def place(self, x: float, y: float) -> Point:
        """Where a value lies on the paper."""
        return (
            _LEFT + x / self._x_to * (self._width - _LEFT - _RIGHT),
            self._height - _BOTTOM - y / self._y_to * (self._height - _TOP - _BOTTOM),
        )

    def markup(self, standalone: bool) -> str:
        chart, width, height = self._chart, self._width, self._height
        size = f' width="{width}" height="{height}"' if standalone else ""
        said = escape(f"{chart.title}. {chart.y_label} against {chart.x_label}.")
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}"{size} '
            f'role="img" aria-label="{said}">'
        ]
        if standalone:
            ground = (
                f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>'
            )
            parts += [f"<style>\n{STYLE}</style>", ground]
        parts += [f'<text class="title" x="14" y="27">{escape(chart.title)}</text>']
        parts += self._axes()
        parts += [self._path(line) for line in chart.lines]
        parts += [self._label(line) for line in chart.lines]  # over all lines
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _axes(self) -> list[str]:
        left, bottom = self.place(0, 0)
        right = self._width - _RIGHT
        parts = []
        for value in ticks(self._y_to, 6):
            y = self.place(0, value)[1]
            parts += [
                f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>',
                f'<text x="{left - 8:.1f}" y="{y + 4.5:.1f}" text-anchor="end">{value:g}</text>',
            ]
        for value in ticks(self._x_to, max(3, self._width // 90)):
            x = self.place(value, 0)[0]
            parts.append(f'<text x="{x:.1f}" y="{bottom + 19:.1f}" text-anchor="middle">{value:g}</text>')
        middle = (left + right) / 2
        parts += [
            f'<text x="{middle:.1f}" y="{self._height - 10}" text-anchor="middle">'
            f"{escape(self._chart.x_label)}</text>",
            f'<text x="14" y="{_TOP - 8}">{escape(self._chart.y_label)}</text>',
        ]
        return parts

    def _path(self, line: Line) -> str:
        places = [self.place(x, y) for x, y in line.points]
        steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashed = " dashed" if line.dashed else ""
        return f'<path class="{line.colour}{dashed}" d="M{steps}"/>' if places else ""

    def _label(self, line: Line) -> str:
        if not line.points or not line.name:
            return ""
        wanted = line.at * self._x_to
        x, y = self.place(*min(line.points, key=lambda point: abs(point[0] - wanted)))
        if line.side == "right":
            x, y, anchor = x + _BESIDE_LINE, y + _BESIDE_LINE, "start"
        else:
            y += _ABOVE_LINE if line.side == "above" else _BELOW_LINE
            anchor = "start" if line.at < 1 / 3 else "end" if line.at > 2 / 3 else "middle"
        return (
            f'<text class="label {line.colour}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(line.name)}</text>"
        )
