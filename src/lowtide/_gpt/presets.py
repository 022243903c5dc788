"""What ``--preset`` means: names of settings and their values. Nothing else is special about a preset.

``nanogpt`` has what nanoGPT's train.py has; ``modern`` what gave the best loss for the same tokens and time:
docs/gpt.md tells what each ingredient brings.
"""

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
"""The fields of ``ModelConfig`` that a preset decides; the sizes and the dropout are the user's."""

OPTIMISERS: dict[str, dict[str, Any]] = {
    "nanogpt": {
        "optimiser": "adamw",
        "learning_rate": 6e-4,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "grad_clip": 1.0,
    },
    "modern": {
        "optimiser": "muon",
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "grad_clip": 1.0,
    },
}
"""How a preset trains. The learning rate is AdamW's; Muon's is a multiple of it: one value does for both."""
