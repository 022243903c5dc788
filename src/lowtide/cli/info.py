"""``lowtide info``: what a file is."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from itertools import chain
from typing import Any

import click

from lowtide._arrays.formats.layout import Member
from lowtide._io import atomic, store
from lowtide._printable import printable
from lowtide._sizes import format_size
from lowtide._tokens.description import ArrayFile, CorpusSummary, describe, expand
from lowtide.cli.options import source_options
from lowtide.cli.output import say
from lowtide.cli.status import FAILED, explain
from lowtide.errors import FormatError, LowtideError


@click.command("info")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path())
@source_options
@click.option("--split", default="train", metavar="NAME", help="Which split of a token corpus.")
@click.option("--eos", type=int, metavar="ID", help="Count documents by this token, which ends each.")
@click.option("--scan", is_flag=True, help="Read all tokens, so that the largest id is exact.")
@click.option("--verify", is_flag=True, help="Check every checksum of a corpus that lowtide prepared.")
@click.option(
    "--manifest",
    is_flag=True,
    help="Write a manifest beside the files of a corpus, so that opening it does not look at each file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def command(
    ctx: click.Context, /, paths: tuple[str, ...], as_json: bool, verify: bool, manifest: bool, **options: Any
) -> None:
    """Show what each PATH is: an array file or a token corpus (a folder, a file, a quoted glob), or the
    address of one.

    For arrays: format, shape, dtype and offset, from headers alone; a raw file needs --dtype, as np.memmap
    does. For corpora: splits, tokens, shards, dtype, documents, end of text, tokenizer and the largest id,
    from a sample unless --scan is given, and a remark if something looks wrong. A folder of other array files
    is listed file by file. The exit status is 1 when any file is damaged, after all have been shown.

    \b
        lowtide info features.npy
        lowtide info train.bin --dtype uint16
        lowtide info part-*.npy
        lowtide info data/openwebtext --json
        lowtide info s3://bucket/corpus
        lowtide info --verify corpus
        lowtide info --manifest s3://bucket/megatron
    """
    for path in paths:
        _show_leftovers(path)
    which = {"split": options["split"], "dtype": options["dtype"]}
    results: list[dict[str, Any]] = []
    failed = False
    for path in paths if verify or manifest else chain.from_iterable(expand(path, **which) for path in paths):
        try:
            if verify:
                results.append(_verify(path, as_json))
                continue
            if manifest:
                results.append(_write_manifest(path, as_json, options))
                continue
            description = describe(path, **options)
            if not as_json:
                if isinstance(description, CorpusSummary):
                    _show_corpus(path, description)
                else:
                    _show_arrays(path, description)
            results.append(description.as_json())
            for error in description.damage if isinstance(description, ArrayFile) else ():
                say(f"lowtide: {explain(error)}", err=True)
                failed = True
        except LowtideError as error:
            problem = explain(error, ctx.command)
            say(f"lowtide: {problem}", err=True)
            results.append({"path": store.absolute(path), "problem": problem})
            failed = True
    if as_json and (not failed or len(results) > 1 or "problem" not in results[0]):
        click.echo(json.dumps(results if len(results) > 1 else results[0], indent=2))
    if failed:
        ctx.exit(FAILED)


def _verify(path: str, as_json: bool) -> dict[str, Any]:
    from lowtide._tokens.formats import checksums

    result = checksums.verify(path)
    if not as_json:
        say(f"{path}: {result.files} files, {format_size(result.nbytes)}, all as written")
    return vars(result)


def _write_manifest(path: str, as_json: bool, options: dict[str, Any]) -> dict[str, Any]:
    import lowtide
    from lowtide._tokens.formats import manifest

    which = {"dtype": options["dtype"], "eos": options["eos"]}
    corpora = {options["split"]: lowtide.corpus(path, split=options["split"], **which)}
    if options["split"] == "train":
        with suppress(LowtideError):  # many corpora have no other split
            val = lowtide.corpus(path, split="val", **which)
            if val.paths != corpora["train"].paths:
                corpora["val"] = val
    where = manifest.write(corpora)
    shards = {name: len(corpus.paths) for name, corpus in corpora.items()}
    if not as_json:
        say(f"{where}: {', '.join(f'{count} shards of {name}' for name, count in shards.items())}")
    return {"path": where, "shards": shards}


def _show_leftovers(path: str) -> None:
    """Report files of killed writers on standard error, since programs read the standard output."""
    for leftover, size in () if store.is_address(path) else atomic.leftovers(path):
        say(
            f"{leftover}: {format_size(size)} left by a writer that was killed; the next one of that file "
            f"writes over it, and `rm {shlex.quote(leftover)}` removes it",
            err=True,
        )


def _show_corpus(path: str, corpus: CorpusSummary) -> None:
    say(f"{path}: {corpus.format} corpus, {format_size(corpus.bytes)}")
    documents = "unknown; --eos ID counts them" if corpus.documents is None else f"{corpus.documents:,}"
    vocabulary = "unknown" if corpus.vocab_size is None else f"{corpus.vocab_size:,} ids"
    rows = {
        "splits": ", ".join(f"{name} {tokens:,}" for name, tokens in corpus.splits.items()),
        "tokens": f"{corpus.tokens:,} of {corpus.dtype}",
        "shards": f"{corpus.shards:,}",
        "documents": documents + ("" if corpus.eos is None else f", which token {corpus.eos} ends"),
        "largest id": f"{corpus.largest_id:,} ({corpus.largest_id_is})",
        "vocabulary": vocabulary
        + ("" if corpus.tokenizer is None else f" of the tokenizer {corpus.tokenizer}"),
    }
    if store.is_address(path):
        rows["reading"] = 'by range requests: order="blocks" takes one per MiB, other orders one per window'
    for name, value in rows.items():
        if value:
            say(f"  {name:<11} {value}")
    for remark in corpus.remarks:
        say(f"  remark: {remark}")


def _show_arrays(path: str, file: ArrayFile) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kinds = " and ".join(sorted({member.format for member in file.arrays}))
    if not kinds:
        torch = "a PyTorch file, which torch.load reads, with no array to read in place"
        kinds = torch if file.is_torch else "no arrays"
    cached = file.bytes_in_page_cache
    here = "" if cached is None else f", {format_size(cached)} of it in the page cache"
    say(f"{path}: {kinds}, {format_size(file.bytes)}{here}")
    if not file.arrays:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("array", "shape", "dtype", "order", "offset", "size"):
        table.add_column(
            heading, justify="right" if heading in ("offset", "size") else "left", overflow="fold"
        )
    for member in file.arrays:
        # As Text, since rich looks for markup in a str.
        table.add_row(*(Text(printable(cell)) for cell in _row(member)))
    Console().print(table)
    for member in file.arrays:
        if member.error is not None and not isinstance(member.error, FormatError):
            say(explain(member.error))


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
