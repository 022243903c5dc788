"""``lowtide demo``: all of it in a minute or two, on what every machine has."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--out", type=click.Path(), default="demo", metavar="DIR", help="Where all of it goes.")
@click.option("--quick", is_flag=True, help="Without training: some seconds, and no PyTorch.")
def command(out: str, quick: bool) -> None:
    """Show what lowtide does, on this machine.

    Makes a token corpus of the Python sources that every interpreter carries, walks through a large array
    with np.memmap and with lowtide and shows what memory does, trains a small GPT for a minute, samples from
    it, and writes DIR/report.html. The array, of 1 GiB or what fits, is removed again.

    A DIR that an earlier demo left is refreshed; any other that is not empty is refused.

    \b
        lowtide demo
        lowtide demo --quick --out tide
    """
    from lowtide.demo.tour import FULL, QUICK, tour

    try:
        tour(out, QUICK if quick else FULL)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the same command starts again") from error
