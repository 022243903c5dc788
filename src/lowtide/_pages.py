"""HTML pages from templates with places such as ``{{title}}``."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from lowtide._printable import printable


def escape(text: object) -> str:
    """``text`` as a part of a page: never markup, and with control characters written out.

    >>> escape("<b>\\x1b")
    '&lt;b&gt;\\\\x1b'
    """
    return html.escape(printable(text))


def fill(template: str, parts: Mapping[str, str]) -> str:
    """The page of the file ``template``. The parts are HTML already.

    >>> _ = (tmp / "page.html").write_text("<h1>{{title}}</h1>")
    >>> fill(str(tmp / "page.html"), {"title": "{{tide}}"})
    '<h1>{{tide}}</h1>'
    """
    with open(template, encoding="utf-8") as file:
        # One pass over the template: what is put in is never looked at again.
        return re.sub(r"\{\{(.*?)\}\}", lambda place: parts[place[1]], file.read())
