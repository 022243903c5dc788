"""``lowtide watch [TARGET]``: the memory of running processes, live."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from lowtide.cli.options import SIZE
from lowtide.cli.output import say

if TYPE_CHECKING:
    from lowtide._memory.profile.export import Exporter
    from lowtide._memory.profile.profiler import Profiler


@click.command()
@click.argument("target", required=False)
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
    type=SIZE,
    metavar="SIZE",
    help="Size of a full bar, such as 2GiB. [default: the container's limit, or the machine's memory]",
)
@click.option(
    "--openmetrics",
    metavar="PORT|FILE",
    help="Publish the figures for Prometheus at http://127.0.0.1:PORT/metrics (for others: HOST:PORT), or in "
    "a file for a textfile collector.",
)
@click.option("--jsonl", is_flag=True, help="Print the figures as JSON, one line per interval.")
def command(
    target: str | None,
    every: float | None,
    seconds: float | None,
    budget: int | None,
    openmetrics: str | None,
    jsonl: bool,
) -> None:
    """Show the memory of TARGET until it ends or Ctrl-C.

    TARGET is a process number or a command's name, watched with its children; or the path of a cgroup, all
    processes of a container. [default: this container] Bars in a terminal, plain lines when piped; at the end
    the verdict so far, as from `lowtide profile`, and processes that the kernel killed for memory.

    \b
        lowtide watch train.py --budget 2GiB
        lowtide watch 12345 --every 5 --for 60 > memory.txt
        lowtide watch /sys/fs/cgroup/kubepods/pod7 --openmetrics 9464
    """
    from lowtide._memory.profile import targets

    watched = targets.attach(target, budget=budget)
    watched.look()  # before the imports, which take a while
    label = target or watched.recording.command[0]
    exporter = None
    if openmetrics is not None:
        from lowtide._memory.profile.export import Exporter

        exporter = Exporter(openmetrics, label)
        say(f"metrics: {exporter.address}", err=True)
    try:
        _watch(watched, label, every, seconds, exporter, jsonl)
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        if exporter is not None:
            exporter.close()
    watched.finish()
    from lowtide._memory.profile.verdict import judge

    verdict = judge(watched.recording).line
    events = watched.recording.events
    if jsonl:
        click.echo(json.dumps({"verdict": verdict, "events": [event._asdict() for event in events]}))
        return
    for event in events:
        say(event.text)
    say(verdict)


def _watch(
    watched: Profiler,
    label: str,
    every: float | None,
    seconds: float | None,
    exporter: Exporter | None,
    jsonl: bool,
) -> None:
    from lowtide._memory.profile import export, live

    watched.recording.series()  # imports NumPy, which takes a while
    stop_at = float("inf") if seconds is None else time.monotonic() + seconds

    def publish() -> None:
        if exporter is not None:
            exporter.publish(export.gauges(watched))

    if jsonl:
        while live.follow(watched, every or 1.0, stop_at):
            publish()
            age = time.monotonic() - watched.observer.started
            click.echo(export.json_line(age, label, export.gauges(watched)))
    elif sys.stdout.isatty():
        live.show(watched, every or 0.25, stop_at, publish)
    else:
        live.lines(watched, every or 1.0, stop_at, publish)
