"""``lowtide report FILE``: an HTML page from a saved recording."""

from __future__ import annotations

import os

import click

from lowtide.cli.output import say


@click.command()
@click.argument("file", type=click.Path(), required=False)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File to write. [default: FILE with the suffix .html]"
)
def command(file: str | None, out: str | None) -> None:
    """Write the HTML report of FILE: the JSON of `lowtide profile --save`, or a .dat file of memory_profiler.

    FILE may be a recording that is not finished, because the profiler was killed or is still running. Without
    FILE, it is the last one that a killed `lowtide profile` left in the folder for temporary files. The page
    needs no network and no other file.

    \b
        lowtide report profile.json --out report.html
        lowtide report mprofile_20250101000000.dat
    """
    from lowtide._memory.profile import document, journal, report

    if file is None:
        file = journal.newest()
        if file is None:
            raise click.UsageError(
                "Missing argument 'FILE'; no unfinished recording is in the folder for temporary files."
            )
        out = out or os.path.basename(os.path.splitext(file)[0]) + ".html"  # not beside it
    out = out or os.path.splitext(file)[0] + ".html"
    recording = document.load(file)
    report.save(out, recording)
    say(f"report: {out}")
    for event in recording.get("events") or []:
        say(event["text"])
    say(recording["verdict"])
