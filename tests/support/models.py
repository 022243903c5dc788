"""Small models for the tests."""

from __future__ import annotations

from typing import Any

import torch

from lowtide._gpt.model import GPT, ModelConfig
from lowtide._gpt.presets import ARCHITECTURES

VARIANTS = {
    "nanogpt": ARCHITECTURES["nanogpt"],
    "modern": ARCHITECTURES["modern"],
    "gpt2": {**ARCHITECTURES["nanogpt"], "bias": True, "activation": "gelu_tanh"},
    "rmsnorm": {**ARCHITECTURES["modern"], "norm": "rmsnorm"},
}


def config(variant: str = "modern", **changed: Any) -> ModelConfig:
    sizes = {"vocab_size": 50, "length": 16, "n_layer": 2, "n_head": 2, "n_embd": 16, "dropout": 0.0}
    return ModelConfig(**{**sizes, **VARIANTS[variant], **changed})


def model(variant: str = "modern", seed: int = 0, **changed: Any) -> GPT:
    """A model in which every weight matters: none is zero, and the logits differ."""
    torch.manual_seed(seed)
    gpt = GPT(config(variant, **changed))
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return gpt.eval()


def ids(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(seed))
