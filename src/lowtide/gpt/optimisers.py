"""The optimisers: AdamW alone, or Muon for the matrices inside the blocks and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from lowtide.errors import ArgumentError
from lowtide.gpt.model import GPT, torch

Name = Literal["adamw", "muon"]

_MUON_RATE = 20.0  # times the learning rate of AdamW: an orthogonal update has entries that small


class Optimiser:
    """Several optimisers as one. A group's ``scale`` times the learning rate is the rate of its parameters."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts

    @torch.no_grad()
    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def set_learning_rate(self, rate: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate * group["scale"]

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


def make(
    model: GPT,
    *,
    optimiser: Name,
    learning_rate: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    device_type: str,
) -> Optimiser:
    """The optimiser of a model. Make it on the bare model, before DDP or ``torch.compile`` wrap it."""
    if optimiser not in get_args(Name):
        raise ArgumentError(f"optimiser must be one of {', '.join(get_args(Name))}, got {optimiser!r}")
    parameters = list(model.parameters())
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2] if optimiser == "muon" else []
    taken = {id(p) for p in matrices}
    rest = [p for p in parameters if id(p) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay, "scale": 1.0},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "scale": 1.0},
    ]
    parts: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            groups, lr=learning_rate, betas=(beta1, beta2), fused=device_type in ("cpu", "cuda")
        )
    ]
    if matrices:
        parts.append(
            torch.optim.Muon(
                [{"params": matrices, "scale": _MUON_RATE}], lr=learning_rate, weight_decay=weight_decay
            )
        )
    made = Optimiser(parts)
    made.set_learning_rate(learning_rate)
    return made
