"""``lowtide info``: what a file is."""

from __future__ import annotations

import glob
import json
import os
import shlex
from itertools import chain
from typing import Any

import click

from lowtide._arrays.formats import members
from lowtide._arrays.formats.layout import Member
from lowtide._io import pagecache, publish
from lowtide._printable import printable
from lowtide._sizes import format_size
from lowtide._tokens.formats import find
from lowtide.cli.options import Source, source_options
from lowtide.cli.output import say
from lowtide.cli.status import FAILED, explain
from lowtide.errors import FormatError, LowtideError

_SUFFIXES = (".npy", ".npz", ".safetensors", ".h5", ".hdf5")


@click.command("info")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path())
@source_options
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="Which split of a token corpus."
)
@click.option("--eos", type=int, metavar="ID", help="Count documents by this token, which ends each.")
@click.option("--scan", is_flag=True, help="Read all tokens, so that the largest id is exact.")
@click.option("--verify", is_flag=True, help="Check every checksum of a corpus that lowtide prepared.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def command(
    ctx: click.Context, /, paths: tuple[str, ...], as_json: bool, verify: bool, **options: Any
) -> None:
    """Say what each PATH is: an array file, or a token corpus (a folder, a file or a quoted glob).

    Of arrays it tells format, shape, dtype and place, from headers alone; a raw file needs --dtype, as
    np.memmap does. Of corpora it tells tokens, shards, dtype, documents and the largest id, from a sample
    unless --scan is given. A folder of other array files is listed file by file. Ends with 1 if a file is
    damaged, after all have been shown.

    \b
        lowtide info features.npy
        lowtide info train.bin --dtype uint16
        lowtide info part-*.npy
        lowtide info data/openwebtext --json
        lowtide info --verify corpus
    """
    for path in paths:
        _tell_leftovers(path)
    told: list[dict[str, Any]] = []
    fine = True
    for path in paths if verify else chain.from_iterable(_files(path, **options) for path in paths):
        try:
            told.append(_verify(path, as_json) if verify else _show(path, as_json, **options))
            fine = fine and not told[-1].pop("damaged", False)
        except LowtideError as error:
            said = explain(error, ctx.command)
            say(f"lowtide: {said}", err=True)
            told.append({"path": os.path.abspath(path), "problem": said})
            fine = False
    if as_json and (fine or len(told) > 1 or "problem" not in told[0]):
        click.echo(json.dumps(told if len(told) > 1 else told[0], indent=2))
    if not fine:
        ctx.exit(FAILED)


def _verify(path: str, as_json: bool) -> dict[str, Any]:
    from lowtide._tokens.formats import checksums

    checked = checksums.verify(path)
    if not as_json:
        say(f"{path}: {checked.files} files, {format_size(checked.nbytes)}, all as written")
    return vars(checked)


def _show(
    path: str, as_json: bool, *, split: str, eos: int | None, scan: bool, **which: Any
) -> dict[str, Any]:
    """Print what ``path`` is, unless it is wanted as JSON, and give its description."""
    source = Source(path, **which)
    if _is_corpus(path, source, eos, scan):
        return _tell_corpus(path, split, source.dtype, eos, scan, as_json)
    if source.dtype or source.shape or source.offset or source.member:
        layout = source.layout()
        found = [Member(layout.name, layout.format, layout)]
    else:
        found = members(path)
    size = os.stat(path).st_size
    cached = pagecache.resident(path)
    if not as_json:
        _print(path, size, cached[0] if cached else None, found)
    damage = [member.error for member in found if isinstance(member.error, FormatError)]
    for error in damage:
        say(f"lowtide: {explain(error)}", err=True)
    return {
        "path": os.path.abspath(path),
        "bytes": size,
        "bytes_in_page_cache": cached[0] if cached else None,
        "arrays": [_as_dict(member) for member in found],
        "damaged": bool(damage),
    }


def _files(path: str, *, split: str, dtype: str | None, **_: Any) -> list[str]:
    """The path itself; or of a folder or a glob that is not a token corpus the array files in it."""
    if os.path.isfile(path):
        return [path]
    try:
        find(path, split=split, dtype=dtype)
    except LowtideError:
        return _array_files(path) or [path]
    return [path]


def _array_files(path: str) -> list[str]:
    """The files of a folder or a glob, if arrays are among them: those, and those that claim to be one."""
    inside = os.path.join(glob.escape(path), "*") if os.path.isdir(path) else path
    files, readable = [], False
    for file in sorted(filter(os.path.isfile, glob.glob(inside, recursive=True))):
        try:
            readable = any(member.layout for member in members(file)) or readable
        except LowtideError:
            if os.path.splitext(file)[1].lower() not in _SUFFIXES:
                continue
        files.append(file)
    return files if readable else []


def _tell_leftovers(path: str) -> None:
    """What killed writers left behind: on standard error, for programs read the rest."""
    for leftover, size in publish.leftovers(path):
        say(
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
            find(path)
        except LowtideError:
            return False  # then the error about the array is the one to show
        return True
    return False


def _tell_corpus(
    path: str, split: str, dtype: str | None, eos: int | None, scan: bool, as_json: bool
) -> dict[str, Any]:
    from lowtide._tokens.corpora import corpus

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
        return told
    say(f"{path}: {told['format']} corpus, {format_size(told['bytes'])}")
    rows = {
        "tokens": f"{told['tokens']:,} of {told['dtype']}",
        "shards": f"{told['shards']:,}",
        "documents": "unknown; --eos ID counts them" if documents is None else f"{documents:,}",
        "largest id": f"{told['largest_id']:,} ({told['largest_id_is']})",
        "vocabulary": "unknown" if told["vocab_size"] is None else f"{told['vocab_size']:,} ids",
    }
    for name, value in rows.items():
        say(f"  {name:<11} {value}")
    return told


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
    from rich.text import Text

    kinds = " and ".join(sorted({member.format for member in found})) or _without_arrays(path)
    here = "" if cached is None else f", {format_size(cached)} of it in the page cache"
    say(f"{path}: {kinds}, {format_size(size)}{here}")
    if not found:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("array", "shape", "dtype", "order", "offset", "size"):
        table.add_column(
            heading, justify="right" if heading in ("offset", "size") else "left", overflow="fold"
        )
    for member in found:
        # As Text, for in a str rich would look for markup.
        table.add_row(*(Text(printable(cell)) for cell in _row(member)))
    Console().print(table)
    for member in found:
        if member.error is not None and not isinstance(member.error, FormatError):
            say(explain(member.error))


def _without_arrays(path: str) -> str:
    """What a file of a known format is that holds no array."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"PK") and b"/data.pkl" in head:
        return "a PyTorch file, which torch.load reads, with no array to read in place"
    return "no arrays"


def _row(member: Member) -> tuple[str, ...]:
    layout = member.layout
    if layout is None:
        return member.name or "-", "damaged" if isinstance(member.error, FormatError) else "not in place"
    return (
        member.name or "-",
        str(layout.shape),
        str(layout.dtype),
        "F" if layout.fortran else "C",
        str(layout.offset),
        format_size(layout.nbytes),
    )
