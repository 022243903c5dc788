"""The page: complete in itself, safe with any text, readable on a phone and in the dark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowtide.demo import charts, page
from lowtide.errors import WriteError
from tests.support.browser import Browser
from tests.support.stories import metrics, story


@pytest.fixture(scope="module", params=["trained", "quick"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.save(str(path), story(trained=request.param == "trained"))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.save(str(path), story())
    return path


def test_it_is_small_runs_nothing_and_fetches_nothing(made: Path) -> None:
    text = made.read_text()
    assert made.stat().st_size < 300_000
    assert "default-src 'none'" in text
    assert "script-src" not in text, "the default forbids it"
    assert "<script" not in text
    assert re.findall(r"""(?:src|href)=["']([^"']*)""", text) == ["data:,"], "the icon that there is not"
    assert not re.search(r"url\(|@import", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\{\{(?!machine\}\}|when\}\})", text), "no place of the template is left"


def test_what_came_from_outside_is_text(trained: Path) -> None:
    text = trained.read_text()
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;" in text
    assert "{{machine}}" in text, "a sample is not a place in the template"
    assert "de&lt;mo&gt;" in text
    assert "bpe:&lt;1024&gt;" in text
    assert "Text to &lt;tokens&gt;" in text


def test_it_tells_the_figures(trained: Path) -> None:
    text = trained.read_text()
    for part in (
        "np.memmap ended with 514.0 MiB, lowtide never had more than 5.0 MiB",
        "2.0 times np.memmap&#x27;s in order, and 0.5 times shuffled",
        "3,671,857",
        "<td>lowtide</td><td>shuffled</td><td>5.0 MiB</td><td>0.67</td>",
        "716,800",
        "0.2 %",
        "validation: 3.50",
        "412 MiB",
    ):
        assert part in text, part


def test_without_training_it_says_how_to_have_it(tmp_path: Path) -> None:
    page.save(str(tmp_path / "quick.html"), story(trained=False))
    text = (tmp_path / "quick.html").read_text()
    assert "pip install 'lowtide[gpt]'" in text
    assert "What it writes" not in text


def test_a_walk_that_was_stopped_is_marked(tmp_path: Path) -> None:
    told = story()
    told.walks[3].figures["complete"] = False
    page.save(str(tmp_path / "x.html"), told)
    assert "0.67 (stopped)" in (tmp_path / "x.html").read_text()


def test_the_figures_are_json(tmp_path: Path) -> None:
    told = json.loads(json.dumps(story().to_json()))
    assert [(walk["reader"], walk["shuffled"], walk["peak"]) for walk in told["walks"]][1] == (
        "lowtide", False, 4 * 2**20,
    )  # fmt: skip
    assert told["tokens"] == 3_671_857
    assert told["machine"]["lowtide"]
    assert story(trained=False).to_json()["training"] is None


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError):
        page.save(str(tmp_path / "no" / "x.html"), story())


def test_long_runs_are_drawn_with_as_many_points_as_can_be_told_apart() -> None:
    steps = metrics(10_001)
    line = charts.loss(steps).lines[0]
    assert len(line.points) <= 250
    drawn = dict(line.points)
    assert {1, 10_001} <= drawn.keys()
    assert all(steps[int(step) - 1]["train_loss"] == loss for step, loss in drawn.items())
    assert charts.thinned([]) == []
    assert [line.name for line in charts.loss(metrics(3)).lines] == ["training"], "nothing was evaluated yet"


_CUT_OFF = """
[...document.querySelectorAll('.SHOWN svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
  }).map(text => text.textContent);
})
"""
_HEIGHTS = (
    "[...document.querySelectorAll('.SHOWN svg text')].map(text => text.getBoundingClientRect().height)"
)


@pytest.mark.parametrize(("width", "shown", "hidden"), [(360, "narrow", "wide"), (1100, "wide", "narrow")])
def test_in_a_browser(made: Path, width: int, shown: str, hidden: str) -> None:
    with Browser(width, 900) as browser:
        for theme in ("light", "dark"):
            browser.open(made.as_uri(), theme)
            assert browser.errors == []
            assert browser.requests == [made.as_uri()]
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
            assert browser.run(f"document.querySelector('.{shown} svg').getBoundingClientRect().width") > 280
            assert browser.run(f"document.querySelector('.{hidden} svg').getBoundingClientRect().width") == 0
            assert browser.run(_CUT_OFF.replace("SHOWN", shown)) == []
            assert min(browser.run(_HEIGHTS.replace("SHOWN", shown))) >= 12, "letters that can be read"


def test_both_themes_have_colours_of_their_own(trained: Path) -> None:
    seen = []
    with Browser() as browser:
        for theme in ("light", "dark"):
            browser.open(trained.as_uri(), theme)
            style = "getComputedStyle(document.querySelector('{}')).{}"
            seen.append(
                [
                    browser.run(style.format("body", "backgroundColor")),
                    browser.run(style.format("svg path.theirs", "stroke")),
                    browser.run(style.format("svg path.ours", "stroke")),
                    browser.run(style.format("svg text.title", "fill")),
                ]
            )
    assert all(light != dark for light, dark in zip(*seen, strict=True))
    assert len(set(seen[0])) == len(set(seen[1])) == 4
