"""A GPT of lowtide for ``transformers``. This file needs nothing of lowtide.

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Names of weights are those of lowtide's own model. Shapes in the comments: B sequences of T tokens, H heads of
D features each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class LowtideConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The architecture, under lowtide's names; ``transformers`` has its own for the sizes."""

    model_type = "lowtide"
    keys_to_ignore_at_inference = ("past_key_values",)
    attribute_map = {  # noqa: RUF012 - as transformers declares it
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "length",
    }

    def __init__(
        self,
        vocab_size: int = 257,
        length: int = 64,
        n_layer: int = 4,
        n_head: int = 4,
        n_embd: int = 128,
        dropout: float = 0.0,
        bias: bool = False,
        norm: str = "layernorm",
        positions: str = "rotary",
        activation: str = "relu2",
        qk_norm: bool = True,
        **more: Any,
    ) -> None:
        self.vocab_size, self.length = vocab_size, length
        self.n_layer, self.n_head, self.n_embd = n_layer, n_head, n_embd
        self.dropout, self.bias, self.norm = dropout, bias, norm
        self.positions, self.activation, self.qk_norm = positions, activation, qk_norm
        more.setdefault("tie_word_embeddings", False)
        super().__init__(**more)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: LowtideConfig, number: int) -> None:
        super().__init__()
        self.config, self.number = config, number
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor | None, past: Any) -> Tensor:
        config = self.config
        batch, length, width = x.shape
        size = width // config.n_head
        qk, v = self.qkv(x).split((2 * width, width), dim=2)
        qk = qk.view(batch, length, 2, config.n_head, size)
        v = v.view(batch, length, config.n_head, size)
        if config.qk_norm:
            normalize = F.layer_norm if config.norm == "layernorm" else F.rms_norm
            qk = normalize(qk.contiguous(), (size,))
        if rotation is not None:
            qk = rotate(qk, rotation)
        q, k, v = (part.transpose(1, 2) for part in (*qk.unbind(2), v))  # each (B, H, T, D)
        if past is not None:
            k, v = past.update(k, v, self.number)
        dropout = config.dropout if self.training else 0.0
        causal = mask is None and length > 1
        y = F.scaled_dot_product_attention(
            q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, config.dropout, self.training)


class FeedForward(nn.Module):
    """Two matrices per token: to four times the width and back."""

    def __init__(self, config: LowtideConfig) -> None:
        super().__init__()
        self.config = config
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.config.activation == "relu2":
            x = F.relu(x).square()
        else:
            x = F.gelu(x, approximate="tanh" if self.config.activation == "gelu_tanh" else "none")
        return F.dropout(self.down(x), self.config.dropout, self.training)


class Block(nn.Module):
    """Attention, then the feed-forward network, each with a residual connection."""

    def __init__(self, config: LowtideConfig, number: int) -> None:
        super().__init__()
        self.attention_norm = norm_of(config)
        self.attention = Attention(config, number)
        self.feed_forward_norm = norm_of(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor | None, past: Any) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask, past)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class LowtideForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Token ids in, logits of the next token out."""

    config_class = LowtideConfig
    supports_gradient_checkpointing = False
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - as transformers declares it

    def __init__(self, config: LowtideConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.length, config.n_embd)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.n_layer))
        self.norm = norm_of(config)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **more: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, vocab_size); the loss of ``labels``, which are shifted here, -100 being ignored."""
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        length = x.shape[1]
        if past + length > self.config.length:
            raise ValueError(
                f"{past + length} tokens exceed the model's context length, {self.config.length}; pass fewer"
            )
        documents = None
        if position_ids is None:
            position_ids = torch.arange(past, past + length, device=x.device)[None]
        elif past == 0 and attention_mask is None:  # as transformers does: where they restart, so does a text
            documents = (position_ids.diff(dim=1, prepend=position_ids[:, :1] - 1) != 1).cumsum(1)
        rotation = None
        if self.config.positions == "learned":
            x = x + self.positions(position_ids)
        else:
            rotation = rotations(position_ids, self.config.n_embd // self.config.n_head)
        x = F.dropout(x, self.config.dropout, self.training)
        mask = mask_of(attention_mask, length, past, x.device)
        if documents is not None and bool(documents.any()):
            same = documents[:, None, :, None] == documents[:, None, None, :]
            mask = same.tril()
        for block in self.blocks:
            x = block(x, rotation, mask, past_key_values)
        logits = self.head(self.norm(x[:, -logits_to_keep:] if logits_to_keep else x))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **more)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)


def norm_of(config: LowtideConfig) -> nn.Module:
    """A normalization layer."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.n_embd, bias=config.bias)
    return nn.RMSNorm(config.n_embd)


def rotations(positions: Tensor, size: int) -> Tensor:
    """Rotation of each pair of features at each position: complex (B, T, 1, 1, D / 2)."""
    # On the CPU in double precision, as lowtide computes them; some devices have none.
    speeds = 10_000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / size)
    angles = positions.to("cpu", torch.float64)[..., None] * speeds
    pairs = torch.stack((angles.cos(), angles.sin()), dim=-1).float()
    return torch.view_as_complex(pairs.to(positions.device))[:, :, None, None]


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries and keys (B, T, 2, H, D), so that their products depend on distances only."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)


def mask_of(given: Tensor | None, length: int, past: int, device: torch.device) -> Tensor | None:
    """Which keys each query sees (B or 1, 1, T, past + T); None where no mask is needed."""
    if given is not None and given.ndim == 4:  # made by transformers already
        return given
    if given is None or bool(given.all()):
        if past == 0 or length == 1:
            return None
        given = None
    causal = torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)[None, None]
    if given is None:
        return causal
    seen = causal & given[:, None, None, :].bool()
    # A query of padding sees itself: of no key at all the softmax is not a number.
    itself = torch.eye(past + length, dtype=torch.bool, device=device)[past:][None, None]
    return seen | itself
