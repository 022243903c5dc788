"""``lowtide prepare``: text to a token corpus."""

from __future__ import annotations

from typing import Any

import click

from lowtide.cli.options import Count
from lowtide.cli.status import in_options


@click.command("prepare")
@click.argument("sources", metavar="SOURCE…", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("-o", "--out", metavar="DIR", required=True, type=click.Path(), help="The folder to write.")
@click.option(
    "--tokenizer",
    default="byte",
    show_default=True,
    metavar="NAME",
    help="byte (needs nothing), char, bpe:VOCAB (trained on a sample of the sources), the path of a "
    "tokenizer.json, or an encoding of tiktoken such as gpt2, which it downloads once.",
)
@click.option(
    "--val-fraction",
    type=float,
    default=0.0005,
    show_default=True,
    metavar="X",
    help="How much goes to the split val.",
)
@click.option(
    "--split",
    type=click.Choice(["documents", "contiguous"]),
    default="documents",
    show_default=True,
    help="What goes to val: whole documents chosen by a hash, or the end of the token stream.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Chooses the documents for val."
)
@click.option(
    "--text-field",
    default="text",
    show_default=True,
    metavar="NAME",
    help="Which field of JSON lines or column of Parquet holds the text.",
)
@click.option(
    "--split-on",
    metavar="TEXT",
    help="What stands between two documents of a file; \\n is a newline. A whole text is one unless told.",
)
@click.option(
    "--glob", metavar="PATTERN", help="Which files of folders to read, as in '*.txt'; all unless told."
)
@click.option(
    "--eos/--no-eos", default=True, show_default=True, help="End each document with the end-of-text token."
)
@click.option(
    "--layout",
    type=click.Choice(["shards", "nanogpt", "llmc"]),
    default="shards",
    show_default=True,
    help="Raw shards, nanoGPT's train.bin and val.bin, or shards with llm.c's header.",
)
@click.option(
    "--shard-tokens", type=Count(), default="100M", show_default=True, help="How many tokens a shard holds."
)
@click.option("--meta-pkl", is_flag=True, help="Write nanoGPT's meta.pkl too; with --tokenizer char.")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    show_default=True,
    help="Whether bytes that are no UTF-8 are an error, or read as U+FFFD.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="Stop at a document that cannot be read, or count it and go on.",
)
@click.option("--overwrite", is_flag=True, help="Replace the corpus in DIR, or the unfinished work there.")
@click.option(
    "--workers", type=int, metavar="N", help="How many processes work; one for each core unless told."
)
@click.option("--dask", metavar="ADDRESS", help="Work on this Dask cluster instead, as in tcp://host:8786.")
@click.pass_context
def command(
    ctx: click.Context, /, sources: tuple[str, ...], out: str, split_on: str | None, **options: Any
) -> None:
    """Turn text into a token corpus in the folder DIR.

    A SOURCE is a text file, JSON lines (both also .gz and .zst), Parquet, a folder of them, a data set
    saved by Hugging Face's datasets or hf:NAME, or - for standard input. DIR gets the tokens of train and
    val, the tokenizer and corpus.json, which comes last.

    Memory stays bounded whatever the sources' size. A run may be killed at any time: the same command goes on
    with what is left, and ends with the same bytes. The bytes depend neither on --workers nor on --dask.

    \b
        lowtide prepare books/ web.jsonl.zst -o corpus --tokenizer bpe:32000
        lowtide prepare input.txt -o data --tokenizer char --layout nanogpt --val-fraction 0.1
    """
    import lowtide
    from lowtide.cli.prepare_progress import showing

    if split_on is not None:  # a shell has no simple way to write a newline
        split_on = split_on.replace("\\n", "\n").replace("\\t", "\t")
    try:
        with showing() as progress:
            summary = lowtide.prepare(list(sources), out, split_on=split_on, progress=progress, **options)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"run the same command again to resume in {out}") from error
    click.echo(in_options(str(summary), ctx.command))
