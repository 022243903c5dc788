"""``lowtide report FILE``: an HTML page from what was saved before."""

from __future__ import annotations

import os

import click

from lowtide.cli.output import say


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Where to write it; FILE with .html at its end unless told.",
)
def command(file: str, out: str | None) -> None:
    """Make the HTML report of FILE: JSON of `lowtide profile --json`, or a .dat file of memory_profiler.

    The page needs no network and nothing beside it. Making it needs lowtide[report].

    \b
        lowtide report profile.json --out report.html
        lowtide report mprofile_20250101000000.dat
    """
    from lowtide._memory import document, report

    out = out or os.path.splitext(file)[0] + ".html"
    found = document.load(file)
    report.save(out, found)
    say(f"report: {out}")
    say(found["verdict"])
