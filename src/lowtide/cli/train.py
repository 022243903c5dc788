"""``lowtide train``: a GPT on a corpus."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from lowtide._gpt.settings import FIELDS, kind_of, read_file, resolve
from lowtide.cli.output import say

_PATHS = {"data": click.Path()}  # which a shell can complete


def _setting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each setting: its name, type, allowed values and help come from the dataclass."""
    for name, one in reversed(FIELDS.items()):
        kind, choices, _ = kind_of(name)
        flag = "--" + name.replace("_", "-")
        said = one.metadata["help"]
        if one.default is not None and kind is not bool:
            said = f"{said}  [default: {one.default}]"
        option = click.option(
            f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
            name,
            type=click.Choice(choices) if choices else None if kind is bool else _PATHS.get(name, kind),
            default=None,
            help=said,
            metavar=None if choices or kind is bool else {int: "N", float: "X", str: "TEXT"}[kind],
        )
        function = option(function)
    return function


@click.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False),
    help="The folder of the run, new or with --resume.",
)
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file with settings; options win.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, exactly where it was saved.")
@_setting_options
def command(out: str, config: str | None, resume: bool, **options: Any) -> None:
    """Train a GPT on a token corpus, in memory that does not grow.

    What is not set comes from --preset and from the device: on a CPU a small model that trains in minutes,
    on a GPU a larger one. The folder --out gets checkpoints, the settings, metrics.jsonl, a picture of loss
    and memory, and the tokenizer.

    Ends with 0 when all is done or --max-minutes are over, 130 after Ctrl-C and 143 after SIGTERM (the state
    is saved first), 3 when memory passed its budget, and 1 on errors.

    \b
        lowtide train --data corpus --out run
        lowtide train --out run --resume
        lowtide train --data data/openwebtext --out big --n-layer 12 --memory-budget 4GiB
        torchrun --nproc-per-node 2 -m lowtide.cli train --data corpus --out run
    """
    from lowtide._gpt import checkpoints
    from lowtide._gpt.train import decided_by, train
    from lowtide._gpt.weights import from_gpt2

    given = {name: value for name, value in options.items() if value is not None}
    saved = initial = None
    if resume:
        saved = checkpoints.load(os.path.join(out, checkpoints.LAST))
        settings = resolve(given, config, base=saved.settings)
    else:
        wanted = {**(read_file(config) if config else {}), **given}
        if wanted.get("init"):
            initial = from_gpt2(wanted["init"], dropout=wanted.get("dropout", 0.0))
        settings = resolve(given, config, weights=decided_by(initial))
    outcome = train(settings, out, saved=saved, initial=initial)
    again = f"; lowtide train --out {out} --resume goes on"
    if int(os.environ.get("RANK", "0")) == 0:
        loss = "" if outcome.best_val_loss is None else f", best validation loss {outcome.best_val_loss:.4f}"
        what = {"signal": "stopped by a signal", "time": "time is over", "memory": "stopped", "done": "done"}
        say(f"{out}: {what[outcome.end]} at step {outcome.step}{loss}{again * (outcome.end != 'done')}")
    if outcome.end == "signal":
        sys.exit(128 + outcome.signal)
