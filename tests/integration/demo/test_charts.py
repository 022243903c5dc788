"""Charts: every point where the axes say, both themes, nothing fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from lowtide.demo import charts
from tests.support.stories import metrics, story

MIB = 2**20


def lines(draw: charts.Draw) -> dict[str, list[tuple[float, float]]]:
    """The labels and points of what is drawn."""
    axes: Any = Figure().add_subplot()
    draw(axes)
    return {line.get_label(): [(x, y) for x, y in line.get_xydata()] for line in axes.get_lines()}


def test_two_curves_plot_every_sample_in_mib() -> None:
    walks = story().walks
    curves = lines(charts.two_curves(walks, 512 * MIB))
    assert list(curves) == [
        "np.memmap, in order: 512.0 MiB",
        "lowtide, in order: 4.0 MiB",
        "np.memmap, shuffled: 514.0 MiB",
        "lowtide, shuffled: 5.0 MiB",
    ]
    for points, walk in zip(curves.values(), walks, strict=True):
        assert points == [(x / MIB, y / MIB) for x, y in walk.figures["samples"]]


def test_long_runs_are_thinned_keeping_first_and_last_point() -> None:
    steps = metrics(10_001)
    points = lines(charts.loss(steps))["training"]
    assert len(points) <= 250
    assert (points[0][0], points[-1][0]) == (1, 10_001)
    assert all(steps[int(step) - 1]["train_loss"] == loss for step, loss in points)
    assert list(lines(charts.loss(metrics(3)))) == ["training"], "nothing was evaluated yet"
    assert list(lines(charts.memory(steps))) == ["412 MiB at the end"]


@pytest.mark.parametrize("standalone", [True, False])
def test_svg_has_no_external_references_or_fixed_colours(standalone: bool) -> None:
    text = charts.svg(charts.two_curves(story().walks, 512 * MIB), 720, 380, standalone=standalone)
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "Memory of a pass over 512.0 MiB"
    assert not re.search(r"@import|<script|#0000\d\d", text)
    assert all(
        one.startswith("#") for one in re.findall(r"""href=["']([^"']*)|url\(([^)]*)""", text)[0] if one
    )
    assert ("prefers-color-scheme: dark" in text) == standalone
    texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"MiB read", "MiB resident"} <= texts, "text stays text"


def test_readme_image_is_two_curves_chart() -> None:
    path = Path(__file__).parents[3] / "docs" / "images" / "two-curves.svg"
    root = ElementTree.fromstring(path.read_text())
    assert root.attrib["aria-label"] == "Memory of a pass over 1.0 GiB"
    assert "var(--theirs)" in path.read_text()
