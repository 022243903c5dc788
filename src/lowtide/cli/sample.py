"""``lowtide sample RUN``: text from a trained GPT, token by token."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click

from lowtide._printable import printable
from lowtide.cli.options import checkpoint_option
from lowtide.cli.output import say, waiting

_SEPARATOR = "-" * 15 + "\n"  # as nanoGPT's sample.py


@click.command()
@click.argument("run", type=click.Path())
@click.option("--prompt", help="Start of the text.  [default: a new document]")
@click.option(
    "--max-new-tokens", type=click.IntRange(0), default=500, metavar="N", help="Stop after this many tokens."
)
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    metavar="X",
    help="Divide the logits by this; 0 takes the most likely token each time.",
)
@click.option("--top-k", type=int, metavar="N", help="Sample among the N most likely tokens.")
@click.option(
    "--top-p", type=float, metavar="X", help="Sample among the fewest tokens whose probabilities add up to X."
)
@click.option("--seed", type=int, default=0, metavar="N", help="Seed; the same gives the same text.")
@click.option(
    "-n",
    "--num-samples",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Texts to write, with seeds from --seed on; a line of dashes separates them.",
)
@checkpoint_option
@click.option("--device", default="cpu", help="Device of PyTorch: cpu, cuda, mps.")
@click.option("--tokenizer", help="File or name of a tokenizer, if the corpus of the run had none.")
def command(
    run: str,
    prompt: str | None,
    seed: int,
    num_samples: int,
    device: str,
    tokenizer: str | None,
    checkpoint: Literal["best", "last"] | None,
    **options: Any,
) -> None:
    """Print the prompt, and generate text after it with the model of the folder RUN.

    RUN may also be a checkpoint of a run. Only the folder is needed, not the corpus. The text ends with the
    document, or after --max-new-tokens. A model attends to at most --length tokens: when the context is full,
    its older half is dropped.

    \b
        lowtide sample runs/plays --prompt "ROMEO:" --max-new-tokens 300
        lowtide sample runs/plays -n 5 --checkpoint last
    """
    with waiting("loading the model …"):
        from lowtide._gpt.generate import Writer

        writer = Writer(run, device=device, tokenizer=tokenizer, checkpoint=checkpoint)
    if sys.stderr.isatty():  # not where only the text is wanted
        say(writer.source, err=True)
    terminal = sys.stdout.isatty()  # it would obey control characters, which a model can generate
    for number in range(num_samples):
        if number:
            sys.stdout.write(_SEPARATOR)
        for piece in writer.write(prompt, seed=seed + number, **options):
            # Not with click.echo, which strips escape sequences from the text that goes to a file.
            sys.stdout.write(printable(piece, keep="\n\t") if terminal else piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
