"""A GPT: GPT-2's decoder and a modern one, as one model with a configuration.

In order: the configuration (``ModelConfig``), the parts of a block (attention and the feed-forward network),
the model (``GPT``), and the keys and values that generation keeps between tokens (``Cache``).

Shapes in the comments: B sequences of T tokens, C = n_embd features, H = n_head heads of D = C / H features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lowtide._gpt.aliases import block_size_alias
from lowtide._printable import brief
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, FormatError, MissingExtraError

try:
    import torch as torch  # other modules import it from here, so that one message names the extra
    from torch import Tensor, nn
    from torch.nn import functional as F  # noqa: N812 - the usual name
except ImportError as error:
    raise MissingExtraError("PyTorch is not installed; pip install 'lowtide[gpt]'") from error

from lowtide._gpt.attention import Documents, mask_of

Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary"]
Activation = Literal["gelu", "gelu_tanh", "relu2"]

_CHOICES = {"norm": Norm, "positions": Positions, "activation": Activation}

_MOST_ROTATIONS = 2**24  # numbers

IGNORED = -1
"""Target that does not contribute to the loss."""


@block_size_alias
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Architecture of a model, as plain values that are saved beside its weights.

    ``lowtide.gpt.ARCHITECTURES`` has the values from ``bias`` to ``zero_init`` for each preset.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    length : int
        Context length: the most tokens that the model can attend to.
    n_layer : int
        Number of layers.
    n_head : int
        Attention heads per layer.
    n_embd : int
        Features per token, a multiple of ``n_head``.
    dropout : float
        Dropout probability.
    bias : bool
        Use biases in linear layers and LayerNorm.
    norm : {"layernorm", "rmsnorm"}
        Normalization layers.
    positions : {"learned", "rotary"}
        Position encoding.
    activation : {"gelu", "gelu_tanh", "relu2"}
        Activation of the feed-forward network. GPT-2 was trained with the tanh approximation of GELU, nanoGPT
        uses GELU itself; ``relu2`` is the squared ReLU.
    qk_norm : bool
        Normalize queries and keys.
    tied : bool
        Use the embedding as the output head.
    zero_init : bool
        Zero-initialise residual projections, so that each block starts as the identity.

    Examples
    --------
    >>> from lowtide.gpt import ARCHITECTURES
    >>> sizes = {"vocab_size": 65, "length": 16, "n_layer": 2, "n_head": 2, "n_embd": 32}
    >>> ModelConfig(**sizes, dropout=0.0, **ARCHITECTURES["modern"]).head_size
    16
    """

    vocab_size: int
    length: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool
    norm: Norm
    positions: Positions
    activation: Activation
    qk_norm: bool
    tied: bool
    zero_init: bool

    def __post_init__(self) -> None:
        for name in ("vocab_size", "length", "n_layer", "n_head", "n_embd"):
            whole(name, getattr(self, name), 1)
        for name, kind in _CHOICES.items():
            value, choices = getattr(self, name), get_args(kind)
            if value not in choices:
                raise ArgumentError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        for name in ("bias", "qk_norm", "tied", "zero_init"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout must be a number >= 0 and < 1, got {self.dropout!r}")
        if self.n_embd % self.n_head:
            raise ArgumentError(
                f"n_embd must be a multiple of n_head, got {self.n_embd} for {self.n_head} heads"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ArgumentError(f"n_embd / n_head must be even for rotary positions, got {self.head_size}")

    @property
    def head_size(self) -> int:
        """Features per attention head."""
        return self.n_embd // self.n_head


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head, self.head_size = config.n_head, config.head_size
        self.qk_norm, self.dropout = config.qk_norm, config.dropout
        self.normalize = F.layer_norm if config.norm == "layernorm" else F.rms_norm
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.residual_dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, rotation: Tensor | None, seen: Tensor | Documents | None, past: LayerCache | None
    ) -> Tensor:
        batch, length, width = x.shape
        qk, v = self.qkv(x).split((2 * width, width), dim=2)
        qk = qk.view(batch, length, 2, self.n_head, self.head_size)
        v = v.view(batch, length, self.n_head, self.head_size)
        if self.qk_norm:  # a contiguous copy here, or the norm makes one in forward and one in backward
            qk = self.normalize(qk.contiguous(), (self.head_size,))
        if rotation is not None:
            qk = rotate(qk, rotation)
        q, k, v = (part.transpose(1, 2) for part in (*qk.unbind(2), v))  # each (B, H, T, D)
        if past is not None:
            k, v = past.extended(k, v)
        dropout = self.dropout if self.training else 0.0
        if isinstance(seen, Documents):
            y = seen.attend(q, k, v, dropout)
        else:  # without a mask: training is causal; a single new token attends to all before it
            causal = seen is None and length > 1
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, is_causal=causal)
        y = y.transpose(1, 2).reshape(batch, length, width)
        return self.residual_dropout(self.out(y))  # type: ignore[no-any-return]


class SquaredReLU(torch.autograd.Function):
    """``relu(x).square()`` with one pass through memory in backward, where autograd takes four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        back: Tensor = gradients[0] * positive
        return back.mul_(2)


class FeedForward(nn.Module):
    """Two matrices per token: to four times the width and back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.residual_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.activation == "relu2":
            x = SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
        else:
            x = F.gelu(x, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return self.residual_dropout(self.down(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then the feed-forward network, each with a residual connection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = _norm(config)
        self.feed_forward = FeedForward(config)

    def forward(
        self, x: Tensor, rotation: Tensor | None, seen: Tensor | Documents | None, past: LayerCache | None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, seen, past)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A decoder: token ids in, logits of the next token out.

    Parameters
    ----------
    config : ModelConfig
        The architecture.

    Examples
    --------
    >>> from lowtide.gpt import ARCHITECTURES
    >>> sizes = {"vocab_size": 65, "length": 16, "n_layer": 2, "n_head": 2, "n_embd": 32}
    >>> model = GPT(ModelConfig(**sizes, dropout=0.0, **ARCHITECTURES["modern"]))
    >>> logits, loss = model(torch.tensor([[1, 2, 3]]), targets=torch.tensor([[2, 3, 4]]))
    >>> logits.shape, loss.shape
    (torch.Size([1, 3, 65]), torch.Size([]))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.rotation: Tensor
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.length, config.n_embd)
        else:
            self.register_buffer("rotation", rotations(config.length, config.head_size), persistent=False)
        self.embedding_dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = _norm(config)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self._initialise()
        if config.tied:
            self.head.weight = self.embedding.weight

    def _initialise(self) -> None:
        """GPT-2's initialisation; projections into the residual stream shrink with the number of layers."""
        for name, part in self.named_modules():
            if not isinstance(part, (nn.Linear, nn.Embedding)):
                continue
            writes = name.endswith((".out", ".down"))
            spread = 0.02 / math.sqrt(2 * self.config.n_layer) if writes else 0.02
            nn.init.normal_(part.weight, std=0.0 if writes and self.config.zero_init else spread)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        documents: Tensor | Documents | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute logits (B, T, vocab_size), and the mean loss if ``targets`` are given.

        Parameters
        ----------
        ids : Tensor
            Token ids (B, T).
        targets : Tensor, optional
            The id that follows each token (B, T); -1 is ignored.
        documents : Tensor, optional
            The document of each token (B, T), as ``batches.with_documents()`` gives it: tokens then attend
            within their own document only. ``lowtide train`` passes an object that needs no mask of (T, T),
            and whose learned positions restart with each document.
        cache : Cache, optional
            Keys and values of the tokens before ``ids``. The logits are then those of the last token only.
        """
        start = 0 if cache is None else cache.length
        stop = start + ids.shape[1]
        if stop > self.config.length:
            raise ArgumentError(
                f"{stop} tokens exceed the model's context length, {self.config.length}; pass fewer"
            )
        x = self.embedding(ids)
        rotation = None
        if self.config.positions == "rotary":  # products depend on distances only: nothing restarts
            rotation = self.rotation[start:stop]
        elif isinstance(documents, Documents) and documents.positions is not None:
            x = x + self.positions(documents.positions)
        else:
            x = x + self.positions.weight[start:stop]
        x = self.embedding_dropout(x)
        seen = _seen(ids, documents, start)
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, seen, None if cache is None else cache.layers[number])
        if cache is not None:
            cache.length = stop
            x = x[:, -1:]
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def skeleton(config: ModelConfig, tensors: int, numbers: int, path: str) -> GPT:
    """A model on the meta device, without memory for its weights: the shapes that a file should have.

    ``tensors`` and ``numbers`` are the counts in the file ``path``. A configuration that needs many times
    more is refused before any time is spent on it; the caller compares the shapes.
    """
    width, layers = config.n_embd, config.n_layer
    needed = width * (config.vocab_size + 12 * layers * width)
    rotation = 0
    if config.positions == "learned":
        needed += config.length * width
    else:  # computed, so that a small model can have a longer context than its weights could store
        rotation = config.length * config.head_size
    if needed > 16 * numbers or layers > 16 * tensors or rotation > numbers + _MOST_ROTATIONS:
        raise FormatError(
            f"{path}: its configuration does not fit its weights ({brief(max(needed, rotation))} numbers in "
            f"{brief(layers)} layers, expected the {numbers} of its {tensors} tensors); copy the files "
            "again, all from one place"
        )
    with torch.device("meta"):
        return GPT(config)


def rotations(length: int, head_size: int, base: float = 10_000.0) -> Tensor:
    """Rotation of each pair of features at each position: cosines and sines (T, D / 2, 2)."""
    speeds = base ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries and keys (B, T, 2, H, D), so that their products depend on distances only.

    As complex numbers, whose product takes one pass through memory where cosines and sines take four.
    """
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    product = pairs * torch.view_as_complex(rotation)[:, None, None]
    return torch.view_as_real(product).flatten(-2).type_as(x)


def _seen(ids: Tensor, documents: Tensor | Documents | None, start: int) -> Tensor | Documents | None:
    """Attention mask (B or 1, 1, T, tokens so far); None where ``is_causal`` or a single token needs none."""
    length = ids.shape[1]
    if documents is not None:
        if start:
            raise ArgumentError("documents and cache exclude each other; generate one document at a time")
        return mask_of(documents) if isinstance(documents, Tensor) else documents
    if start == 0 or length == 1:
        return None
    return torch.ones(length, start + length, dtype=torch.bool, device=ids.device).tril(start)[None, None]


def _norm(config: ModelConfig) -> nn.Module:
    if config.norm == "layernorm":
        return nn.LayerNorm(config.n_embd, bias=config.bias)
    return nn.RMSNorm(config.n_embd)


class LayerCache:
    """Keys and values of one layer, in memory that is allocated once."""

    def __init__(self, model: GPT, batch: int) -> None:
        config, like = model.config, model.embedding.weight
        shape = (2, batch, config.n_head, config.length, config.head_size)
        self._kept = torch.empty(shape, dtype=like.dtype, device=like.device)
        self._length = 0

    def extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append, and return all keys and values so far."""
        start, self._length = self._length, self._length + k.shape[2]
        self._kept[0, :, :, start : self._length] = k
        self._kept[1, :, :, start : self._length] = v
        keys, values = self._kept[:, :, :, : self._length]
        return keys, values


class Cache:
    """Keys and values of all layers, so that the next token costs the work of one."""

    def __init__(self, model: GPT, batch: int = 1) -> None:
        self.length = 0
        self.layers = [LayerCache(model, batch) for _ in model.blocks]
