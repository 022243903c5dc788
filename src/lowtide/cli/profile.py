"""``lowtide profile -- COMMAND…``: does its memory grow with what it reads?"""

from __future__ import annotations

import os
import signal
import sys

import click
from click.shell_completion import CompletionItem

from lowtide._sizes import format_size, parse_size
from lowtide.cli.output import say
from lowtide.cli.status import OVER_BUDGET, explain
from lowtide.errors import AccessError, ArgumentError, LowtideError, NotFoundError

# As env, nice and timeout: their own failure, a command that cannot be run, one that is not there.
FAILED, NOT_RUNNABLE, NOT_FOUND = 125, 126, 127


def _budget(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        size = parse_size(value)
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from error
    if not size:
        raise click.BadParameter("a budget of 0 is passed by every command")
    return size


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--budget",
    callback=_budget,
    metavar="SIZE",
    help="End with 3 when all processes together take more memory.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Write an HTML report, one file that needs no other; making it needs lowtide[report].",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False),
    help="Write samples and verdict, for `lowtide report` or a program.",
)
@click.option(
    "--dat", type=click.Path(dir_okay=False), help="Write the samples in the format of memory_profiler."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.001, 60),
    default=0.025,
    show_default=True,
    metavar="SECONDS",
    help="The time between two samples.",
)
@click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="-- COMMAND...",
    shell_complete=lambda _ctx, _param, incomplete: [CompletionItem(incomplete, type="file")],
)
def command(
    budget: int | None,
    out: str | None,
    json_path: str | None,
    dat: str | None,
    interval: float,
    words: tuple[str, ...],
) -> None:
    """Run COMMAND and say whether its memory grows with what it reads.

    Looks at the command and all its children, and ends with one line on standard error that begins with
    `bounded` or `grows`, and names what grew. Writes nothing else unless told. The exit status is the
    command's own, 128 + N after signal N, or 3 when the budget was passed.

    \b
        lowtide profile --out report.html -- python train.py
        lowtide profile --budget 2GiB -- make data
    """
    from lowtide._memory import profiler

    try:
        for path in filter(None, (out, json_path, dat)):
            _require_writable(path)
        if out:
            from lowtide._memory import report

            report.require()
        recording, _ = profiler.record(words, interval=interval, budget=budget)
    except NotFoundError as error:
        _stop(error, NOT_FOUND)
    except AccessError as error:
        _stop(error, NOT_RUNNABLE)
    except LowtideError as error:
        _stop(error, FAILED)

    from lowtide._memory import dat as dat_format
    from lowtide._memory import document
    from lowtide._memory.verdict import judge

    verdict = judge(recording)
    over = budget is not None and verdict.peak > budget
    status = recording.status or 0
    exit_status = 128 - status if status < 0 else status
    try:
        found = document.document(recording, verdict)
        if json_path:
            document.save(json_path, found)
        if dat:
            dat_format.save(dat, recording)
        if out:
            from lowtide._memory import report

            report.save(out, found)
            _say(f"report: {out}")
    except LowtideError as error:
        _say(f"lowtide: {explain(error)}")
        exit_status = exit_status or FAILED
    if status < 0:
        _say(f"the command was ended by {_signal_name(-status)}")
    if over and budget is not None:
        _say(f"over budget: peak {format_size(verdict.peak)}, the budget is {format_size(budget)}")
        exit_status = OVER_BUDGET
    _say(verdict.line)
    sys.exit(exit_status)


def _say(text: str) -> None:
    """Standard error, since the standard output is the command's."""
    say(text, err=True)


def _stop(error: LowtideError, status: int) -> None:
    _say(f"lowtide: {explain(error)}")
    sys.exit(status)


def _require_writable(path: str) -> None:
    """Refuse a path that cannot be written before a long command is run for it."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise LowtideError(f"cannot write {path}: there is no folder {folder}")
    there = os.path.exists(path)
    try:
        with open(path, "ab"):  # asking for the mode would not do: root may write what cannot be written
            pass
    except OSError as error:
        raise LowtideError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    if not there:
        os.unlink(path)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names of their own
        return f"signal {number}"
