"""Output of commands: control characters in names are shown, not obeyed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click

from lowtide._printable import printable


def say(line: object, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(line), err=err)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a line on a terminal until the block ends, for steps that take seconds."""
    terminal = sys.stderr.isatty()
    if terminal:
        sys.stderr.write(text)
        sys.stderr.flush()
    try:
        yield
    finally:
        if terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def transferring(text: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar of bytes; the function yielded updates it with ``advance``, ``completed`` or ``total``."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        yield partial(progress.update, progress.add_task(text, total=total))


def abandon() -> None:
    """Discard output that cannot be written; the interpreter would otherwise report it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
