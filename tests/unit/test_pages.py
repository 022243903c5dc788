"""HTML pages: what is filled in is text, and is never taken for a template."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide._pages import escape, fill


def test_markup_and_control_characters_are_escaped() -> None:
    assert escape("<b>\x1b&\"'") == "&lt;b&gt;\\x1b&amp;&quot;&#x27;"


def test_parts_are_filled_in_once(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<h1>{{title}}</h1><p>{{text}}</p>{{title}}")
    parts = {"title": "{{text}}", "text": "}}{{"}
    assert fill(str(tmp_path / "page.html"), parts) == "<h1>{{text}}</h1><p>}}{{</p>{{text}}"


def test_missing_part_raises(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{title}}")
    with pytest.raises(KeyError, match="title"):
        fill(str(tmp_path / "page.html"), {})
