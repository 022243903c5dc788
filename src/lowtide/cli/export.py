"""``lowtide export RUN OUT``: write a trained GPT for other programs."""

from __future__ import annotations

import click

from lowtide.cli.output import say


@click.command()
@click.argument("run", type=click.Path())
@click.argument("out", type=click.Path())
def command(run: str, out: str) -> None:
    """Write the model of the folder RUN to the new folder OUT, in Hugging Face's GPT-2 format.

    OUT gets config.json and model.safetensors, which transformers.GPT2LMHeadModel.from_pretrained reads.
    The format supports GPT-2's architecture only: runs with --preset nanogpt, or that started from GPT-2's
    weights, can be exported.

    \b
        lowtide export runs/plays exported
    """
    from lowtide.gpt import load_model, to_gpt2

    model = load_model(run)
    to_gpt2(model, out)
    count = sum(parameter.numel() for parameter in model.parameters())
    say(f"{out}: {count:,} parameters in config.json and model.safetensors")
