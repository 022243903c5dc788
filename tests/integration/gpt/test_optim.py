"""lowtide._gpt.optim: parameter groups, Muon, and saved states."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from lowtide._gpt.model import GPT
from lowtide._gpt.optim import Muon, Optimiser, factors, make
from lowtide.errors import StateError
from tests.support.models import ids, model
from tests.support.training import tiny


def optimiser(gpt: GPT, name: Any, rate: float = 1e-2) -> Optimiser:
    return make(gpt, tiny("corpus", optimiser=name, learning_rate=rate, beta2=0.99))


def train(gpt: GPT, instance: Optimiser, steps: range) -> list[float]:
    losses = []
    for step in steps:
        loss = gpt(ids(2, 8, seed=step), ids(2, 8, seed=step + 1))[1]
        loss.backward()
        instance.step()
        instance.zero_grad()
        losses.append(loss.item())
    return losses


def names(gpt: GPT, group: dict[str, Any]) -> set[str]:
    ours = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in gpt.named_parameters() if id(parameter) in ours}


def test_adamw_decays_matrices_only() -> None:
    gpt = model("gpt2")
    (adamw,) = optimiser(gpt, "adamw").parts
    assert isinstance(adamw, torch.optim.AdamW)
    decay = {name: group["weight_decay"] for group in adamw.param_groups for name in names(gpt, group)}
    assert decay == {name: 0.1 if p.ndim == 2 else 0.0 for name, p in gpt.named_parameters()}
    assert all(group["betas"] == (0.9, 0.99) for group in adamw.param_groups)
    assert all(group["lr"] == 1e-2 for group in adamw.param_groups)


def test_muon_optimises_block_matrices_only() -> None:
    gpt = model("modern")
    adamw, muon = optimiser(gpt, "muon").parts
    matrices = set().union(*(names(gpt, group) for group in muon.param_groups))
    kinds = ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")
    assert matrices == {f"blocks.{number}.{kind}.weight" for number in range(2) for kind in kinds}
    rest = set().union(*(names(gpt, group) for group in adamw.param_groups))
    assert rest == {name for name, _ in gpt.named_parameters()} - matrices
    assert "embedding.weight" in rest
    assert "head.weight" in rest


def orthogonal(stacks: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    stacks = [stack.to(dtype) for stack in stacks]
    pairs = zip(stacks, factors(stacks), strict=True)
    return [(x @ f if x.shape[1] > x.shape[2] else f @ x).float() for x, f in pairs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_orthogonal_gives_singular_values_near_one(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = (3, 24, 24), (3, 24, 60), (3, 60, 24)
    values = torch.logspace(0, -2, 24) * torch.tensor([1e-6, 1.0, 1e4])[:, None]
    parts = [torch.linalg.svd(torch.randn(shape), full_matrices=False) for shape in shapes]
    stacks = [left * values[:, None] @ right for left, _, right in parts]
    for result, (left, _, right) in zip(orthogonal(stacks, dtype), parts, strict=True):
        singular = torch.linalg.svdvals(result)
        assert singular.max() < 2.6
        assert singular[:, :12].min() > 0.5  # the largest half, down to a tenth of the largest
        nearest = left @ right
        assert (
            (result * nearest).sum((1, 2)) / result.norm(dim=(1, 2)) / nearest.norm(dim=(1, 2))
        ).min() > 0.9
    zeros = [torch.zeros(shape) for shape in shapes]
    assert all(not result.any() for result in orthogonal(zeros, dtype))


def test_muon_agrees_with_torch() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(16, 48)) for _ in range(3)]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    start = torch.stack([matrix.detach().clone() for matrix in ours])
    settings: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95}
    muons = (Muon([{"params": ours}], **settings), torch.optim.Muon(theirs, **settings))
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for muon in muons:
            muon.step()
    moved, expected = torch.stack([*ours]) - start, torch.stack([*theirs]) - start
    assert torch.cosine_similarity(moved.flatten(1), expected.flatten(1)).min() > 0.9
    assert (moved.norm() / expected.norm()).item() == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimiser_reduces_loss(name: str, tied: bool) -> None:
    gpt = model("modern", tied=tied)
    tokens = ids(2, 8)
    instance = optimiser(gpt, name, 2e-3)
    first = gpt(tokens, tokens)[1].item()
    for _ in range(40):
        gpt(tokens, tokens)[1].backward()
        instance.step()
        instance.zero_grad()
    assert gpt(tokens, tokens)[1].item() < first / 2


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_restored_state_continues_exactly(name: str) -> None:
    gpt = model("modern")
    instance = optimiser(gpt, name)
    train(gpt, instance, range(4))
    file = io.BytesIO()
    torch.save(instance.state_dict(), file)
    again = copy.deepcopy(gpt)
    expected = train(gpt, instance, range(4, 8))
    file.seek(0)
    resumed = optimiser(again, name)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert train(again, resumed, range(4, 8)) == expected


def test_learning_rate_is_scaled_per_group() -> None:
    instance = optimiser(model("modern"), "muon", 1.0)
    before = [group["lr"] for part in instance.parts for group in part.param_groups]
    instance.set_learning_rate(0.5)
    assert [group["lr"] for part in instance.parts for group in part.param_groups] == [
        rate / 2 for rate in before
    ]


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part["state"].update({99: {}}),
        lambda part: part["state"].update({0: 1}),
        lambda part: part["state"][0].update(more=torch.ones(1)),
        lambda part: part["state"][0].update(dict.fromkeys(part["state"][0], torch.ones(3))),
        lambda part: part["state"][0].update(dict.fromkeys(part["state"][0], "x")),
        lambda part: part.update(state=[]),
    ],
)
def test_damaged_state_raises(name: str, damage: Any) -> None:
    gpt = model("modern")
    instance = optimiser(gpt, name)
    train(gpt, instance, range(2))
    state = instance.state_dict()
    damage(state["parts"][-1])
    with pytest.raises(StateError):
        optimiser(gpt, name).load_state_dict(state)


@pytest.mark.parametrize("groups", [[], [{"lr": float("nan")}] * 2, "groups"])
def test_rates_of_a_state_are_not_used(groups: Any) -> None:
    gpt = model("modern")
    instance = optimiser(gpt, "adamw")
    train(gpt, instance, range(2))
    state = instance.state_dict()
    state["parts"][0]["param_groups"] = groups
    resumed = optimiser(gpt, "adamw", rate=0.5)
    resumed.load_state_dict(state)
    assert all(group["lr"] == 0.5 for group in resumed.parts[0].param_groups)


def test_nan_step_raises() -> None:
    gpt = model("modern")
    instance = optimiser(gpt, "adamw")
    train(gpt, instance, range(2))
    state = instance.state_dict()
    state["parts"][0]["state"][0]["step"] = torch.tensor(float("nan"))
    with pytest.raises(StateError, match="step of parameter 0 is nan"):
        instance.load_state_dict(state)
