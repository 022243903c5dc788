"""``lowtide compare``: np.memmap against lowtide's readers, on your own file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from lowtide._compare.runs import Passes, Run, make_matrix, peak, summary
from lowtide._sizes import format_size
from lowtide.cli.options import SIZE, layout_of, source_options
from lowtide.cli.output import say


@click.command("compare")
@click.argument("path", type=click.Path(), required=False)
@source_options
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help="Rows per chunk.  [default: about 2 MiB]"
)
@click.option("--seconds", type=float, default=5, metavar="X", help="Stop each walk after this time.")
@click.option(
    "--limit", type=SIZE, default="2GiB", help="Read at most this many bytes from the start of the array."
)
@click.option("--make", type=SIZE, default="1GiB", help="Without PATH: the size of the file to create.")
@click.option(
    "--out", type=click.Path(dir_okay=False), default="compare.png", help="Write the plot to this PNG file."
)
@click.option("--save", type=click.Path(dir_okay=False), help="Write all figures and samples as JSON here.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), hidden=True)
def command(
    path: str | None,
    rows: int | None,
    seconds: float,
    limit: int,
    make: int,
    out: str,
    save: str | None,
    json_path: str | None,
    **which: Any,
) -> None:
    """Measure np.memmap against each of lowtide's readers, on the array in PATH.

    Each walk through the array is a separate process: in order and shuffled, from the device (cold) and from
    the page cache (warm). The table and the plot (which needs lowtide[plot]) show speed and memory, as
    the kernel counts them. Without PATH a file of random numbers is created in the temporary folder, and
    removed afterwards.

    \b
        lowtide compare features.npy
        lowtide compare s3://bucket/features.npy
        lowtide compare train.bin --dtype uint16 --shape -1,1024 --limit 8GiB
        lowtide compare --make 4GiB --out plots/compare.png --save compare.json
    """
    with _file(path, make) as created:
        layout = layout_of(created or str(path), **({} if created else which))
        passes = Passes.over(layout, rows, limit, seconds)
        say(
            f"{layout.path}: {layout.shape} of {layout.dtype}; walking {format_size(passes.size)} "
            f"in chunks of {passes.rows} rows ({format_size(passes.rows * passes.row_size)})"
        )
        runs = _run(passes)
    _print_table(runs)
    if line := summary(runs):
        click.echo(line)
    if json_path:
        say("lowtide: --json FILE is deprecated; use --save FILE", err=True)
    if save := save or json_path:
        result = {"path": layout.path, "bytes": passes.size, "rows_per_chunk": passes.rows}
        with open(save, "w") as file:
            json.dump({**result, "runs": [asdict(run) for run in runs]}, file)
        say(f"figures: {save}")
    if out:
        try:
            from lowtide._compare.plot import plot
        except ImportError:
            click.echo("no plot: matplotlib is not installed; pip install 'lowtide[plot]'")
        else:
            os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
            plot(runs, passes.size, out)
            say(f"plot: {out}")


@contextmanager
def _file(path: str | None, size: int) -> Iterator[str | None]:
    """A temporary matrix of 1 KiB rows, when no path was given."""
    if path is not None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        created = os.path.join(folder, "matrix.npy")
        make_matrix(created, size)
        yield created


def _run(passes: Passes) -> list[Run]:
    from rich.console import Console
    from rich.progress import track

    plan = passes.plan()
    if all(cold for _, _, cold in plan) and not passes.is_remote:
        click.echo(f"no warm walks: {format_size(passes.size)} would not stay in the page cache; see --limit")
    runs = [passes.run(*one) for one in track(plan, "walking", console=Console(stderr=True), transient=True)]
    if None in runs:
        click.echo("no cold walks: the file stays in the page cache (it may be mapped by a process)")
    return [run for run in runs if run is not None]


def _print_table(runs: list[Run]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\n\nreader", no_wrap=True)
    columns = [(shuffled, cold) for shuffled in (False, True) for cold in (False, True)]
    for shuffled, cold in columns:
        heading = f"{'shuffled' if shuffled else 'in order'}\n{'cold' if cold else 'warm'}\nGB/s"
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("\nin order\npeak", "\nshuffled\npeak", "\ncache\nleft"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in dict.fromkeys(run.method for run in runs):
        own = {(run.shuffled, run.cold): run for run in runs if run.method == method}
        cells = [_speed(own.get(column)) for column in columns]
        cells += [peak([run for key, run in own.items() if key[0] == shuffled]) for shuffled in (False, True)]
        left = [run.page_cache_left for run in own.values() if run.page_cache_left is not None]
        table.add_row(
            method,
            *cells,
            format_size(max(left)) if left else "-",
            style="bold" if method in ("pread", "remote") else "",
        )
    console = Console()
    console.print(table)
    stopped = any(not run.figures["complete"] for run in runs)
    console.print(
        "peak: memory above the start; cache left: the file's page cache after a cold walk"
        f"{'; * stopped by --seconds' if stopped else ''}",
        style="dim",
        soft_wrap=True,
    )


def _speed(run: Run | None) -> str:
    if run is None:
        return "-"
    return f"{run.speed / 1e9:.2f}{'' if run.figures['complete'] else '*'}"
