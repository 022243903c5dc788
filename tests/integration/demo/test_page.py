"""The page: one file, safe with any text, readable on phones and in both themes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowtide.demo import charts, page
from lowtide.errors import WriteError
from tests.support.browser import Browser
from tests.support.stories import story


@pytest.fixture(scope="module", params=["trained", "quick"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.save(str(path), story(trained=request.param == "trained"))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    page.save(str(path), story())
    return path


def test_page_is_small_without_scripts_or_external_references(report: Path) -> None:
    text = report.read_text()
    assert report.stat().st_size < 300_000
    assert "default-src 'none'" in text
    assert "script-src" not in text, "the default forbids it"
    assert "<script" not in text
    references = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)""", text)
    assert all(one.startswith("#") or one == "data:," for pair in references for one in pair if one)
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }, "names of SVG"
    assert not re.search(r"\{\{(?!machine\}\}|when\}\})", text), "every placeholder is filled"


def test_foreign_text_is_escaped(trained: Path) -> None:
    text = trained.read_text()
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;" in text
    assert "{{machine}}" in text, "a sample is not a template"
    assert "de&lt;mo&gt;" in text
    assert "bpe:&lt;1024&gt;" in text
    assert "Text to &lt;tokens&gt;" in text


def test_page_has_the_figures(trained: Path) -> None:
    text = trained.read_text()
    for part in (
        "np.memmap used up to 514.0 MiB, lowtide up to 5.0 MiB",
        "2.0 times np.memmap&#x27;s in order, and 0.5 times shuffled",
        "3,671,857",
        "<td>lowtide</td><td>shuffled</td><td>5.0 MiB</td><td>0.67</td>",
        "716,800",
        "0.2 %",
        "validation: 3.50",
        "412 MiB",
    ):
        assert part in text, part


def test_page_without_training_has_install_command(tmp_path: Path) -> None:
    page.save(str(tmp_path / "quick.html"), story(trained=False))
    text = (tmp_path / "quick.html").read_text()
    assert "pip install 'lowtide[gpt]'" in text
    assert "What it writes" not in text


def test_incomplete_walk_is_marked(tmp_path: Path) -> None:
    content = story()
    content.walks[3].figures["complete"] = False
    page.save(str(tmp_path / "x.html"), content)
    assert "0.67 (stopped)" in (tmp_path / "x.html").read_text()


def test_figures_are_json_serialisable(tmp_path: Path) -> None:
    figures = json.loads(json.dumps(story().to_json()))
    assert [(walk["reader"], walk["shuffled"], walk["peak"]) for walk in figures["walks"]][1] == (
        "lowtide", False, 4 * 2**20,
    )  # fmt: skip
    assert figures["tokens"] == 3_671_857
    assert figures["machine"]["lowtide"]
    assert story(trained=False).to_json()["training"] is None


def test_unwritable_page_raises(tmp_path: Path) -> None:
    with pytest.raises(WriteError):
        page.save(str(tmp_path / "no" / "x.html"), story())


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
def test_page_renders_in_browser_without_errors(report: Path, width: int, shown: str, hidden: str) -> None:
    with Browser(width, 900) as browser:
        for theme in ("light", "dark"):
            browser.open(report.as_uri(), theme)
            assert browser.errors == []
            assert browser.requests == [report.as_uri()]
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "no overflow"
            assert browser.run(f"document.querySelector('.{shown} svg').getBoundingClientRect().width") > 280
            assert browser.run(f"document.querySelector('.{hidden} svg').getBoundingClientRect().width") == 0
            assert browser.run(_CUT_OFF.replace("SHOWN", shown)) == []
            assert min(browser.run(_HEIGHTS.replace("SHOWN", shown))) >= 12, "readable letters"


def test_both_themes_have_different_colours(trained: Path) -> None:
    seen = []
    with Browser() as browser:
        for theme in ("light", "dark"):
            browser.open(trained.as_uri(), theme)
            colours = browser.run("""
                ["ours", "theirs", "text"].map(name => {
                  const line = document.querySelector(`.chart [style*="var(--${name})"]`);
                  const style = getComputedStyle(line);
                  return style.stroke === "none" ? style.fill : style.stroke;
                })
            """)
            seen.append([browser.run("getComputedStyle(document.body).backgroundColor"), *colours])
    assert all(light != dark for light, dark in zip(*seen, strict=True))
    assert len(set(seen[0])) == len(set(seen[1])) == 4


def test_curves_are_text_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "available", lambda: False)
    page.save(str(tmp_path / "x.html"), story())
    text = (tmp_path / "x.html").read_text()
    assert "<svg" not in text
    assert "<pre>np.memmap, in order\n" in text
    assert "▁" in text
    assert "pip install 'lowtide[plot]'" in text
