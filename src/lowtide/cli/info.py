"""``lowtide info``: what a file is."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from lowtide.cli.options import Source, source_options
from lowtide.formats import members
from lowtide.formats.layout import Layout, Member
from lowtide.memory import pagecache
from lowtide.sizes import format_size


@click.command("info")
@click.argument("path", type=click.Path())
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(path: str, as_json: bool, **which: Any) -> None:
    """Say what the file PATH is: its format, and the shape, dtype and place of each array in it.

    Nothing but headers is read. A raw file needs --dtype, as np.memmap does.
    """
    source = Source(path, **which)
    if source.dtype or source.shape or source.offset or source.member:
        layout = source.layout()
        found = [Member(layout.name, layout.format, layout)]
    else:
        found = members(path)
    size = os.stat(path).st_size
    cached = pagecache.resident(path)
    if as_json:
        told = {
            "path": os.path.abspath(path),
            "bytes": size,
            "bytes_in_page_cache": cached[0] if cached else None,
            "arrays": [_as_dict(member) for member in found],
        }
        click.echo(json.dumps(told, indent=2))
        return
    _print(path, size, cached[0] if cached else None, found)


def _as_dict(member: Member) -> dict[str, Any]:
    layout = member.layout
    if layout is None:
        return {"name": member.name, "format": member.format, "problem": member.reason}
    return {
        "name": member.name,
        "format": member.format,
        "shape": list(layout.shape),
        "dtype": str(layout.dtype),
        "order": "F" if layout.fortran else "C",
        "offset": layout.offset,
        "bytes": layout.nbytes,
    }


def _print(path: str, size: int, cached: int | None, found: list[Member]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    kinds = " and ".join(sorted({member.format for member in found})) or "no arrays"
    here = "" if cached is None else f", {format_size(cached)} of it in the page cache"
    console.print(
        f"{path}: {kinds}, {format_size(size)}{here}", highlight=False, markup=False, soft_wrap=True
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("array", "shape", "dtype", "order", "offset", "size"):
        table.add_column(
            heading, justify="right" if heading in ("offset", "size") else "left", overflow="fold"
        )
    for member in found:
        table.add_row(
            *(_row(member.name, member.layout) if member.layout else (member.name or "-", "not in place"))
        )
    console.print(table)
    for member in found:
        if member.layout is None:
            console.print(f"{member.reason}", highlight=False, markup=False, soft_wrap=True)


def _row(name: str | None, layout: Layout) -> tuple[str, ...]:
    return (
        name or "-",
        str(layout.shape),
        str(layout.dtype),
        "F" if layout.fortran else "C",
        str(layout.offset),
        format_size(layout.nbytes),
    )
