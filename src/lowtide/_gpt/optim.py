"""Optimisers (AdamW alone, or Muon for the matrices of the blocks and AdamW for the rest) and schedules."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from lowtide._gpt.config import Settings
from lowtide._gpt.model import GPT, torch
from lowtide._printable import brief
from lowtide.errors import StateError

# Muon's rate as a multiple of AdamW's, so that one learning rate serves both: an orthogonal update has
# small entries. With 20 the loss falls more slowly for as long as the rate is high.
_MATRICES = 12.0


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of the step after ``step`` steps, a pure function.

    Both schedules rise linearly for ``warmup_iters``. ``cosine`` then falls as half a cosine; ``wsd`` stays
    at the top and falls linearly over the last ``cooldown_iters``. Both reach ``min_lr`` at
    ``lr_decay_iters`` and stay there.
    """
    top, bottom = settings.learning_rate, settings.min_lr
    if step < settings.warmup_iters:
        return top * (step + 1) / (settings.warmup_iters + 1)
    if step >= settings.lr_decay_iters:
        return bottom
    if settings.schedule == "cosine":
        part = (step - settings.warmup_iters) / (settings.lr_decay_iters - settings.warmup_iters)
        return bottom + 0.5 * (1 + math.cos(math.pi * part)) * (top - bottom)
    remaining = settings.lr_decay_iters - step
    return bottom + min(1.0, remaining / max(1, settings.cooldown_iters)) * (top - bottom)


class Optimiser:
    """Several optimisers as one; the rate of a group is its ``scale`` times the learning rate."""

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
        """Restore the state of such an optimiser. Its groups, with their learning rates, stay as they are."""
        parts = state.get("parts")
        if not isinstance(parts, list) or len(parts) != len(self.parts):
            raise StateError(f"not the state of this optimiser: expected {len(self.parts)} parts")
        for part, saved in zip(self.parts, parts, strict=True):
            known = saved.get("state") if isinstance(saved, dict) else None
            _check(known, _shapes(part))
            part.load_state_dict({"state": known, "param_groups": part.state_dict()["param_groups"]})


_Shapes = dict[int, dict[str, tuple[int, ...]]]


def _shapes(part: torch.optim.Optimizer) -> _Shapes:
    """Shapes of the tensors that an optimiser keeps, by parameter; numbers run through all groups."""
    shapes: _Shapes = {}
    count = 0
    for group in part.param_groups:
        parameters = group["params"]
        for number, parameter in enumerate(parameters, count):
            shape = tuple(parameter.shape)
            if not isinstance(part, Muon):
                shapes[number] = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
            elif number == count:
                shapes[number] = {"momenta": (len(parameters), *shape)}
        count += len(parameters)
    return shapes


def _check(state: Any, expected: _Shapes) -> None:
    """Compare shapes: PyTorch accepts any state, and fails at the next step or computes nonsense."""
    if not isinstance(state, dict) or not state.keys() <= expected.keys():
        raise StateError(f"not the state of this optimiser: expected one of {len(expected)} parameters")
    for number, tensors in state.items():
        shapes = {
            name: tuple(tensor.shape)
            for name, tensor in (tensors.items() if isinstance(tensors, dict) else ())
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        }
        if shapes != expected[number] or len(tensors) != len(shapes):
            raise StateError(
                f"not the state of this optimiser: parameter {number} has {brief(shapes)}, expected "
                f"{expected[number]}"
            )
        if "step" in tensors and not 0 <= float(tensors["step"]) < math.inf:
            raise StateError(f"the optimiser's step of parameter {number} is {float(tensors['step'])}")


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum: every direction of a matrix moves by the same amount.

    The method of ``torch.optim.Muon``, which processes matrices one by one. Here the matrices of a group have
    the same shape and are processed together, in two iterations that get as far as its five. On a CPU a
    small model would spend a third of its time in ``torch.optim.Muon``.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        stacks = [self._momenta(group).to(self._dtype) for group in self.param_groups]
        for group, stack, factor in zip(self.param_groups, stacks, factors(stacks), strict=True):
            matrices, rate = group["params"], group["lr"]
            rows, columns = matrices[0].shape
            keep, amount = 1 - rate * group["weight_decay"], -rate * math.sqrt(max(1.0, rows / columns))
            left, right = (stack, factor) if _tall(stack) else (factor, stack)
            if stack.dtype == matrices[0].dtype:  # decay, product and sum in one pass
                for matrix, one, other in zip(matrices, left, right, strict=True):
                    matrix.addmm_(one, other, beta=keep, alpha=amount)
            else:
                torch._foreach_mul_(matrices, keep)
                torch._foreach_add_(matrices, (left @ right).unbind(), alpha=amount)

    def _momenta(self, group: dict[str, Any]) -> torch.Tensor:
        """Nesterov momenta of the matrices, stacked."""
        matrices = group["params"]
        gradients = torch.stack([matrix.grad for matrix in matrices])
        state = self.state[matrices[0]]  # the first one keeps the momenta of all
        if not state:
            state["momenta"] = torch.zeros_like(gradients)
        momenta = state["momenta"].lerp_(gradients, 1 - group["momentum"])
        return gradients.lerp_(momenta, group["momentum"])


@cache
def fastest_dtype(device: str) -> Literal["bfloat16", "float32"]:
    """The dtype in which ``device`` multiplies the Gram matrices of Muon faster.

    GPUs have bfloat16 units. CPUs are measured, which takes milliseconds: without such units (AVX512-BF16,
    AMX) bfloat16 takes 5 times as long as float32 with AVX-512, and 80 times with AVX2.
    """
    if not device.startswith("cpu"):
        return "bfloat16"
    return "bfloat16" if _product_seconds(torch.bfloat16) < _product_seconds(torch.float32) else "float32"


def _product_seconds(dtype: torch.dtype) -> float:
    matrices = torch.ones(4, 128, 128, dtype=dtype)
    seconds = []
    for _ in range(4):  # the first one compiles the kernel
        start = time.perf_counter()
        matrices @ matrices
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# Odd polynomials that bring singular values from 0.01 to 1 as near to one as two of these degrees can: the
# best one of degree 5, then the best one of degree 9 for the values that result, as in the Polar Express,
# https://arxiv.org/abs/2505.16932. They amplify small values as much as its first three iterations, of degree
# 5, with two thirds of the products.
FIRST = (8.09337, -23.62043, 17.44615)
SECOND = (5.67723, -13.23604, 11.47997, -3.92727, 0.45847)


def factors(stacks: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """For each stack of matrices (N, rows, columns) the square ones that make them orthogonal.

    Tall matrices times their factors, and factors times the other matrices, have singular values near one.
    A polynomial multiplies a matrix by an even polynomial, one of its Gram matrix. Those commute, so that all
    products are of Gram matrices, which are small and, since the shorter side of all matrices is the model's
    width, of one shape.
    """
    gram = torch.cat([x.mT @ x if _tall(x) else x @ x.mT for x in stacks])
    dtype = gram.dtype
    # The norm of the Gram matrix bounds its largest value more tightly than its trace does; dividing by the
    # trace first keeps the squares of small numbers.
    trace = gram.diagonal(dim1=1, dim2=2).float().sum(1)[:, None, None] + 1e-14
    gram.mul_(trace.reciprocal().to(dtype))
    norm = torch.linalg.vector_norm(gram, dim=(1, 2), keepdim=True, dtype=torch.float32) + 1e-7
    gram.mul_(norm.reciprocal().to(dtype))
    # Each polynomial is its first coefficient + change: bfloat16 has 8 bits, too few for the sum.
    scale, b, c = FIRST
    change = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    gram = torch.baddbmm(gram, change, gram, beta=scale)
    gram = torch.baddbmm(gram, gram, change, beta=scale)
    a, b, c, d, e = SECOND
    square = gram @ gram
    high = torch.add(gram, square, alpha=e / d)
    low = gram.mul_(b).add_(square, alpha=c)
    second = torch.baddbmm(low, square, high, alpha=d)
    result = torch.baddbmm(change, change, second, beta=a).add_(second, alpha=scale).float()
    result.diagonal(dim1=1, dim2=2).add_(scale * a)
    result.mul_((trace * norm).rsqrt())
    return result.to(dtype).split_with_sizes([len(x) for x in stacks])


def _tall(matrices: torch.Tensor) -> bool:
    return matrices.shape[1] > matrices.shape[2]


def make(model: GPT, settings: Settings) -> Optimiser:
    """Make the optimiser of a model, before DDP or ``torch.compile`` wrap it."""
    shapes: dict[tuple[int, ...], list[torch.Tensor]] = defaultdict(list)
    rest: list[torch.Tensor] = []
    inside = {id(parameter) for parameter in model.blocks.parameters()}
    for parameter in model.parameters():
        if settings.optimiser == "muon" and parameter.ndim == 2 and id(parameter) in inside:
            shapes[tuple(parameter.shape)].append(parameter)
        else:
            rest.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": settings.weight_decay, "scale": 1.0},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "scale": 1.0},
    ]
    rate, betas = settings.learning_rate, (settings.beta1, settings.beta2)
    fused = model.embedding.weight.device.type in ("cpu", "cuda")
    parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=rate, betas=betas, fused=fused)]
    if shapes:
        dtype = torch.bfloat16 if settings.muon_dtype == "bfloat16" else torch.float32
        stacks = [{"params": matrices, "scale": _MATRICES} for matrices in shapes.values()]
        parts.append(Muon(stacks, lr=rate, weight_decay=settings.weight_decay, dtype=dtype))
    result = Optimiser(parts)
    result.set_learning_rate(rate)
    return result
