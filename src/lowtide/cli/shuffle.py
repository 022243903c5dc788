"""``lowtide shuffle``: an array in a shuffled order."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click

from lowtide.cli.options import SIZE, layout_of, source_options
from lowtide.cli.output import say, transferring
from lowtide.errors import ArgumentError


@click.command("shuffle")
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@source_options
@click.option("--seed", type=int, default=0, metavar="N", help="The same seed gives the same order.")
@click.option("--budget", type=SIZE, default="256MiB", help="Memory to use at most.")
def command(source: str, target: str, seed: int, budget: int, **which: Any) -> None:
    """Write the rows of the array IN to the new file OUT in a uniformly shuffled order.

    Later epochs can then read OUT in order, at the speed of the disk. It takes two passes, memory within
    --budget, and disk space for OUT only. OUT is NPY if its name ends in .npy, else raw. It appears when it
    is complete; if a run was killed, start it again.

    \b
        lowtide shuffle features.npy shuffled.npy --seed 1 --budget 1GiB
        lowtide shuffle s3://bucket/features.npy shuffled.npy
    """
    import lowtide
    from lowtide._arrays.stored import StoredArray

    with suppress(OSError):  # a file that does not exist is not the same
        if os.path.samefile(source, target):
            raise ArgumentError(
                f"{target}: is the file to read, and its order would be lost; pass another file as OUT"
            )
    with StoredArray(layout_of(source, **which), cache="drop") as array:
        with transferring("shuffling", 2 * array.nbytes) as update:
            lowtide.shuffle(
                array, target, seed=seed, budget=budget, progress=lambda done: update(advance=done)
            )
        say(f"{target}: {len(array)} rows of {source} in the order of seed {seed}")
