"""The help of a command on its page: ``<!-- help: info -->`` becomes what ``lowtide info --help`` prints."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import click

_PLACE = re.compile(r"^<!-- help: (\w+) -->$", re.MULTILINE)
_WIDTH = 84  # what fits into a page beside its two columns


def _help(result: re.Match[str]) -> str:
    command: click.Command = import_module(f"lowtide.cli.{result[1]}").command
    context = click.Context(
        command, info_name=f"lowtide {result[1]}", max_content_width=_WIDTH, show_default=True
    )
    context.terminal_width = _WIDTH
    return f"```text\n{command.get_help(context)}\n```"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls it for each page."""
    return _PLACE.sub(_help, markdown)
