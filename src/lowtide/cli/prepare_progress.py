"""The progress of ``lowtide prepare``: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from lowtide._prepare.summary import Progress
from lowtide._printable import counted
from lowtide._sizes import format_size

_EVERY = 5.0  # seconds between two lines
_BAR = 16  # columns
_STAGE = len("alphabet")
_TRAINING = "training"  # merging pairs of tokens, whose progress the library does not report


@contextmanager
def showing() -> Iterator[Callable[[Progress], None]]:
    """A function that shows progress on standard error, since the summary is the output."""
    started: dict[str, float] = {}  # by stage
    if not sys.stderr.isatty():
        last = time.monotonic()

        def print_line(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            seconds = now - started.setdefault(progress.stage, now)
            if now - last >= _EVERY:
                last = now
                percent = 100 * progress.done // max(1, progress.total)
                part = "" if progress.stage == _TRAINING else f"{percent} %, "
                click.echo(f"{progress.stage} {part}{figures(progress, seconds)}", err=True)

        yield print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    # One line, however narrow the terminal: figures are left out before it would wrap.
    stage = TextColumn("{task.description}", table_column=Column(min_width=_STAGE, no_wrap=True))
    columns = (
        stage,
        BarColumn(_BAR, table_column=Column(min_width=_BAR)),
        TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True)),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console) as bar:
        row = bar.add_task("reading", total=None, figures="")

        def update(progress: Progress) -> None:
            now = time.monotonic()
            seconds = now - started.setdefault(progress.stage, now)
            bar.update(
                row,
                description=progress.stage,
                completed=progress.done,
                total=None if progress.stage == _TRAINING else progress.total,
                figures=figures(progress, seconds, console.width - _STAGE - _BAR - 3),
            )

        yield update


def figures(progress: Progress, seconds: float, width: int = 200) -> str:
    """Documents, tokens, tokens per second and the time left, as far as they fit into ``width``.

    >>> progress = Progress("tokens", 75, 100, 50, documents=12, tokens=4000)
    >>> figures(progress, seconds=10)
    '75 B of 100 B, 12 documents, 4,000 tokens, 133 tokens/s, 0:00:10 left'
    >>> figures(progress, seconds=10, width=48)
    '75 B of 100 B, 133 tokens/s, 0:00:10 left'
    """
    if progress.stage == _TRAINING:
        return f"the tokenizer, on {format_size(progress.done)} of text"
    parts = {"size": f"{format_size(progress.done)} of {format_size(progress.total)}"}
    fresh = progress.done - progress.earlier
    if progress.stage == "tokens":
        parts["documents"] = counted(progress.documents, "document")
        parts["tokens"] = f"{progress.tokens:,} tokens"
        if seconds > 0 and progress.done:
            # Tokens of earlier runs did not take time in this run.
            parts["speed"] = f"{progress.tokens * fresh / progress.done / seconds:,.0f} tokens/s"
    if seconds > 0 and fresh > 0:
        left = max(0, int(seconds * (progress.total - progress.done) / fresh))
        parts["left"] = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
    for name in ("documents", "tokens", "speed", "size"):
        if len(", ".join(parts.values())) > width:
            parts.pop(name, None)
    return ", ".join(parts.values())
