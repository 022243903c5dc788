"""Exit statuses of commands, and the line that is printed for an error."""

from __future__ import annotations

import os
import re
import sys

import click

from lowtide._printable import printable
from lowtide.errors import MemoryBudgetExceeded

FAILED = 1
OVER_BUDGET = 3
GROWS = 4
INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
UNREAD = 141
"""What a shell reports for a program that writes to a pipe without a reader."""

_CALL = re.compile(r"lowtide\.(?:open|corpus)\((?:'[^']*'|\"[^\"]*\"|\.\.\.), ((?:[^()]|\([^()]*\))*)\)")
_SETTING = re.compile(r"(?<![\w/.-])(?P<name>[a-z]\w*)=(?P<value>'[^']*'|\"[^\"]*\"|\([^()]*\)|[\w.-]+)?")
_NAME = re.compile(r"(?<![\w/.'\"=-])[a-z]+(?:_[a-z]+)+(?![\w/.'\"=(-])")


def explain(error: BaseException, command: click.Command | None = None) -> str:
    """The message of an error, as one safe line in the words of the command line."""
    keep = "\n" if isinstance(error, MemoryBudgetExceeded) else ""  # the figures, a line for each
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the number that Python adds
        where = "" if error.filename is None else f"{os.fsdecode(error.filename) or repr('')}: "
        text = f"{where}{error.strerror}"
    return printable(in_options(text, command), keep)


def in_options(text: str, command: click.Command | None) -> str:
    """``text`` with arguments of Python's functions replaced by the options of a command.

    >>> source = click.Command("x", params=[click.Option(["--dtype"]), click.Option(["--text-field"])])
    >>> in_options("pass it, as in lowtide.open('a.bin', dtype='uint16'), or name text_field", source)
    'pass it, as in --dtype uint16, or name --text-field'
    """
    options = {flag: option for option in command.params for flag in option.opts} if command else {}

    def option(match: re.Match[str]) -> str:
        flag = "--" + match["name"].replace("_", "-")
        value = (match["value"] or "").strip("'\"()").replace(", ", ",").rstrip(",")
        known = options.get(flag)
        if name := options.get(f"--token-{match['name']}"):  # where the plain name is that of the model's
            flag, known = name.opts[0], name
        # Another setting may have the same name, as a model's dtype and that of a file.
        if known is None or (isinstance(known.type, click.Choice) and value not in known.type.choices):
            return match[0]
        return f"{flag} {value}".rstrip()

    def call(match: re.Match[str]) -> str:
        settings = [_SETTING.sub(option, result[0]) for result in _SETTING.finditer(match[1])]
        return " ".join(settings) if settings and all(one.startswith("--") for one in settings) else match[0]

    text = _SETTING.sub(option, _CALL.sub(call, text))
    text = re.sub(r"\b(\w+) \((--\1)\)", r"\2", text)  # "overwrite (--overwrite)"

    def name(match: re.Match[str]) -> str:
        flag = "--" + match[0].replace("_", "-")
        return flag if flag in options else match[0]

    return _NAME.sub(name, text)


def interrupted(remedy: str = "") -> None:
    """Print the line for Ctrl-C; on a terminal it follows the ``^C``."""
    start = "\n" if sys.stderr.isatty() else ""
    click.echo(f"{start}lowtide: interrupted{'; ' * bool(remedy)}{printable(remedy)}", err=True)
