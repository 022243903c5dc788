"""Curves of block characters."""

from __future__ import annotations

from lowtide.demo.terminal import area

_LEVELS = " ▁▂▃▄▅▆▇█"


def heights(lines: list[str]) -> list[int]:
    """Eighths of a line that each column is high."""
    return [sum(_LEVELS.index(line[column]) for line in lines) for column in range(len(lines[0]))]


def test_diagonal_rises_from_column_to_column() -> None:
    lines = area([(0, 0), (100, 100)], 100, 100, width=20, height=5)
    result = heights(lines)
    assert [len(line) for line in lines] == [20] * 5
    assert result == sorted(set(result)), "each higher than the one before"
    assert result[-1] >= 38


def test_low_flat_line_is_visible() -> None:
    assert heights(area([(0, 1), (1000, 1)], 1000, 1000, width=10, height=4)) == [1] * 10
    assert heights(area([(0, 0), (1000, 0)], 1000, 1000, width=10, height=4)) == [0] * 10


def test_stopped_walk_ends_at_its_last_point() -> None:
    assert heights(area([(0, 8), (50, 8)], 100, 8, width=10, height=1)) == [8] * 5 + [0] * 5


def test_area_stays_within_frame() -> None:
    assert heights(area([(0, 50), (10, 50)], 10, 8, width=3, height=2)) == [16] * 3
    assert heights(area([], 10, 8, width=3, height=2)) == [0] * 3
