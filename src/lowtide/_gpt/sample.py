"""Text from a trained run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from lowtide._gpt import checkpoints
from lowtide._gpt.generate import TextStream, generate
from lowtide._gpt.ranks import usable
from lowtide._prepare import tokenizers
from lowtide.errors import ArgumentError


def sample(
    run: str | os.PathLike[str],
    prompt: str | None = None,
    *,
    max_new_tokens: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    tokenizer: str | None = None,
) -> Iterator[str]:
    """Generate text with the model of a training run, piece by piece.

    Parameters
    ----------
    run : path
        The folder of the run.
    prompt : str, optional
        What the text starts with; without one, a new document.
    max_new_tokens : int
        Stop after this many tokens, or at the end of the document.
    temperature : float
        How freely tokens are drawn; 0 takes the likeliest each time.
    top_k : int, optional
        Draw among this many of the likeliest tokens.
    top_p : float, optional
        Draw among the likeliest tokens whose probabilities add up to this.
    seed : int
        The same seed gives the same text.
    device : str
        As PyTorch names it: ``"cpu"``, ``"cuda"``, ``"mps"``.
    tokenizer : str, optional
        The tokenizer's file or name, for a run whose corpus had none.

    Yields
    ------
    str
        The prompt first, then one piece per token.
    """
    run = os.fspath(run)
    where = usable(device)
    model = checkpoints.load_model(run).to(where)
    file = os.path.join(run, checkpoints.TOKENIZER)
    if tokenizer is None and not os.path.exists(file):
        raise ArgumentError(f"{run}: has no {checkpoints.TOKENIZER}; name the tokenizer with --tokenizer")
    words = checkpoints.load_tokenizer(run) if tokenizer is None else tokenizers.make(tokenizer)
    if prompt is None and words.eos is not None:
        prompt, ids = "", [words.eos]
    else:
        prompt = "\n" if prompt is None else prompt
        ids = words.encode_batch([prompt])[0].tolist()
    tokens = generate(
        model,
        ids,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=words.eos,
        generator=torch.Generator().manual_seed(seed),
    )
    yield prompt
    stream = TextStream(words)
    for token in tokens:
        yield stream.add(token)
    yield stream.end()
