"""``lowtide copy``: files and corpora to and from buckets."""

from __future__ import annotations

import click

from lowtide.cli.output import say, transferring


@click.command("copy")
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Read what was written, and compare checksums.",
    show_default=True,
)
def command(source: str, target: str, verify: bool) -> None:
    """Copy the file or folder SRC to DST; either may be an address such as s3://bucket/corpus.

    Memory is bounded, and nothing else is written to disk. A file appears when it is complete, and the index
    of a corpus last. Files that DST already has, with the same size and not older, are skipped: the same
    command resumes a copy that was killed, and continues in the middle of a large object that goes to a file.

    \b
        lowtide copy corpus s3://bucket/corpus
        lowtide copy s3://bucket/features.npy features.npy
    """
    import lowtide

    with transferring("copying") as update:
        copied = lowtide.copy(
            source, target, verify=verify, progress=lambda done, total: update(completed=done, total=total)
        )
    say(f"{target}: {copied}")
