"""``lowtide info``: what a file is."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import click

from lowtide import publish
from lowtide.cli.options import Source, source_options
from lowtide.errors import LowtideError
from lowtide.formats import members, tokens
from lowtide.formats.layout import Layout, Member
from lowtide.memory import pagecache
from lowtide.sizes import format_size


@click.command("info")
@click.argument("path", type=click.Path())
@source_options
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="Which split of a token corpus."
)
@click.option("--eos", type=int, metavar="ID", help="Count documents by this token, which ends each.")
@click.option("--scan", is_flag=True, help="Read all tokens, so that the largest id is exact.")
@click.option("--verify", is_flag=True, help="Check every checksum of a corpus that lowtide prepared.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    path: str, as_json: bool, split: str, eos: int | None, scan: bool, verify: bool, **which: Any
) -> None:
    """Say what PATH is: an array file, or a token corpus (a folder, a file or a quoted glob).

    Of arrays it tells format, shape, dtype and place, from headers alone; a raw file needs --dtype, as
    np.memmap does. Of corpora it tells tokens, shards, dtype, documents and the largest id, from a sample
    unless --scan is given.

    \b
        lowtide info features.npy
        lowtide info train.bin --dtype uint16
        lowtide info data/openwebtext --json
        lowtide info --verify corpus
    """
    _tell_leftovers(path)
    if verify:
        from lowtide.formats import checksums

        checked = checksums.verify(path)
        said = f"{path}: {checked.files} files, {format_size(checked.nbytes)}, all as written"
        click.echo(json.dumps(vars(checked)) if as_json else said)
        return
    source = Source(path, **which)
    if _is_corpus(path, source, eos, scan):
        _tell_corpus(path, split, source.dtype, eos, scan, as_json)
        return
    if source.dtype or source.shape or source.offset or source.member:
        layout = source.layout()
        found = [Member(layout.name, layout.format, layout)]
    else:
        found = members(path)
    size = os.stat(path).st_size
    cached = pagecache.resident(path)
    if as_json:
        described = {
            "path": os.path.abspath(path),
            "bytes": size,
            "bytes_in_page_cache": cached[0] if cached else None,
            "arrays": [_as_dict(member) for member in found],
        }
        click.echo(json.dumps(described, indent=2))
        return
    _print(path, size, cached[0] if cached else None, found)


def _tell_leftovers(path: str) -> None:
    """What killed writers left behind: on standard error, for programs read the rest."""
    for leftover, size in publish.leftovers(path):
        click.echo(
            f"{leftover}: {format_size(size)} left by a writer that was killed; the next one of that file "
            f"writes over it, and `rm {shlex.quote(leftover)}` removes it",
            err=True,
        )


def _is_corpus(path: str, source: Source, eos: int | None, scan: bool) -> bool:
    """Whether it is to be told as tokens: a folder, a glob, a corpus' own file, or when so asked."""
    if eos is not None or scan or not os.path.isfile(path):
        return os.path.exists(path) or any(sign in path for sign in "*?[")
    if source.dtype or source.shape or source.offset or source.member:
        return False
    try:
        members(path)
    except LowtideError:
        try:
            tokens.find(path)
        except LowtideError:
            return False  # then the error about the array is the one to show
        return True
    return False


def _tell_corpus(
    path: str, split: str, dtype: str | None, eos: int | None, scan: bool, as_json: bool
) -> None:
    from lowtide.corpora import corpus

    with corpus(path, split=split, dtype=dtype, eos=eos) as found:
        documents = None
        if found.found.documents is not None or found.eos is not None or found.found.index is not None:
            documents = found.documents.count
        told: dict[str, Any] = {
            "path": os.path.abspath(path),
            "format": found.format,
            "tokens": len(found),
            "shards": len(found.found.segments),
            "dtype": str(found.dtype),
            "bytes": len(found) * found.dtype.itemsize,
            "documents": documents,
            "eos": found.eos,
            "vocab_size": found.vocab_size,
            "largest_id": found.largest(scan=scan),
            "largest_id_is": "exact" if scan or len(found) <= 2**18 else "of a sample",
        }
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(f"{path}: {told['format']} corpus, {format_size(told['bytes'])}")
    rows = {
        "tokens": f"{told['tokens']:,} of {told['dtype']}",
        "shards": f"{told['shards']:,}",
        "documents": "unknown; --eos ID counts them" if documents is None else f"{documents:,}",
        "largest id": f"{told['largest_id']:,} ({told['largest_id_is']})",
        "vocabulary": "unknown" if told["vocab_size"] is None else f"{told['vocab_size']:,} ids",
    }
    for name, value in rows.items():
        click.echo(f"  {name:<11} {value}")


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
