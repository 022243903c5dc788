"""``lowtide doctor``: what this machine and container support."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from lowtide._printable import printable


@click.command()
@click.argument("path", type=click.Path(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(path: str, as_json: bool) -> None:
    """Examine this machine and container, for files at PATH [default: this folder].

    Prints a line per finding: memory and its limit, what the kernel reports, how files can be read; and
    advice where something is missing.

    \b
        lowtide doctor /data
    """
    from lowtide._memory import doctor

    findings = doctor.examine(path)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
        return
    marks = {True: ("✓", "green"), False: ("!", "yellow"), None: ("?", "blue")}
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, color = marks[finding.fine]
        click.echo(f"{click.style(mark, fg=color)} {finding.name:<{width}}  {printable(finding.value)}")
        if finding.advice:
            click.echo(f"  {'':<{width}}  {click.style(printable(finding.advice), dim=True)}")
