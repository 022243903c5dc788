"""Values of ``--preset`` and of the device. Nothing else is special about a preset."""

from __future__ import annotations

from typing import Any

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "nanogpt": {
        "bias": False,
        "norm": "layernorm",
        "positions": "learned",
        "activation": "gelu",
        "qk_norm": False,
        "tied": True,
        "zero_init": False,
    },
    # The best loss for the same tokens and time; docs/gpt.md has the contribution of each choice.
    "modern": {
        "bias": False,
        "norm": "layernorm",
        "positions": "rotary",
        "activation": "relu2",
        "qk_norm": True,
        "tied": False,
        "zero_init": True,
    },
}
"""The fields of ``ModelConfig`` that a preset decides; sizes and dropout are up to the user."""

_ADAMW = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0}
OPTIMISERS: dict[str, dict[str, Any]] = {
    "nanogpt": {"optimiser": "adamw", "learning_rate": 6e-4, **_ADAMW},
    "modern": {"optimiser": "muon", "learning_rate": 1e-3, **_ADAMW},
}
"""How a preset trains. The learning rate is AdamW's; Muon's is a multiple of it, so one value serves both."""

# nanoGPT's recipes for a character model: minutes on a laptop's CPU, minutes on a GPU.
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "n_layer": 4, "n_head": 4, "n_embd": 128, "length": 64, "batch_size": 12, "max_iters": 2000,
        "eval_iters": 20, "dtype": "float32",
    },
    "gpu": {
        "n_layer": 6, "n_head": 6, "n_embd": 384, "length": 256, "batch_size": 64, "max_iters": 5000,
        "eval_iters": 200, "dtype": "bfloat16",
    },
}  # fmt: skip
"""Defaults that depend on the device."""
