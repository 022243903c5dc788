"""Tokens from a model, one after another, and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lowtide._gpt.model import GPT, Cache, torch
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, DivergedError

if TYPE_CHECKING:
    from lowtide._prepare.tokenizers import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 4  # bytes of a character in UTF-8, and so the most tokens that it can take


def generate(
    model: GPT,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    generator: torch.Generator | None = None,
    cache: bool = True,
) -> Iterator[int]:
    """What the model, which must be in ``eval()`` mode, says after ``ids``. ``stop`` ends it and is not said.

    ``temperature`` 0 takes the likeliest token each time. Else tokens are drawn among the ``top_k``
    likeliest, and of these among the fewest whose chances add up to ``top_p``; on the CPU, so that a
    ``generator`` of the same seed means the same on every device.

    A model looks back on ``block_size`` tokens at most. When they are full, the older half is forgotten and
    the rest is read again; with or without the ``cache`` the tokens are the same.
    """
    prompt = [whole("a token", token, 0) for token in ids]
    if not prompt:
        raise ArgumentError("the prompt has no tokens; begin with one, such as the end of text")
    if max(prompt) >= model.config.vocab_size:
        raise ArgumentError(
            f"the prompt has the token {max(prompt)}, and the model's vocabulary ends at "
            f"{model.config.vocab_size - 1}; encode it with the tokenizer that the model was trained with"
        )
    whole("max_new_tokens", max_new_tokens, 0)
    if top_k is not None:
        whole("top_k", top_k, 1)
    if not 0 <= temperature < float("inf"):
        raise ArgumentError(f"temperature must be a number from 0, got {temperature!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ArgumentError(f"top_p must be above 0 and at most 1, got {top_p!r}")

    def choose(scores: torch.Tensor) -> int:
        if temperature == 0:
            return int(scores.argmax())
        chances = torch.softmax(narrowed(scores / temperature, top_k, top_p), dim=0)
        if not torch.isfinite(chances).all():
            raise DivergedError(
                "the model's scores are not finite numbers: its weights are damaged or have diverged, or the "
                "temperature is too low; sample from an earlier checkpoint, or pass a higher temperature"
            )
        return int(torch.multinomial(chances, 1, generator=generator))

    return _tokens(model, prompt, max_new_tokens, choose, stop, cache)


def _tokens(
    model: GPT,
    prompt: list[int],
    count: int,
    choose: Callable[[torch.Tensor], int],
    stop: int | None,
    cached: bool,
) -> Iterator[int]:
    block_size, device = model.config.block_size, model.embedding.weight.device
    context = prompt[-block_size:]
    cache = Cache(model) if cached else None
    unseen = context
    for _ in range(count):
        with torch.inference_mode():
            scores, _ = model(torch.tensor([unseen], device=device), cache=cache)
        token = choose(scores[0, -1].float().cpu())
        if token == stop:
            return
        yield token
        context = [*context, token]
        unseen = context if cache is None else [token]
        if len(context) > block_size:
            unseen = context = context[-max(1, block_size // 2) :]
            cache = None if cache is None else Cache(model)


def narrowed(scores: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """The scores of the tokens that may come next, with those that may not be drawn at minus infinity.

    >>> narrowed(torch.tensor([3.0, 1.0, 2.0]), 2, None)
    tensor([3., -inf, 2.])
    """
    ranked, order = scores.sort(descending=True, stable=True)
    out = torch.zeros_like(ranked, dtype=torch.bool)
    if top_k is not None:
        out[top_k:] = True
    if top_p is not None:
        # Out is what lies behind enough of the others; of those that top_k left, as most programs have it.
        chances = torch.softmax(ranked.masked_fill(out, -torch.inf), dim=0)
        out |= chances.cumsum(0) - chances >= top_p
    return scores.masked_fill(torch.zeros_like(out).scatter(0, order, out), -torch.inf)


class TextStream:
    """The text of tokens that come one by one, with no character shown before all its bytes are there.

    >>> from lowtide._prepare.tokenizers import make
    >>> stream = TextStream(make("byte"))
    >>> [stream.add(token) for token in "né".encode()], stream.end()
    (['n', '', 'é'], '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[
            int
        ] = []  # the last tokens shown: some tokenizers decode a token by the one before it
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """What can be shown now that ``token`` has come."""
        self._held.append(token)
        if not self._text(len(self._held)).endswith(_UNFINISHED):
            return self._show(len(self._held))
        # Bytes that are no character at all would be held for ever.
        return self._show(1) if len(self._held) >= _LONGEST else ""

    def end(self) -> str:
        """What was held back: bytes that are no whole character."""
        return self._show(len(self._held))

    def _text(self, count: int) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode([*self._shown, *self._held[:count]])[len(before) :]

    def _show(self, count: int) -> str:
        text = self._text(count)
        if count:
            self._shown, self._held = self._held[:count], self._held[count:]
        return text
