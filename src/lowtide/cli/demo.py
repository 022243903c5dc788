"""``lowtide demo``: a tour in a minute or two, with data that every machine has."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--out", type=click.Path(), default="demo", metavar="DIR", help="Folder to write.")
@click.option("--quick", is_flag=True, help="Skip training; takes seconds and needs no PyTorch.")
def command(out: str, quick: bool) -> None:
    """Show what lowtide does, on this machine.

    Makes a token corpus of the Python sources that every interpreter has, reads a large array with np.memmap
    and with lowtide and shows their memory, trains a small GPT for a minute, samples from it, and writes
    DIR/report.html. The array, of 1 GiB or as much as fits, is removed at the end.

    DIR must be new, empty, or the folder of an earlier demo, whose files are replaced.

    \b
        lowtide demo
        lowtide demo --quick --out tide
    """
    from lowtide.demo.tour import FULL, QUICK, tour

    try:
        tour(out, QUICK if quick else FULL)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the same command starts again") from error
