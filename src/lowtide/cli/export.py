"""``lowtide export RUN OUT``: a trained GPT for other programs."""

from __future__ import annotations

import click

from lowtide.cli.output import say


@click.command()
@click.argument("run", type=click.Path())
@click.argument("out", type=click.Path())
def command(run: str, out: str) -> None:
    """Write the model of the folder RUN to the new folder OUT, in the format of Hugging Face's GPT-2.

    OUT gets config.json and model.safetensors, which transformers.GPT2LMHeadModel.from_pretrained reads.
    The format has GPT-2's architecture alone: a run of `--preset nanogpt`, or one that began with GPT-2's
    weights, can be written.

    \b
        lowtide export runs/plays exported
    """
    from lowtide._gpt import checkpoints, weights

    model = checkpoints.load_model(run)
    weights.to_gpt2(model, out)
    count = sum(parameter.numel() for parameter in model.parameters())
    say(f"{out}: {count:,} parameters in config.json and model.safetensors")
