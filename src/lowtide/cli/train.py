"""``lowtide train``: train a GPT on a corpus."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from lowtide._gpt.config import FIELDS, type_of
from lowtide.cli.output import say, waiting

_PATHS = {
    "data": click.Path(),
    "val_data": click.Path(),
    "init": click.Path(),
    "loss_mask": click.Path(),
}  # which a shell can complete
_ENDS = {"done": "done", "signal": "stopped by a signal", "time": "out of time", "memory": "out of memory"}


def _setting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option per setting: its name, type, choices and help come from the dataclass."""
    for name, one in reversed(FIELDS.items()):
        kind, choices, _ = type_of(name)
        flag = "--" + name.replace("_", "-")
        help_text = one.metadata["help"]
        if one.default is not None and kind is not bool:
            help_text = f"{help_text}  [default: {one.default}]"
        option = click.option(
            f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
            name,
            type=click.Choice(choices) if choices else None if kind is bool else _PATHS.get(name, kind),
            default=None,
            multiple=name == "data",
            help=help_text,
            metavar=None if choices or kind is bool else {int: "N", float: "X", str: "TEXT"}[kind],
        )
        function = option(function)
    return function


@click.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder of the run: a new one, or with --resume that of an earlier run.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="TOML file with settings, or the settings.json of a run; options override it.",
)
@click.option(
    "--resume",
    type=click.Choice(["yes", "auto"]),
    is_flag=False,
    flag_value="yes",
    help="Continue the run in --out from its last checkpoint; auto starts it if there is none.",
)
@click.option("--block-size", type=int, hidden=True)
@_setting_options
def command(out: str, config: str | None, resume: str | None, block_size: int | None, **options: Any) -> None:
    """Train a GPT on a token corpus, with memory that does not grow.

    Settings that are not given come from --preset and from the device: on a CPU a small model that trains in
    minutes, on a GPU a larger one. The folder --out gets checkpoints, the settings, metrics.jsonl, a plot of
    loss and memory, and the tokenizer.

    Exits with 0 when all steps are done or --max-minutes are over, 130 after Ctrl-C and 143 after SIGTERM
    (the state is saved first), 3 when memory exceeded its budget, and 1 on errors.

    \b
        lowtide train --data corpus --out run
        lowtide train --out run --resume
        lowtide train --data corpus --out run --resume auto
        lowtide train --data web:0.7=web --data code:0.3=code --out run
        lowtide train --data plays --init run --out fine --learning-rate 1e-4
        lowtide train --data data/openwebtext --out big --n-layer 12 --memory-budget 4GiB
        lowtide train --data s3://bucket/corpus --out run
        torchrun --nproc-per-node 2 -m lowtide.cli train --data corpus --out run
    """
    with waiting("loading PyTorch …"):
        from lowtide.gpt import train

    if block_size is not None:
        say("lowtide: --block-size is deprecated; use --length", err=True)
        options["length"] = block_size if options["length"] is None else options["length"]
    settings = {name: value for name, value in options.items() if value is not None and value != ()}
    outcome = train(out, config=config, resume="auto" if resume == "auto" else resume is not None, **settings)
    if os.environ.get("RANK", "0") == "0":
        loss = "" if outcome.best_val_loss is None else f", best validation loss {outcome.best_val_loss:.4f}"
        loss += "" if outcome.val_bpb is None else f", {outcome.val_bpb:.3f} bits per byte at the end"
        remedy = "" if outcome.end == "done" else f"; continue with: lowtide train --out {out} --resume"
        say(f"{out}: {_ENDS[outcome.end]} at step {outcome.step}{loss}{remedy}")
    if outcome.end == "signal":
        sys.exit(128 + outcome.signal)
