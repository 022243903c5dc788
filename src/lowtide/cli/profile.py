"""``lowtide profile -- COMMAND…``: does its memory grow with what it reads?"""

from __future__ import annotations

import os
import signal
import sys

import click
from click.shell_completion import CompletionItem

from lowtide._printable import signal_name
from lowtide._sizes import format_size
from lowtide.cli.options import SIZE
from lowtide.cli.output import say
from lowtide.cli.status import GROWS, OVER_BUDGET, explain
from lowtide.errors import AccessError, LowtideError, NotFoundError, write_errors

# As of env, nice and timeout: profile itself failed, the command cannot be run, it does not exist.
FAILED, NOT_RUNNABLE, NOT_FOUND = 125, 126, 127
_HINTS: dict[int, str] = {signal.SIGBUS: ": a full /dev/shm, or a mapped file that was truncated"}


def _budget(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int | None:
    if value == 0:
        raise click.BadParameter("a budget of 0 is exceeded by every command; pass a larger one")
    return value


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--budget",
    type=SIZE,
    callback=_budget,
    metavar="SIZE",
    help="Exit with status 3 if all processes together use more memory than this, such as 2GiB.",
)
@click.option(
    "--fail-on-growth",
    is_flag=True,
    help="Exit with status 4 if the verdict is `grows`. `bounded` and `unclear` do not fail.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Write the HTML report, a single file, here.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    help="Write samples and verdict as JSON here, for `lowtide report` or a program.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), hidden=True)
@click.option(
    "--dat", type=click.Path(dir_okay=False), help="Write the samples in memory_profiler's format here."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.001, 60),
    default=0.025,
    metavar="SECONDS",
    help="Time between two samples.",
)
@click.option(
    "--lines",
    is_flag=True,
    help="Also print what each line of a Python program adds. Functions (MODULE:FUNCTION...) may follow, "
    "before `--`. [default: those with @profile, else all of the script]",
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
    fail_on_growth: bool,
    out: str | None,
    save: str | None,
    json_path: str | None,
    dat: str | None,
    interval: float,
    lines: bool,
    words: tuple[str, ...],
) -> None:
    """Run COMMAND and report whether its memory grows with what it reads.

    Measures the command and all its children, and ends with one line on standard error that starts with
    `bounded`, `grows` or `unclear` and contains what grew, or how to find out. The exit status is the
    command's, 128 + N after signal N. If the command succeeds, it is 3 over the budget, and 4 after growth
    with --fail-on-growth. If the command itself ends with a status that has such a meaning, it is 1.

    \b
        lowtide profile --out report.html -- python train.py
        lowtide profile --budget 2GiB --fail-on-growth -- make data
        lowtide profile --lines __main__:load -- python train.py
    """
    if "-" in (out, save, dat, json_path):
        raise click.UsageError("the standard output is the command's; pass a file instead of -")
    if lines:
        words = _line_by_line(words)
    from lowtide._memory.profile import profiler

    if json_path:
        _say("lowtide: --json FILE is deprecated; use --save FILE")
        save = save or json_path
    try:
        for path in filter(None, (out, save, dat)):
            _require_writable(path)
        profiled = profiler.run(words, interval=interval, budget=budget, keep=True, path=_journal(save))
    except LowtideError as error:
        _say(f"lowtide: {explain(error)}")
        kinds = {NotFoundError: NOT_FOUND, AccessError: NOT_RUNNABLE}
        sys.exit(next((status for kind, status in kinds.items() if isinstance(error, kind)), FAILED))

    for event in profiled.recording.events:  # at once, since the rest needs memory
        _say(event.text)
    from lowtide._memory.profile import dat as dat_format
    from lowtide._memory.profile import document
    from lowtide._memory.profile.verdict import judge

    recording = profiled.recording
    verdict = judge(recording)
    over = budget is not None and verdict.peak > budget
    status = recording.status or 0
    exit_status = _own_status(status, budget is not None, fail_on_growth)
    page = document.of(recording, verdict)
    try:
        if save:
            document.save(save, page)
        if dat:
            dat_format.save(dat, recording)
    except LowtideError as error:
        _say(f"lowtide: {explain(error)}")
        exit_status = exit_status or FAILED
    if out:
        _say(f"report: {out}")
    if status < 0 and all(event.pid != recording.pid for event in recording.events):
        _say(f"the command was ended by {signal_name(-status)}{_HINTS.get(-status, '')}")
    if over and budget is not None:
        _say(f"over budget: peak {format_size(verdict.peak)}, the budget is {format_size(budget)}")
        exit_status = exit_status or OVER_BUDGET
    if fail_on_growth and verdict.grows:
        exit_status = exit_status or GROWS
    _say(verdict.line)
    if out:  # after the verdict, which does not depend on the page
        from lowtide._memory.profile import report

        try:
            report.save(out, page)
        except LowtideError as error:
            _say(f"lowtide: {explain(error)}")
            exit_status = exit_status or FAILED
    if profiled.journal is not None:
        profiled.journal.close()
    sys.exit(exit_status)


def _own_status(status: int, budget: bool, growth: bool) -> int:
    """The command's status, unless it has another meaning with these options."""
    if (budget and status == OVER_BUDGET) or (growth and status == GROWS):
        _say(f"the command ended with status {status}; the status is 1, since {status} has a meaning here")
        return 1
    return 128 - status if status < 0 else status


def _line_by_line(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs ``FUNCTION… -- python …`` line by line."""
    from lowtide._memory.lines import script

    split = words.index("--") if "--" in words and ":" in words[0] else -1
    functions, program = words[: max(split, 0)], words[split + 1 :]
    if wrong := [name for name in functions if ":" not in name]:
        raise click.UsageError(f"{wrong[0]!r} is not a function to measure; write MODULE:FUNCTION")
    if (command := script.command(program, functions)) is None:
        raise click.UsageError("--lines needs a Python program; write `--lines -- python SCRIPT`")
    return tuple(command)


def _journal(save: str | None) -> str | None:
    """The file to record to: the one to save, unless it is a pipe or a device."""
    return save if save and (os.path.isfile(save) or not os.path.exists(save)) else None


def _say(text: str) -> None:
    """Print on standard error, since the standard output is the command's."""
    say(text, err=True)


def _require_writable(path: str) -> None:
    """Raise for a path that cannot be written, before the command runs."""
    existed = os.path.exists(path)
    with write_errors(path), open(path, "ab"):  # the mode is not enough for root
        pass
    if not existed:
        os.unlink(path)
