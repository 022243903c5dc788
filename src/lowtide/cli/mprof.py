"""``lowtide mprof``: memory_profiler's ``mprof``, with the same files."""

from __future__ import annotations

import os
import re
import sys

import click

from lowtide._memory import mprof
from lowtide._printable import printable
from lowtide.cli.output import say


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
    """Run COMMAND and record its memory. A script that ends in .py is run with Python."""
    del nopython
    say(f"mprof: Sampling memory every {interval}s", err=True)
    if python and not words[0].endswith(".py") and not os.path.basename(words[0]).startswith("python"):
        words = (sys.executable, "-m", *words)
    _, status = mprof.record(words, output, interval, include_children, multiprocess)
    if exit_code:
        sys.exit(128 - status if status < 0 else status)


@command.command("list")
def list_() -> None:
    """List the recordings in this folder, with their numbers."""
    for number, path in enumerate(mprof.paths()):
        moment = re.sub(r"mprofile_(....)(..)(..)(..)(..)(..)\.dat", r"\4:\5:\6 \3/\2/\1", path)
        say(f"{number} {path} {moment}")


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("recordings", nargs=-1)
def peak(recordings: tuple[str, ...]) -> None:
    """Print the peak of RECORDINGS, by path or number. [default: the newest]"""
    for path in mprof.paths(recordings or ("-1",)):
        recorded = mprof.read(path)
        click.echo(f"{printable(path)}\t{max(recorded.curve.sizes):.3f} MiB")
        for name, child in recorded.children.items():
            click.echo(f"  Child {printable(name)}\t\t\t{max(child.sizes):.3f} MiB")


@command.command(context_settings={"ignore_unknown_options": True})
@click.option("--title", "-t", help="The title. [default: the command]")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="The picture. [default: a window]")
@click.argument("recordings", nargs=-1)
def plot(title: str | None, output: str | None, recordings: tuple[str, ...]) -> None:
    """Plot RECORDINGS, by path or number, with matplotlib. [default: the newest]"""
    mprof.plot(mprof.paths(recordings or ("-1",)), title, output)


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
