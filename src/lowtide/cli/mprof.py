"""``lowtide mprof``: memory_profiler's ``mprof``, with the same files."""

from __future__ import annotations

import math
import os
import re
import sys

import click

from lowtide._memory import mprof
from lowtide._printable import printable
from lowtide.cli.options import Parsed
from lowtide.cli.output import say
from lowtide.errors import ArgumentError


def _window(text: str) -> tuple[float, float]:
    try:
        start, end = map(float, text.split(","))
    except ValueError:
        raise ArgumentError(f"{text!r} is not a window; pass two times in seconds, as in 0,20.5") from None
    return start, end


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Record the memory of a command over time, as memory_profiler's mprof does, in the same files.

    `lowtide profile` reports more: what grows and against what.

    \b
        lowtide mprof run train.py
        lowtide mprof plot -o memory.png
    """


@command.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--interval",
    "-T",
    type=click.FloatRange(0.001, 3600),
    default=0.1,
    metavar="SECONDS",
    help="Seconds between samples.",
)
@click.option("--include-children", "-C", is_flag=True, help="Add the memory of all descendants.")
@click.option("--multiprocess", "-M", is_flag=True, help="Record each child separately.")
@click.option("--exit-code", "-E", is_flag=True, help="Exit with the status of the command.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), help="The file. [default: mprofile_<time>.dat]"
)
@click.option("--python", is_flag=True, hidden=True)
@click.option("--nopython", is_flag=True, hidden=True)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def run(
    interval: float,
    include_children: bool,
    multiprocess: bool,
    exit_code: bool,
    output: str | None,
    python: bool,
    nopython: bool,
    words: tuple[str, ...],
) -> None:
    """Run COMMAND and record its memory.

    A script that ends in .py is run with Python, and calls of its functions that are marked with @profile are
    shown in the plot.
    """
    say(f"mprof: Sampling memory every {interval}s", err=True)
    name = os.path.basename(words[0])
    script = name.endswith(".py")
    if script:
        words = (sys.executable, *words)
    elif python and not name.startswith("python"):
        words = (sys.executable, "-m", *words)
    marks = (script or python) and not nopython
    status = mprof.record(words, output, interval, include_children, multiprocess, marks)
    if exit_code:
        sys.exit(128 - status if status < 0 else status)


@command.command("list")
def list_() -> None:
    """List the recordings in this folder, with their numbers."""
    for number, path in enumerate(mprof.paths()):
        moment = re.sub(r"mprofile_(....)(..)(..)(..)(..)(..)\.dat", r"\4:\5:\6 \3/\2/\1", path)
        say(f"{number} {path} {moment}")


@command.command(context_settings={"ignore_unknown_options": True})
@click.option("--func", metavar="NAME", help="The peak while this function ran, such as __main__.load.")
@click.argument("recordings", nargs=-1)
def peak(func: str | None, recordings: tuple[str, ...]) -> None:
    """Print the peak of RECORDINGS, by path or number. [default: the newest]"""
    for path in mprof.paths(recordings or ("-1",)):
        recorded = mprof.read(path)
        highest = max(recorded.curve.sizes if func is None else recorded.sizes_in(func), default=math.nan)
        click.echo(f"{printable(path)}\t{highest:.3f} MiB".replace("nan", "NaN"))
        for name, child in recorded.children.items():
            click.echo(f"  Child {printable(name)}\t\t\t{max(child.sizes):.3f} MiB")


@command.command(context_settings={"ignore_unknown_options": True})
@click.option("--title", "-t", help="The title. [default: the command]")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="The picture. [default: a window]")
@click.option("--no-function-ts", "-n", is_flag=True, help="Leave out the calls of functions.")
@click.option(
    "--window",
    "-w",
    type=Parsed("window", _window),
    metavar="FROM,TO",
    help="Plot these seconds only, as in 0,20.5.",
)
@click.option("--slope", "-s", is_flag=True, help="Add a trend line, and its slope to the legend.")
@click.argument("recordings", nargs=-1)
def plot(
    title: str | None,
    output: str | None,
    no_function_ts: bool,
    window: tuple[float, float] | None,
    slope: bool,
    recordings: tuple[str, ...],
) -> None:
    """Plot RECORDINGS, by path or number, with matplotlib. [default: the newest]"""
    mprof.plot(mprof.paths(recordings or ("-1",)), title, output, not no_function_ts, window, slope)


@command.command(context_settings={"ignore_unknown_options": True})
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@click.argument("recordings", nargs=-1, required=True)
def rm(dry_run: bool, recordings: tuple[str, ...]) -> None:
    """Remove RECORDINGS, by path or number."""
    _remove(mprof.paths(recordings), dry_run)


@command.command()
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
def clean(dry_run: bool) -> None:
    """Remove all recordings in this folder."""
    _remove(mprof.paths(), dry_run)


def _remove(paths: list[str], dry_run: bool) -> None:
    for path in paths:
        if dry_run:
            say(path)
        else:
            os.remove(path)
