"""Exit statuses that commands share, and how an error becomes a line and one of them."""

from __future__ import annotations

import os
import re
import sys

import click

from lowtide.errors import MemoryBudgetExceeded
from lowtide.printable import printable

FAILED = 1
OVER_BUDGET = 3
INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C ended."""
UNREAD = 141
"""What a shell reports of a program that writes to a pipe which nobody reads any more."""


def explain(error: BaseException, command: click.Command | None = None) -> str:
    """What an error says, as one safe line in the words of the command line."""
    keep = "\n" if isinstance(error, MemoryBudgetExceeded) else ""  # the figures, a line for each
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the number that Python puts in front
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        text = f"{where}{error.strerror}"
    return printable(in_options(text, command), keep)


def in_options(text: str, command: click.Command | None) -> str:
    """``text`` with settings in backticks, as the library names them, as the options of a command.

    >>> shuffle = click.Command("shuffle", params=[click.Option(["--text-field"])])
    >>> in_options("specify `text_field`, or `dask`", shuffle)
    'specify --text-field, or `dask`'
    """
    flags = {flag for parameter in command.params for flag in parameter.opts} if command else set()

    def flag_or_same(match: re.Match[str]) -> str:
        flag = "--" + match[1].replace("_", "-")
        return flag if flag in flags else match[0]

    return re.sub(r"`(\w+)`", flag_or_same, text)


def interrupted(remedy: str = "") -> None:
    """The one line about Ctrl-C. Its ``^C`` stands on the terminal's line already."""
    start = "\n" if sys.stderr.isatty() else ""
    click.echo(f"{start}lowtide: interrupted{'; ' * bool(remedy)}{printable(remedy)}", err=True)
