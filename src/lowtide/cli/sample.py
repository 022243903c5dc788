"""``lowtide sample RUN``: text from a trained GPT, as it comes."""

from __future__ import annotations

import sys

import click

from lowtide._printable import printable


@click.command()
@click.argument("run", type=click.Path())
@click.option("--prompt", help="What the text begins with; a new document unless told.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(0),
    default=500,
    show_default=True,
    metavar="N",
    help="Stop after so many tokens.",
)
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    show_default=True,
    metavar="X",
    help="How freely tokens are drawn; 0 takes the likeliest each time.",
)
@click.option("--top-k", type=int, metavar="N", help="Draw among so many of the likeliest tokens.")
@click.option(
    "--top-p", type=float, metavar="X", help="Draw among the likeliest whose chances add up to this."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="The same seed gives the same text."
)
@click.option("--device", default="cpu", show_default=True, help="As PyTorch names it: cpu, cuda, mps.")
@click.option("--tokenizer", help="Its file or name, for a run whose corpus had none.")
def command(
    run: str,
    prompt: str | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    device: str,
    tokenizer: str | None,
) -> None:
    """Print the prompt and what the model of the folder RUN writes after it.

    The folder alone is needed, not the corpus. The text ends with the document, or after --max-new-tokens.
    A model looks back on block_size tokens at most: when they are full it forgets the older half of them.

    \b
        lowtide sample runs/plays --prompt "ROMEO:" --max-new-tokens 300
    """
    from lowtide._gpt.sample import sample

    parts = sample(
        run,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        device=device,
        tokenizer=tokenizer,
    )
    obeyed = sys.stdout.isatty()  # a model writes control characters too
    for part in parts:
        # Not by click.echo, which takes sequences that look like colours out of what goes to a file.
        sys.stdout.write(printable(part, keep="\n\t") if obeyed else part)
        sys.stdout.flush()  # the text appears as it is made
    sys.stdout.write("\n")
