"""``lowtide report FILE``: an HTML page from a saved recording."""

from __future__ import annotations

import os

import click

from lowtide.cli.output import say


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File to write. [default: FILE with the suffix .html]"
)
def command(file: str, out: str | None) -> None:
    """Write the HTML report of FILE: the JSON of `lowtide profile --save`, or a .dat file of memory_profiler.

    The page needs no network and no other file. Writing it needs lowtide[report].

    \b
        lowtide report profile.json --out report.html
        lowtide report mprofile_20250101000000.dat
    """
    from lowtide._memory.profile import document, report

    out = out or os.path.splitext(file)[0] + ".html"
    recording = document.load(file)
    report.save(out, recording)
    say(f"report: {out}")
    say(recording["verdict"])
