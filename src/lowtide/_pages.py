"""HTML pages from templates with placeholders such as ``{{title}}``."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from lowtide._printable import printable


def escape(text: object) -> str:
    """Escape ``text`` for HTML, and write control characters as escapes.

    >>> escape("<b>\\x1b")
    '&lt;b&gt;\\\\x1b'
    """
    return html.escape(printable(text))


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Fill in the placeholders of the file ``template``; ``parts`` are HTML already.

    >>> _ = (tmp / "page.html").write_text("<h1>{{title}}</h1>")
    >>> fill(str(tmp / "page.html"), {"title": "{{tide}}"})
    '<h1>{{tide}}</h1>'
    """
    with open(template, encoding="utf-8") as file:
        # In one pass: what looks like a placeholder inside a part stays as it is.
        return re.sub(r"\{\{(.*?)\}\}", lambda place: parts[place[1]], file.read())
