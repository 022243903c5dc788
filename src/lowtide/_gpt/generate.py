"""Generation: tokens from a model, and the text of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from lowtide._gpt import folder
from lowtide._gpt.folder import Which
from lowtide._gpt.model import GPT, Cache, torch
from lowtide._gpt.ranks import usable
from lowtide._prepare import tokenizers
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, DivergedError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 4  # bytes of a character in UTF-8, and so the most tokens of one


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
    """Generate tokens after a prompt, one by one.

    A model attends to ``length`` tokens at most. When the context is full, its older half is dropped and the
    newer half is read again.

    Parameters
    ----------
    model : GPT
        The model, in ``eval()`` mode.
    ids : sequence of int
        Token ids of the prompt, at least one.
    max_new_tokens : int
        Stop after this many tokens.
    temperature : float
        Divide the logits by this; 0 takes the most likely token each time.
    top_k : int, optional
        Sample among this many of the most likely tokens.
    top_p : float, optional
        Sample among the fewest tokens whose probabilities add up to this, after ``top_k``.
    stop : int, optional
        Stop at this token, which is not yielded.
    generator : torch.Generator, optional
        Source of randomness, on the CPU: the same seed gives the same tokens on every device.
    cache : bool
        Keep keys and values between tokens. The tokens are the same without, only slower.

    Yields
    ------
    int
        The next token.

    Examples
    --------
    >>> from lowtide.gpt import ARCHITECTURES, ModelConfig
    >>> sizes = {"vocab_size": 65, "length": 16, "n_layer": 1, "n_head": 1, "n_embd": 8}
    >>> model = GPT(ModelConfig(**sizes, dropout=0.0, **ARCHITECTURES["modern"])).eval()
    >>> len(list(generate(model, [1, 2, 3], max_new_tokens=5, top_k=10)))
    5
    """
    prompt = [whole("a token", token, 0) for token in ids]
    if not prompt:
        raise ArgumentError("the prompt has no tokens; pass at least one, such as the end of text")
    if max(prompt) >= model.config.vocab_size:
        raise ArgumentError(
            f"the prompt has the token {max(prompt)}, expected at most {model.config.vocab_size - 1}; encode "
            "it with the tokenizer that the model was trained with"
        )
    whole("max_new_tokens", max_new_tokens, 0)
    if top_k is not None:
        whole("top_k", top_k, 1)
    if not 0 <= temperature < float("inf"):
        raise ArgumentError(f"temperature must be a number >= 0, got {temperature!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ArgumentError(f"top_p must be a number > 0 and <= 1, got {top_p!r}")

    def choose(scores: torch.Tensor) -> int:
        if temperature == 0:
            return int(scores.argmax())
        probabilities = torch.softmax(restrict(scores / temperature, top_k, top_p), dim=0)
        if not torch.isfinite(probabilities).all():
            raise DivergedError(
                "the model's logits are not finite: its weights are damaged or have diverged, or the "
                "temperature is too low; sample from an earlier checkpoint, or pass a higher temperature"
            )
        return int(torch.multinomial(probabilities, 1, generator=generator))

    def tokens() -> Iterator[int]:
        length, device = model.config.length, model.embedding.weight.device
        unseen = context = prompt[-length:]
        kept = Cache(model) if cache else None
        for _ in range(max_new_tokens):
            with torch.inference_mode():
                scores, _ = model(torch.tensor([unseen], device=device), cache=kept)
            token = choose(scores[0, -1].float().cpu())
            if token == stop:
                return
            yield token
            context = [*context, token]
            unseen = [token] if cache else context
            if len(context) > length:
                unseen = context = context[-max(1, length // 2) :]
                kept = Cache(model) if cache else None

    return tokens()  # the arguments are checked before the first token is asked for


def restrict(scores: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """Set the logits of tokens outside ``top_k`` and ``top_p`` to minus infinity.

    >>> restrict(torch.tensor([3.0, 1.0, 2.0]), 2, None)
    tensor([3., -inf, 2.])
    """
    ranked, order = scores.sort(descending=True, stable=True)
    out = torch.zeros_like(ranked, dtype=torch.bool)
    if top_k is not None:
        out[top_k:] = True
    if top_p is not None:
        # Among the tokens that top_k left, as in most programs.
        probabilities = torch.softmax(ranked.masked_fill(out, -torch.inf), dim=0)
        out |= probabilities.cumsum(0) - probabilities >= top_p
    return scores.masked_fill(torch.zeros_like(out).scatter(0, order, out), -torch.inf)


class TextStream:
    """Decode tokens one by one; a character appears when all its bytes are there.

    >>> stream = TextStream(tokenizers.make("byte"))
    >>> [stream.add(token) for token in "né".encode()], stream.end()
    (['n', '', 'é'], '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []  # the last tokens shown: some tokenizers decode a token by its neighbour
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """Add a token and return the text that is complete now."""
        self._held.append(token)
        if not self._text(len(self._held)).endswith(_UNFINISHED):
            return self._show(len(self._held))
        # Bytes that never form a character must not be held forever.
        return self._show(1) if len(self._held) >= _LONGEST else ""

    def end(self) -> str:
        """Return the rest: bytes that do not form a complete character."""
        return self._show(len(self._held))

    def _text(self, count: int) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode([*self._shown, *self._held[:count]])[len(before) :]

    def _show(self, count: int) -> str:
        text = self._text(count)
        if count:
            self._shown, self._held = self._held[:count], self._held[count:]
        return text


def sample(
    run: str | os.PathLike[str],
    prompt: str | None = None,
    *,
    max_new_tokens: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    tokenizer: str | None = None,
    checkpoint: Which | None = None,
) -> Iterator[str]:
    """Generate text with the model of a training run, piece by piece.

    Parameters
    ----------
    run : path
        The folder of the run, or one of its checkpoints.
    prompt : str, optional
        Start of the text. [default: a new document]
    max_new_tokens : int
        Stop after this many tokens, or at the end of the document.
    temperature : float
        Divide the logits by this; 0 takes the most likely token each time.
    top_k : int, optional
        Sample among this many of the most likely tokens.
    top_p : float, optional
        Sample among the fewest tokens whose probabilities add up to this.
    seed : int
        The same seed gives the same text.
    device : str
        A device of PyTorch: ``"cpu"``, ``"cuda"``, ``"mps"``.
    tokenizer : str, optional
        File or name of the tokenizer, for a run whose corpus had none.
    checkpoint : {"best", "last"}, optional
        The weights with the lowest validation loss, or the last ones. [default: the best if the run was
        evaluated, else the last]

    Yields
    ------
    str
        The prompt first, then one piece per token.

    Examples
    --------
    >>> next(sample("no-such-run", "the sea"))
    Traceback (most recent call last):
    lowtide.errors.NotFoundError: no-such-run/checkpoint.pt: no checkpoint there; pass the folder of a run ...
    """
    writer = Writer(run, device=device, tokenizer=tokenizer, checkpoint=checkpoint)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    yield from writer.write(prompt, seed=seed, **options)


class Writer:
    """The model and the tokenizer of a run, loaded once for several texts."""

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        device: str | torch.device = "cpu",
        tokenizer: str | None = None,
        checkpoint: Which | None = None,
    ) -> None:
        home, where = folder.folder_of(run), usable(device)
        model, path, step = folder.load_weights(run, checkpoint)
        self.model, self.source = model.to(where), f"{path}, step {step}"
        if tokenizer is None and not os.path.exists(os.path.join(home, folder.TOKENIZER)):
            raise ArgumentError(f"{home}: has no {folder.TOKENIZER}; pass the tokenizer with --tokenizer")
        self.tokenizer = folder.load_tokenizer(home) if tokenizer is None else tokenizers.make(tokenizer)

    def write(self, prompt: str | None, *, seed: int, **options: Any) -> Iterator[str]:
        """A text, piece by piece."""
        eos = self.tokenizer.eos
        if prompt is None and eos is not None:
            prompt, ids = "", [eos]
        else:
            prompt = "\n" if prompt is None else prompt
            ids = self.tokenizer.encode_batch([prompt])[0].tolist()
        generator = torch.Generator().manual_seed(seed)
        tokens = generate(self.model, ids, stop=eos, generator=generator, **options)
        yield prompt
        stream = TextStream(self.tokenizer)
        for token in tokens:
            yield stream.add(token)
        yield stream.end()
