"""``lowtide export RUN OUT``: write a trained GPT for other programs."""

from __future__ import annotations

from typing import Literal

import click

from lowtide.cli.options import checkpoint_option
from lowtide.cli.output import say


@click.command()
@click.argument("run", type=click.Path())
@click.argument("out", type=click.Path())
@checkpoint_option
def command(run: str, out: str, checkpoint: Literal["best", "last"] | None) -> None:
    """Write the model of the folder RUN to the new folder OUT, which the library transformers loads.

    OUT gets config.json, model.safetensors and the tokenizer. A model of GPT-2's architecture (--preset
    nanogpt, or a run that started from GPT-2's weights) is in GPT-2's format. Any other model includes its
    code, modeling_lowtide.py, which transformers runs only with trust_remote_code=True.

    \b
        lowtide export runs/plays exported
    """
    from lowtide.gpt import export

    files = export(run, out, checkpoint=checkpoint)
    left_out = "" if "tokenizer.json" in files else "; without a tokenizer that transformers could load"
    code = "; load it with trust_remote_code=True" if "modeling_lowtide.py" in files else ""
    say(f"{out}: {', '.join(files)}{left_out}{code}")
