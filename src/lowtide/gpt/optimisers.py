"""The optimisers: AdamW alone, or Muon for the matrices inside the blocks and AdamW for the rest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from lowtide.errors import ArgumentError
from lowtide.gpt.model import GPT, torch

Name = Literal["adamw", "muon"]

_MUON_RATE = 20.0  # times the learning rate of AdamW


class Optimiser:
    """Several optimisers as one; a group's ``scale`` times the learning rate is its parameters' rate."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts

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


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal: every direction of a matrix moves by the same amount.

    As ``torch.optim.Muon``, which treats the matrices one by one; here those of one shape go together, in half
    the time on a CPU, where a small model spends a third of its step in it.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            gradients = [p.grad for p in parameters]
            momenta = [self.state[p]["momentum"] for p in parameters]
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov's
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            alike: dict[tuple[int, int], list[int]] = defaultdict(list)
            for number, p in enumerate(parameters):
                alike[min(p.shape), max(p.shape)].append(number)
            for numbers in alike.values():
                wide = [parameters[n].shape[0] <= parameters[n].shape[1] for n in numbers]
                stacked = torch.stack([ahead[n] if w else ahead[n].T for n, w in zip(numbers, wide, strict=True)])
                for n, w, update in zip(numbers, wide, orthogonal(stacked), strict=True):
                    rows, columns = parameters[n].shape
                    rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                    parameters[n].add_(update if w else update.T, alpha=-rate)


STEPS = ((3.4445, -4.7750, 2.0315),) * 5

def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest matrices with orthogonal rows, roughly; (N, rows, columns) with rows <= columns."""
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in STEPS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


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
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2] if optimiser == "muon" else []
    taken = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay, "scale": 1.0},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "scale": 1.0},
    ]
    fused = device_type in ("cpu", "cuda")
    parts: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), fused=fused)
    ]
    if matrices:
        group = {"params": matrices, "scale": _MUON_RATE}
        parts.append(Muon([group], lr=learning_rate, momentum=0.95, weight_decay=weight_decay))
    made = Optimiser(parts)
    made.set_learning_rate(learning_rate)
    return made
