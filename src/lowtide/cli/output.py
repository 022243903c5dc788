"""What commands print: every name in it is shown, and none is obeyed."""

from __future__ import annotations

import os
import sys

import click

from lowtide._printable import printable


def say(line: object, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(line), err=err)


def abandon() -> None:
    """Drop output that cannot be written, about which the interpreter would complain at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
