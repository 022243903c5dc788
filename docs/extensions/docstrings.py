"""What the docstrings need to become Markdown: their examples in fences, their references as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n?(?:^(?![ ]*$).*\n?)*)+", re.MULTILINE)
_ROLE = re.compile(r":(?:class|meth|func|mod|attr):`([^`]*)`")


class Docstrings(griffe.Extension):
    """Fences around ``>>>`` and what follows it up to a blank line; no roles of reStructuredText."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = _ROLE.sub(r"`\1`", obj.docstring.value).replace("\b\n", "")
            obj.docstring.value = _EXAMPLE.sub(lambda result: f"```pycon\n{result[0].rstrip()}\n```\n", text)
