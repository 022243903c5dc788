"""Charts: well-formed, with every point where it belongs, and nothing fetched."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowtide.demo.svg import STYLE, Chart, Line, ticks

_SPACE = "{http://www.w3.org/2000/svg}"
CHART = Chart(
    "Memory <&> \"'",
    "GiB read",
    "GiB resident",
    [
        Line("up <b>", [(0, 0), (1, 2), (2, 4)], "theirs", 0.5, "right"),
        Line("flat", [(0, 1), (2, 1)], "ours", dashed=True),
    ],
)


def drawn(
    chart: Chart, width: int = 720, height: int = 340, *, standalone: bool = False
) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg(width, height, standalone=standalone))


def points(path: ElementTree.Element) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for x, y in (pair.split(",") for pair in path.attrib["d"].removeprefix("M").split())
    ]


def tick_places(root: ElementTree.Element, anchor: str, axis: str) -> dict[str, float]:
    """Where the numbers of an axis stand."""
    return {
        str(text.text): float(text.attrib[axis])
        for text in root.iter(f"{_SPACE}text")
        if text.attrib.get("text-anchor") == anchor and re.fullmatch(r"[\d.]+", str(text.text))
    }


@pytest.mark.parametrize("width", [340, 720])
def test_points_lie_where_the_axes_say(width: int) -> None:
    root = drawn(CHART, width)
    across, up = tick_places(root, "middle", "x"), tick_places(root, "end", "y")
    rising, flat = root.findall(f"{_SPACE}path")
    assert [x for x, _ in points(rising)] == [across["0"], across["1"], across["2"]]
    # The numbers of the vertical axis stand half a letter below their line.
    assert [y + 4.5 for _, y in points(rising)] == pytest.approx([up["0"], up["2"], up["4"]], abs=0.11)
    assert [y for _, y in points(flat)] == [points(flat)[0][1]] * 2
    assert "dashed" in flat.attrib["class"]
    assert "dashed" not in rising.attrib["class"]


def test_everything_lies_on_the_paper() -> None:
    root = drawn(CHART, 340, 300)
    for path in root.iter(f"{_SPACE}path"):
        assert all(0 < x < 340 and 0 < y < 300 for x, y in points(path))


def test_names_are_text_and_stand_at_their_lines() -> None:
    root = drawn(CHART)
    texts = {text.text: text for text in root.iter(f"{_SPACE}text")}
    assert CHART.title in texts
    label, (x, y) = texts["up <b>"], points(root.findall(f"{_SPACE}path")[0])[1]
    assert x < float(label.attrib["x"]) < x + 30
    assert abs(float(label.attrib["y"]) - y) < 20
    assert label.attrib["class"] == "label theirs"
    assert {"GiB read", "GiB resident"} <= texts.keys()
    assert CHART.title in root.attrib["aria-label"]


def test_the_axis_may_end_behind_the_last_point() -> None:
    chart = Chart("t", "x", "y", [Line("n", [(0, 1), (1, 1)], "ours")], x_to=2)
    root = drawn(chart)
    across = tick_places(root, "middle", "x")
    assert points(root.findall(f"{_SPACE}path")[0])[-1][0] == across["1"] < across["2"]


def test_a_file_of_its_own_has_a_ground_and_both_themes_and_fetches_nothing() -> None:
    text = CHART.svg(standalone=True)
    root = drawn(CHART, standalone=True)
    style = root.find(f"{_SPACE}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in str(style.text)
    assert root.find(f"{_SPACE}rect[@class='ground']") is not None
    assert (root.attrib["width"], root.attrib["height"]) == ("720", "340")
    assert not re.search(r"href|url\(|@import|script", text)
    assert text.count("http") == 1, "the name of SVG itself"


def test_within_a_page_it_has_neither() -> None:
    text = CHART.svg()
    assert "<style>" not in text
    assert "ground" not in text


def test_a_chart_of_nothing_is_a_chart() -> None:
    root = drawn(Chart("t", "x", "y", [Line("n", [], "ours")]))
    assert root.find(f"{_SPACE}path") is None
    drawn(Chart("t", "x", "y", [Line("n", [(0, 0)], "ours")]))


@pytest.mark.parametrize("high", [1e-3, 0.7, 1.0, 1.08, 7, 99.9, 1000, 1e7])
@pytest.mark.parametrize("most", [3, 6, 9])
def test_ticks_are_few_round_and_within(high: float, most: int) -> None:
    found = ticks(high, most)
    assert 2 <= len(found) <= most
    assert found[0] == 0
    assert found[-1] <= high * (1 + 1e-9)
    assert re.fullmatch(r"[125]e[+-]\d+", f"{found[1]:.0e}"), "a round step"


def test_the_picture_of_the_readme_is_what_the_demo_draws() -> None:
    """``lowtide demo`` writes it as ``curves.svg``; a change of the style wants it drawn again."""
    path = Path(__file__).parents[3] / "docs" / "images" / "two-curves.svg"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert STYLE in text
    labels = [str(one.text) for one in ElementTree.fromstring(text).iter(f"{_SPACE}text")]
    assert {"np.memmap, in order", "np.memmap, shuffled", "GiB read"} <= set(labels)
    assert any(re.fullmatch(r"lowtide, both orders: \d\.\d MiB", label) for label in labels)
