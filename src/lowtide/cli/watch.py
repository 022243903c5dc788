"""``lowtide watch PID``: the memory of a running process, live."""

from __future__ import annotations

import sys
import time

import click

from lowtide._sizes import parse_size
from lowtide.cli.output import say


@click.command()
@click.argument("pid", type=int)
@click.option(
    "--every",
    type=click.FloatRange(0.05, 3600),
    metavar="SECONDS",
    help="Time between two pictures or lines. [default: 0.25 in a terminal, 1 elsewhere]",
)
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Stop after this time. [default: when the process ends]",
)
@click.option(
    "--budget",
    metavar="SIZE",
    help="Size of a full bar, such as 2GiB. [default: the container's limit, or the machine's memory]",
)
def command(pid: int, every: float | None, seconds: float | None, budget: str | None) -> None:
    """Show the memory of process PID and its children until it ends or Ctrl-C.

    Bars in a terminal, plain lines when piped; at the end the verdict so far, as from `lowtide profile`.

    \b
        lowtide watch 12345 --budget 2GiB
        lowtide watch 12345 --every 5 --for 60 > memory.txt
    """
    from lowtide._memory.profile import profiler

    watched = profiler.attach(pid, budget=None if budget is None else parse_size(budget))
    from lowtide._memory.profile import live

    stop_at = float("inf") if seconds is None else time.monotonic() + seconds
    try:
        if sys.stdout.isatty():
            live.show(watched, every or 0.25, stop_at)
        else:
            live.lines(watched, every or 1.0, stop_at)
    except KeyboardInterrupt:
        pass  # the usual way to end it
    watched.finish()
    from lowtide._memory.profile.verdict import judge

    say(judge(watched.recording).line)
