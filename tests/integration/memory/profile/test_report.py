"""The page: self-contained, safe with any name, and working in a real browser."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from lowtide._memory.profile import dat, document, report
from lowtide._memory.profile.events import Event
from lowtide._memory.profile.recording import Charges, Detail, Point, Recording
from lowtide.errors import FormatError, WriteError
from tests.support.browser import Browser

MIB = 2**20
NASTY = "/data/</script><img src=x onerror=alert(1)>&\"'{{data}}.bin"


def recording(**changes: Any) -> Recording:
    """A walk through a mapped file with a nasty name, of 300 points."""
    trace = Recording(["python", "train.py", NASTY], 1, 1.7e9, 0.01, budget=256 * MIB)
    trace.ended, trace.status = 1.7e9 + 3, 0
    trace.blind = ["<b>nothing</b> & all"]
    for index in range(300):
        file = 1.6 * index * MIB
        trace.add(
            Point(
                index * 0.01, 0, 1, 40 * MIB, int(file), 0, int(file), 4 * MIB, int(file), index // 9, index
            )
        )
    for index in (0, 150, 299):
        size = int(1.6 * index * MIB)
        trace.details.add(
            Detail(
                index * 0.01,
                0,
                (0, 0, 0),
                (0, 0, 0),
                {NASTY: size},
                0,
                0,
                2**40,
                0,
                {NASTY: 512 * MIB},
                99,
                None,
                None,
            )
        )
    for name, value in changes.items():
        setattr(trace, name, value)
    return trace


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.save(str(path), document.of(recording()))
    return path


def test_page_is_small_without_external_references(page: Path) -> None:
    text = page.read_text()
    assert page.stat().st_size < 200_000
    assert not re.search(r"""(src|href)=["'](?!data:)""", text.split("<script>")[0])
    assert "default-src 'none'" in text
    assert "connect-src" not in text, "the default forbids it"
    assert "unsafe-eval" not in text


def test_names_are_escaped_in_html(page: Path) -> None:
    text = page.read_text()
    assert "<img src=x" not in text
    assert "<b>nothing</b>" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "{{data}}.bin" in text, "a name is not a place in the template"


def test_verdict_is_page_heading(page: Path) -> None:
    text = page.read_text()
    assert '<h1 id="verdict">grows: ' in text
    assert "Pages of a mapped file stay resident once touched" in text


def test_words_claim_nothing_that_is_not_known() -> None:
    level = dat.parse((b"MEM 50 %d" % index for index in range(99)), "x.dat")
    text = report.render(document.of(level))
    assert "Memory stayed within 0 MiB of where it was at the start." in text, "nothing is known of reads"
    assert "<dt>processes</dt><dd>–</dd>" in text
    assert "over budget" not in text


def test_what_ended_the_command_and_its_budget_stand_on_top() -> None:
    text = report.render(document.of(recording(status=-9)))
    assert "ended by SIGKILL" in text
    assert re.search(r"over budget: peak 51\d\.\d MiB, the budget is 256\.0 MiB", text)
    killed = Recording(["x"], 1, 1.7e9, 0.01, events=EVENTS)
    assert "The curve does not decide it" not in report.render(document.of(killed))
    assert "ended with status 3" in report.render(document.of(recording(status=3)))


def test_table_shows_when_file_was_measured() -> None:
    """The last look at files may be long before the end of the curve."""
    trace = recording()
    trace.details[:] = trace.details[:2]
    figures = document.of(trace)
    (row,) = figures["mappings"]
    assert (row["resident"], row["resident_at"]) == (240 * MIB, 1.5)
    assert figures["samples"][-1]["mapped"] > 470 * MIB
    assert "240.0 MiB<small>at 1.5 s</small>" in report.render(figures)
    del row["resident_at"]  # a file of an earlier version
    assert "<em>240.0 MiB</em>" in report.render(figures)


def test_unwritable_page_raises(tmp_path: Path) -> None:
    with pytest.raises(WriteError):
        report.save(str(tmp_path / "no" / "x.html"), document.of(recording()))


def test_long_recording_is_thinned_keeping_peak() -> None:
    trace = recording()
    point = trace.points[-1]
    for index in range(4000):
        trace.add(point._replace(time=4 + index * 0.01, anon=10**10 if index == 1234 else point.anon))
    rows = report._chart_data(document.of(trace))["rows"]
    assert len(rows) <= 900
    assert max(row["heap"] for row in rows) == 10**10, "the peak is among them"


HEAP, HEAP_DARK = "rgb(31, 111, 139)", "rgb(79, 179, 209)"
MAPPED, MAPPED_DARK = "rgb(232, 131, 58)", "rgb(242, 161, 98)"


def _colors(browser: Browser) -> list[str]:
    script = "[...document.querySelectorAll('#chart svg path')].map(p => getComputedStyle(p).fill)"
    data: list[str] = browser.run(script)
    return data


def test_page_renders_in_browser_without_errors(page: Path) -> None:
    address = page.as_uri()
    with Browser() as browser:
        for theme, heap, mapped in (("light", HEAP, MAPPED), ("dark", HEAP_DARK, MAPPED_DARK)):
            browser.open(address, theme)
            browser.wait("document.getElementById('chart').dataset.axis === 'time'")
            assert heap in _colors(browser), "the heap's area is drawn"
            assert mapped in _colors(browser), "and that of mapped files"
            texts = browser.run("[...document.querySelectorAll('#chart svg text')].map(t => t.textContent)")
            assert "seconds" in texts
            assert any(text.startswith("budget 256") for text in texts)
            before = browser.run("document.querySelector('#chart svg').outerHTML")

            browser.click("[data-axis=bytes_read]")
            browser.wait("document.getElementById('chart').dataset.axis === 'bytes_read'")
            texts = browser.run("[...document.querySelectorAll('#chart svg text')].map(t => t.textContent)")
            assert "MiB read" in texts
            assert "seconds" not in texts
            assert browser.run("document.querySelector('#chart svg').outerHTML") != before
            assert browser.run("document.querySelector('[data-axis=bytes_read]').ariaPressed") == "true"

            browser.click("[data-axis=time]")
            browser.wait("document.getElementById('chart').dataset.axis === 'time'")
            assert browser.run("document.getElementById('verdict').textContent").startswith("grows: ")
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
            assert browser.errors == []
            assert browser.requests == [address]


def test_pointer_shows_tooltip(page: Path) -> None:
    with Browser() as browser:
        browser.open(page.as_uri())
        browser.wait("document.getElementById('chart').dataset.axis === 'time'")
        box = browser.run(
            "(b => [b.x, b.y, b.width])(document.querySelector('#chart svg').getBoundingClientRect())"
        )
        for step in range(5):
            browser.move(box[0] + box[2] * 0.5 + step, box[1] + 150)
        browser.wait("document.querySelector('#tooltip.visible')?.textContent.includes('mapped file')")
        assert browser.errors == []


def test_theme_switch_recolours_chart(page: Path) -> None:
    with Browser() as browser:
        browser.open(page.as_uri(), "light")
        browser.wait("document.getElementById('chart').dataset.ready === '1'")
        assert HEAP in _colors(browser)
        browser.theme("dark")
        assert HEAP_DARK in _colors(browser)


def test_container_curves_replace_page_cache_under_limit(tmp_path: Path) -> None:
    trace = recording()
    trace.limit = 2**31
    for index in range(100):
        trace.add(Charges(index * 0.03, (200 + index) * MIB, (100 + index) * MIB, MIB, 0, 60 * MIB, 0))
    path = tmp_path / "container.html"
    report.save(str(path), document.of(trace))
    with Browser() as browser:
        browser.open(path.as_uri())
        legend = browser.run("[...document.querySelectorAll('#legend li')].map(item => item.textContent)")
        assert "usage of the container" in legend
        assert "its kernel memory" in legend
        assert not any("page cache" in label for label in legend)
        heights = browser.run(
            "['usage', 'working_set'].map(name => document.querySelector(`polyline.${name}`).getBBox().y)"
        )
        assert heights[0] < heights[1], "usage is above the working set"
        assert browser.errors == []


def test_unclear_verdict_has_distinct_text_and_style(tmp_path: Path) -> None:
    text = report.render(document.of(Recording(["true"], 1, 0.0, 0.01)))
    assert 'class="card verdict unclear"' in text
    assert "The curve does not decide it." in text


EVENTS = [
    Event("throttled", 0.4, 1.1, "the kernel throttled this container from <b>12</b>"),
    Event("oom_kill", 2.9, 2.9, "the kernel OOM-killed process 77 (python <i>x</i>)", 77),
]


def test_events_are_listed_and_drawn_on_both_axes(tmp_path: Path) -> None:
    path = tmp_path / "events.html"
    report.save(str(path), document.of(recording(events=EVENTS, limit=400 * MIB, status=-9)))
    assert "<i>x</i>" not in path.read_text()
    with Browser(360, 2400) as browser:
        browser.open(path.as_uri())
        words = browser.run("[...document.querySelectorAll('p.event')].map(p => p.textContent)")
        assert words[:2] == [event.text for event in EVENTS]
        for axis, share in (("time", 2.9 / 2.99), ("bytes_read", 0.97)):
            browser.click(f"[data-axis={axis}]")
            browser.wait(f"document.getElementById('chart').dataset.axis === '{axis}'")
            texts = browser.run("[...document.querySelectorAll('#chart svg text')].map(t => t.textContent)")
            assert {"OOM kill: 77", "throttled"} <= set(texts)
            left, right, at = browser.run(
                "(() => { const grid = document.querySelector('#chart .grid'), kill = "
                "document.querySelector('#chart line.oom_kill');"
                "return [+grid.getAttribute('x1'), +grid.getAttribute('x2'), +kill.getAttribute('x1')]; })()"
            )
            assert abs((at - left) / (right - left) - share) < 0.02, axis
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.errors == []


def test_labels_of_adjacent_lines_do_not_overlap(tmp_path: Path) -> None:
    path = tmp_path / "lines.html"
    report.save(str(path), document.of(recording(limit=260 * MIB)))
    with Browser() as browser:
        browser.open(path.as_uri())
        boxes = browser.run(
            "[...document.querySelectorAll('#chart text.budget, #chart text.limit')]"
            ".map(t => t.getBoundingClientRect()).map(b => [b.top, b.bottom]).sort((a, b) => a[0] - b[0])"
        )
        assert len(boxes) == 2
        assert boxes[0][1] <= boxes[1][0] + 2


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_kills_do_not_overlap_those_of_lines(tmp_path: Path, width: int) -> None:
    path = tmp_path / "kills.html"
    kills = [Event("oom_kill", 0.2 + index / 20, 0.2, "killed", 4711 + index) for index in range(3)]
    trace = recording(limit=540 * MIB, budget=560 * MIB, events=kills)
    report.save(str(path), document.of(trace))
    with Browser(width, 900) as browser:
        browser.open(path.as_uri())
        boxes = browser.run(
            "[...document.querySelectorAll('#chart text.strong')].map(t => t.getBoundingClientRect())"
            ".map(b => [b.left, b.right, b.top, b.bottom])"
        )
    assert len(boxes) == 5
    for index, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = max(left - other[1], other[0] - right, top - other[3], other[2] - bottom)
            assert apart >= -3, (boxes[index], other)


@pytest.mark.parametrize(("scale", "unit"), [(1.0, "seconds"), (200.0, "minutes"), (5000.0, "hours")])
def test_time_has_a_unit_that_reads_well(scale: float, unit: str, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    data = document.of(recording())
    for sample in data["samples"]:
        sample["time"] *= scale
    report.save(str(path), data)
    with Browser() as browser:
        browser.open(path.as_uri())
        texts = browser.run("[...document.querySelectorAll('#chart svg text')].map(t => t.textContent)")
    last = 2.99 * scale / {"seconds": 1, "minutes": 60, "hours": 3600}[unit]
    numbers = [float(text) for text in texts[texts.index("0", texts.index("0") + 1) :] if text[0].isdigit()]
    assert unit in texts
    assert last * 0.7 <= numbers[-1] <= last


@pytest.mark.parametrize("width", [360, 1600])
def test_page_fits_narrow_and_wide_screens(page: Path, width: int) -> None:
    with Browser(width, 900) as browser:
        browser.open(page.as_uri())
        browser.wait("document.getElementById('chart').dataset.axis === 'time'")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def one_point() -> Recording:
    trace = Recording(["x"], 1, 1.7e9, 0.01)
    trace.add(Point(0.0, 0, 1, 5, 5, 0, 0, 0, 0, 0, 0))
    return trace


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("no points", Recording(["true"], 1, 1.7e9, 0.01)),
        ("one point", one_point()),
        ("a .dat file", recording(split=False, details=[])),
        ("killed", recording(status=-9)),
    ],
)
def test_unusual_recordings_render_without_errors(name: str, trace: Recording, tmp_path: Path) -> None:
    path = tmp_path / "odd.html"
    report.save(str(path), document.of(trace))
    with Browser() as browser:
        browser.open(path.as_uri())
        browser.wait("document.getElementById('chart').dataset.ready")
        assert browser.errors == [], name
        assert browser.requests == [path.as_uri()]


def test_non_increasing_times_give_finite_chart_data() -> None:
    data = document.of(recording())
    for index, sample in enumerate(data["samples"]):
        sample["time"] = (0.0, 5e-324, -3.0)[index % 3]
        sample["bytes_read"] = 2**64 * (index % 2)
    data = report._chart_data(data)
    assert all(math.isfinite(value) for row in data["rows"] for value in row.values())
    assert min(row["rate"] for row in data["rows"]) == 0, "nothing is drawn below the axis"
    assert "NaN" not in report._script_json(data)


def test_null_figures_render_like_missing_ones() -> None:
    data = document.of(recording())
    names = (
        "started",
        "seconds",
        "processes",
        "page_cache_growth_mib",
        "mib_per_gib_read",
        "not_seen",
        "budget",
    )
    text = report.render({**data, **dict.fromkeys(names), "grows": False})
    missing = {name: value for name, value in data.items() if name not in names}
    assert report.render({**missing, "grows": False}) == text
    assert "1970-01-01" in text


@pytest.mark.parametrize(
    "change",
    [
        {"peak_mib": None}, {"bytes_read": "many"}, {"mib_per_gib_read": []}, {"mappings": [7]},
        {"mappings": [{"path": "x", "resident": "<b>"}]}, {"status": "0"}, {"seconds": {}}, {"verdict": 3},
    ],
)  # fmt: skip
def test_invalid_document_raises(change: dict[str, Any], tmp_path: Path) -> None:
    data = document.of(recording())
    (tmp_path / "good.json").write_text(json.dumps(data))
    assert report.render(document.load(str(tmp_path / "good.json")))
    (tmp_path / "bad.json").write_text(json.dumps({**data, **change}))
    with pytest.raises(FormatError, match=next(iter(change)).rstrip("s")):
        document.load(str(tmp_path / "bad.json"))


def test_control_characters_in_names_are_escaped() -> None:
    trace = recording(command=["python", "a\x1b[31m\u202e\udcff\n.py"])
    grown = {**trace.details[-1].mapped, "/data/b\x9b\u2028.bin": 2**30}
    trace.details[-1] = trace.details[-1]._replace(mapped=grown)
    text = report.render(document.of(trace)).split("<script>")[0]
    assert r"python a\x1b[31m\u202e\udcff\n.py" in text
    assert r"b\x9b\u2028.bin" in text
    assert not set(text) & set("\x1b\u202e\udcff\x9b\u2028")
