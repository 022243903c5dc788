"""``lowtide prepare``: text to a token corpus."""

from __future__ import annotations

from typing import Any

import click

from lowtide.cli.options import COUNT
from lowtide.cli.status import in_options


@click.command("prepare")
@click.argument("sources", metavar="SOURCE…", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "-o", "--out", metavar="DIR", required=True, type=click.Path(), help="The folder or address to write."
)
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="byte, char, bpe:VOCAB (trained on a sample of the sources), the path of a tokenizer.json, an "
    "encoding of tiktoken such as gpt2, which is downloaded once, or ids:VOCAB for sources of token ids. "
    "[default: byte]",
)
@click.option(
    "--val",
    metavar="SOURCE",
    multiple=True,
    type=click.Path(),
    help="Source of the split val, instead of a fraction of the others; may be given several times.",
)
@click.option(
    "--val-fraction",
    type=float,
    default=None,
    metavar="X",
    help="Fraction of the data for the split val, from 0 to below 1. [default: 4 MiB of the sources, at "
    "least 0.0005 and at most 0.1 of them]",
)
@click.option(
    "--holdout",
    type=click.Choice(["auto", "documents", "contiguous"]),
    default="auto",
    help="What goes to val: documents that a hash selects, or the end of all tokens. auto takes the end for "
    "up to 100 text files of one document each.",
)
@click.option("--split", type=click.Choice(["documents", "contiguous"]), hidden=True)
@click.option("--seed", type=int, default=0, metavar="N", help="Selects the documents for val.")
@click.option(
    "--text-field",
    default="text",
    metavar="NAME",
    help="Field of JSON lines, or column of Parquet, that contains the text or lists of token ids; without "
    "a field text, input_ids is read.",
)
@click.option(
    "--split-on",
    metavar="TEXT",
    help="Separator between two documents of a text; \\n is a newline. It is replaced by the end-of-text "
    "token, or stays in the text if there is none. [default: a file is one document]",
)
@click.option("--glob", metavar="PATTERN", help="Files of folders to read, such as '*.txt'. [default: all]")
@click.option("--eos/--no-eos", default=True, help="End each document with the end-of-text token.")
@click.option(
    "--layout",
    type=click.Choice(["shards", "nanogpt", "llmc"]),
    default="shards",
    help="Files to write: raw shards, nanoGPT's train.bin and val.bin, or shards with the header of llm.c.",
)
@click.option("--shard-tokens", type=COUNT, default="100M", help="Tokens per shard.")
@click.option("--meta-pkl", is_flag=True, help="Write nanoGPT's meta.pkl as well; for --tokenizer char.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip", "replace", "replace-or-skip"]),
    default="raise",
    help="For documents that cannot be read: stop, skip and count them, replace bytes that are not UTF-8 by "
    "U+FFFD and stop at other errors, or replace and skip.",
)
@click.option("--errors", type=click.Choice(["strict", "replace"]), hidden=True)
@click.option("--overwrite", is_flag=True, help="Replace a corpus or unfinished work in DIR.")
@click.option("--workers", type=int, metavar="N", help="Number of processes. [default: one per core]")
@click.option(
    "--dask", metavar="ADDRESS", help="Address of a Dask cluster to run on, such as tcp://host:8786."
)
@click.option(
    "--work",
    metavar="DIR",
    type=click.Path(),
    help="For an address: local folder to prepare the corpus in. [default: in ~/.cache/lowtide]",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    out: str,
    val: tuple[str, ...],
    split_on: str | None,
    split: str | None,
    errors: str | None,
    **options: Any,
) -> None:
    """Turn text into a token corpus in the folder DIR.

    A SOURCE is a text file, JSON lines (both also .gz and .zst), a Parquet file, a folder of them, a Hugging
    Face data set (a folder of save_to_disk, or hf:NAME), or - for standard input. Fields and columns may
    contain token ids instead of text. Writes the tokens of train and val, the tokenizer and, last,
    corpus.json to DIR.

    Memory does not depend on the size of the sources. A run may be killed at any time: the same command
    resumes it, and the result has the same bytes. They depend neither on --workers nor on --dask.

    \b
        lowtide prepare books/ web.jsonl.zst -o corpus --tokenizer bpe:32000
        lowtide prepare input.txt -o data --tokenizer char --layout nanogpt
        lowtide prepare train.jsonl --val val.jsonl -o corpus --tokenizer gpt2
        lowtide prepare books/ -o s3://bucket/corpus
    """
    import lowtide
    from lowtide.cli.prepare_progress import showing

    if split is not None:
        click.echo("lowtide: --split is deprecated; use --holdout", err=True)
        options["holdout"] = split
    if errors is not None:
        click.echo("lowtide: --errors is deprecated; use --on-error", err=True)
    if errors == "replace":
        options["on_error"] = "replace-or-skip" if options["on_error"].endswith("skip") else "replace"
    if split_on is not None:  # a newline is difficult to write in a shell
        split_on = split_on.replace("\\n", "\n").replace("\\t", "\t")
    try:
        with showing() as progress:
            options |= {"val": list(val) or None, "split_on": split_on, "progress": progress}
            summary = lowtide.prepare(list(sources), out, **options)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"run the same command again to resume in {out}") from error
    click.echo(in_options(str(summary), ctx.command))
