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
import psutil

from lowtide._arrays.formats.layout import Layout
from lowtide._compare.runs import Run, make_cold, make_matrix, make_warm
from lowtide._compare.walks import METHODS, task_for, walk_apart
from lowtide._io import pagecache
from lowtide._sizes import format_size
from lowtide.cli.options import Size, Source, source_options
from lowtide.cli.output import say
from lowtide.errors import ArgumentError


@click.command("compare")
@click.argument("path", type=click.Path(), required=False)
@source_options
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rows per chunk.  [default: about 2 MiB]",
)
@click.option(
    "--seconds",
    type=float,
    default=5,
    show_default=True,
    metavar="X",
    help="Stop each walk after this time.",
)
@click.option(
    "--limit",
    type=Size(),
    default="2GiB",
    show_default=True,
    help="Read at most this many bytes from the start of the array.",
)
@click.option(
    "--make",
    type=Size(),
    default="1GiB",
    show_default=True,
    help="Without PATH: the size of the file to create.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    default="compare.png",
    show_default=True,
    help="Write the plot to this PNG file.",
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
        lowtide compare train.bin --dtype uint16 --shape -1,1024 --limit 8GiB
        lowtide compare --make 4GiB --out plots/compare.png --save compare.json
    """
    with _file(path, make) as created:
        layout = Source(created or str(path), **({} if created else which)).layout()
        if not layout.shape or not layout.nbytes:
            raise ArgumentError(f"{layout.path}: has no rows (shape {layout.shape}); pass another array")
        width = layout.nbytes // layout.shape[0]
        limit_rows = (
            layout.shape[0] if layout.fortran else max(1, min(layout.shape[0], limit // max(1, width)))
        )
        rows = min(limit_rows, rows or max(1, 2 * 2**20 // width))
        used = limit_rows * width
        say(
            f"{layout.path}: {layout.shape} of {layout.dtype}; walking {format_size(used)} "
            f"in chunks of {rows} rows ({format_size(rows * width)})"
        )
        runs = list(_runs(layout, rows, limit_rows, seconds))
    _print_table(runs)
    _print_summary(runs)
    if json_path:
        say("lowtide: --json FILE is deprecated; use --save FILE", err=True)
    if save := save or json_path:
        with open(save, "w") as file:
            result = {
                "path": layout.path,
                "bytes": used,
                "rows_per_chunk": rows,
                "runs": [asdict(run) for run in runs],
            }
            json.dump(result, file)
        say(f"figures: {save}")
    if out:
        try:
            from lowtide.cli.compare_plot import plot
        except ImportError:
            click.echo("no plot: matplotlib is not installed; pip install 'lowtide[plot]'")
        else:
            os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
            plot(runs, used, out)
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


def _runs(layout: Layout, rows: int, limit_rows: int, seconds: float) -> Iterator[Run]:
    from rich.console import Console
    from rich.progress import track

    used = layout.nbytes // layout.shape[0] * limit_rows
    may_warm = used < psutil.virtual_memory().available // 2
    if not may_warm:
        click.echo(f"no warm walks: {format_size(used)} would not stay in the page cache; see --limit")
    plan = [
        (shuffled, cold, method)
        for cold in ((True, False) if may_warm else (True,))
        for shuffled in (False, True)
        for method in METHODS
    ]
    refused = False
    for shuffled, cold, method in track(plan, "walking", console=Console(stderr=True), transient=True):
        if cold:
            if not make_cold(layout.path):
                refused = True
                continue
        else:
            make_warm(layout, used)
        settings = {"rows": rows, "limit_rows": limit_rows, "seconds": seconds}
        task = task_for(layout, method=method, shuffled=shuffled, **settings)
        figures = walk_apart(task)
        left = pagecache.resident(layout.path) if cold else None
        yield Run(method, shuffled, cold, figures, left[0] if left else None)
    if refused:
        click.echo("no cold walks: the file stays in the page cache (it may be mapped by a process)")


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
    for method in METHODS:
        own = {(run.shuffled, run.cold): run for run in runs if run.method == method}
        cells = [_speed(own.get(column)) for column in columns]
        cells += [
            _peak([run for key, run in own.items() if key[0] == shuffled]) for shuffled in (False, True)
        ]
        left = [run.page_cache_left for run in own.values() if run.page_cache_left is not None]
        table.add_row(
            method, *cells, format_size(max(left)) if left else "-", style="bold" if method == "pread" else ""
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


def _peak(runs: list[Run]) -> str:
    peaks = [run.figures["peak"] for run in runs]
    known = [peak for peak in peaks if peak is not None]
    return format_size(max(known)) if known else "-"


def _print_summary(runs: list[Run]) -> None:
    """Print the main comparison: shuffled, from the device or else warm."""
    cold = any(run.cold for run in runs)
    chosen = {run.method: run for run in runs if run.shuffled and run.cold == cold}
    ours, theirs = chosen.get("pread"), chosen.get("np.memmap")
    if ours is None or theirs is None:
        return
    at = "cold" if cold else "warm"
    click.echo(
        f"shuffled, {at}: lowtide reads {ours.speed / theirs.speed:.1f} times as fast as np.memmap, ",
        nl=False,
    )
    click.echo(f"with {_peak([ours])} of memory instead of {_peak([theirs])}")
