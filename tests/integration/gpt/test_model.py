"""lowtide._gpt.model: attention, options and initialisation."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lowtide._gpt.model import GPT, Cache, ModelConfig, rotate, rotations
from lowtide.errors import ArgumentError
from tests.support.models import VARIANTS, config, ids, model

variants = pytest.mark.parametrize("variant", VARIANTS)


@variants
def test_attention_is_causal(variant: str) -> None:
    gpt, tokens = model(variant), ids(3, 10)
    before = gpt(tokens)[0]
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 50
    after = gpt(changed)[0]
    torch.testing.assert_close(after[:, :6], before[:, :6])
    assert (after[:, 6:] - before[:, 6:]).abs().max() > 0.01


@variants
def test_attention_reaches_earlier_tokens(variant: str) -> None:
    gpt, tokens = model(variant), ids(1, 10)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 50
    assert (gpt(changed)[0][:, -1] - gpt(tokens)[0][:, -1]).abs().max() > 1e-4


@variants
def test_attention_does_not_cross_documents(variant: str) -> None:
    gpt, tokens = model(variant), ids(2, 9)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0] * 9])
    masked = gpt(tokens, documents=documents)[0]
    torch.testing.assert_close(masked[1], gpt(tokens)[0][1])
    torch.testing.assert_close(masked[0, :3], gpt(tokens)[0][0, :3])
    changed = tokens.clone()
    changed[0, :3] = (changed[0, :3] + 1) % 50
    torch.testing.assert_close(gpt(changed, documents=documents)[0][0, 3:], masked[0, 3:])
    if gpt.config.positions == "rotary":  # which knows distances alone
        torch.testing.assert_close(masked[0, 3:7], gpt(tokens[:1, 3:7])[0][0])


@variants
def test_loss_ignores_masked_targets(variant: str) -> None:
    gpt, tokens, targets = model(variant), ids(2, 8), ids(2, 8, seed=2)
    logits, loss = gpt(tokens, targets)
    expected = -torch.log_softmax(logits, -1).gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(loss, expected.mean())
    targets[0, :5] = -1
    _, loss = gpt(tokens, targets)
    torch.testing.assert_close(loss, torch.cat((expected[0, 5:], expected[1])).mean())
    assert gpt(tokens)[1] is None


@variants
def test_cache_gives_the_same_logits(variant: str) -> None:
    gpt, tokens = model(variant), ids(2, 16)
    whole = gpt(tokens)[0]
    cache = Cache(gpt, batch=2)
    for start, stop in ((0, 5), (5, 6), (6, 7), (7, 12), (12, 16)):
        scores, _ = gpt(tokens[:, start:stop], cache=cache)
        assert scores.shape == (2, 1, 50)
        torch.testing.assert_close(scores[:, 0], whole[:, stop - 1], atol=1e-5, rtol=1e-4)
    with pytest.raises(ArgumentError, match=r"17 tokens exceed the model's context length, 16"):
        gpt(tokens[:, :1], cache=cache)


def test_documents_with_cache_raise() -> None:
    gpt, tokens = model(), ids(1, 4)
    cache = Cache(gpt)
    gpt(tokens, cache=cache)
    with pytest.raises(ArgumentError, match="exclude each other"):
        gpt(tokens, documents=torch.zeros_like(tokens), cache=cache)


def test_nanogpt_preset_has_the_initialisation_of_gpt2() -> None:
    torch.manual_seed(0)
    gpt = GPT(config("nanogpt", n_embd=128, n_layer=4, vocab_size=500))
    assert gpt.head.weight is gpt.embedding.weight
    for name, parameter in gpt.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            writes = name.endswith(("out.weight", "down.weight"))
            assert parameter.std().item() == pytest.approx(0.02 / 8**0.5 if writes else 0.02, rel=0.05)


def test_biases_are_optional_and_start_at_zero() -> None:
    gpt = GPT(config("gpt2"))
    biases = [parameter for name, parameter in gpt.named_parameters() if name.endswith("bias")]
    assert len(biases) == 2 * 6 + 1
    assert all(not bias.any() for bias in biases)
    assert not [name for name, _ in GPT(config("nanogpt")).named_parameters() if name.endswith("bias")]


def test_zero_init_makes_blocks_the_identity() -> None:
    gpt = GPT(config("modern"))
    x = torch.randn(2, 5, 16)
    for block in gpt.blocks:
        assert torch.equal(block(x, gpt.rotation[:5], None, None), x)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("relu2", lambda x: x.clamp(min=0) ** 2),
    ],
)
def test_activation_matches_reference(activation: str, expected: Any) -> None:
    part: Any = model("nanogpt", activation=activation).blocks[0].feed_forward
    x = torch.randn(3, 16)
    torch.testing.assert_close(part(x), expected(x @ part.up.weight.T) @ part.down.weight.T)


def test_rotary_products_depend_on_the_distance_only() -> None:
    q, k = torch.randn(2, 8)
    product = rotate(torch.stack((q, k)).expand(1, 12, 2, 8)[:, :, :, None].contiguous(), rotations(12, 8))
    products = product[0, :, 0, 0] @ product[0, :, 1, 0].T
    for shift in range(-8, 9):
        along = products.diagonal(shift)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    torch.testing.assert_close(product.norm(dim=-1)[0, :, 0, 0], q.norm().expand(12))
    assert products[0, 3] != pytest.approx(products[0, 0].item(), abs=1e-3)


@pytest.mark.parametrize("variant", ["modern", "rmsnorm"])
def test_qk_norm_ignores_the_scale_of_queries_and_keys(variant: str) -> None:
    gpt, tokens = model(variant), ids(1, 8)
    before = gpt(tokens)[0]
    with torch.no_grad():
        for block in gpt.blocks:
            part: Any = block
            part.attention.qkv.weight[:32] *= 10
    torch.testing.assert_close(gpt(tokens)[0], before, atol=1e-3, rtol=1e-3)


def test_dropout_applies_only_in_training() -> None:
    gpt, tokens = model(dropout=0.5), ids(2, 8)
    assert torch.equal(gpt(tokens)[0], gpt(tokens)[0])
    gpt.train()
    assert not torch.equal(gpt(tokens)[0], gpt(tokens)[0])


def test_configuration_round_trip_through_json() -> None:
    original = config("gpt2")
    assert ModelConfig(**json.loads(json.dumps(dataclasses.asdict(original)))) == original


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_head": 3}, "n_embd must be a multiple of n_head, got 16 for 3 heads"),
        ({"n_head": 16}, "n_embd / n_head must be even for rotary positions, got 1"),
        ({"n_layer": 0}, "n_layer must be .* 1, got 0"),
        ({"vocab_size": True}, "vocab_size must be an integer, got True"),
        ({"dropout": 1.0}, "dropout must be a number >= 0 and < 1, got 1.0"),
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm, got 'batchnorm'"),
        ({"activation": "swish"}, "activation must be one of gelu, gelu_tanh, relu2, got 'swish'"),
    ],
)
def test_invalid_configurations_raise(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        config(**changed)


def test_too_many_tokens_raise() -> None:
    with pytest.raises(ArgumentError, match="17 tokens exceed the model's context length, 16"):
        model()(ids(1, 17))
