"""lowtide._gpt.generate: tokens and text from a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lowtide._gpt.generate import TextStream, generate, restrict
from lowtide._gpt.model import GPT
from lowtide._prepare import tokenizers
from lowtide.errors import ArgumentError, DivergedError
from tests.support.models import VARIANTS, model


def tokens_of(gpt: GPT, prompt: list[int], seed: int = 3, **options: Any) -> list[int]:
    return list(generate(gpt, prompt, generator=torch.Generator().manual_seed(seed), **options))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("prompt", [[7], [1, 2, 3], list(range(16)), list(range(40))])
@pytest.mark.parametrize("how", [{"temperature": 0}, {}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}])
def test_cache_does_not_change_tokens(variant: str, prompt: list[int], how: Any) -> None:
    gpt = model(variant)
    cached = tokens_of(gpt, prompt, max_new_tokens=40, **how)  # more than twice its length
    assert len(cached) == 40
    assert len(set(cached)) > 3 or how == {"temperature": 0}  # which may run in circles
    assert tokens_of(gpt, prompt, max_new_tokens=40, cache=False, **how) == cached


def test_greedy_takes_the_most_likely_token() -> None:
    gpt, context = model(), [5, 6]
    for token in generate(gpt, context, max_new_tokens=14, temperature=0):
        scores, _ = gpt(torch.tensor([context]))
        assert token == scores[0, -1].argmax()
        context = [*context, token]


def test_full_context_keeps_its_newer_half() -> None:
    gpt, prompt = model(), list(range(16))
    first, second = generate(gpt, prompt, max_new_tokens=2, temperature=0)
    assert second == gpt(torch.tensor([[*range(9, 16), first]]))[0][0, -1].argmax()


def test_same_seed_gives_the_same_text() -> None:
    gpt = model()
    assert tokens_of(gpt, [1], seed=1, max_new_tokens=20) == tokens_of(gpt, [1], seed=1, max_new_tokens=20)
    assert tokens_of(gpt, [1], seed=1, max_new_tokens=20) != tokens_of(gpt, [1], seed=2, max_new_tokens=20)


def test_generation_stops_before_stop_token() -> None:
    gpt = model()
    tokens = tokens_of(gpt, [1], max_new_tokens=30)
    end = tokens[12]
    assert tokens_of(gpt, [1], max_new_tokens=30, stop=end) == tokens[: tokens.index(end)]
    assert tokens_of(gpt, [1], max_new_tokens=0) == []


def test_tokens_are_generated_lazily() -> None:
    tokens = generate(model(), [1], max_new_tokens=10**9)
    assert all(0 <= next(tokens) < 50 for _ in range(3))


def test_tokens_follow_their_probabilities() -> None:
    gpt = model()
    scores = gpt(torch.tensor([[1]]))[0][0, -1]
    drawn = torch.tensor(
        [tokens_of(gpt, [1], seed=seed, max_new_tokens=1, top_k=3)[0] for seed in range(600)]
    )
    probabilities = torch.softmax(restrict(scores, 3, None), 0)
    torch.testing.assert_close(torch.bincount(drawn, minlength=50) / 600, probabilities, atol=0.08, rtol=0)


def test_top_k_and_top_p_restrict_tokens() -> None:
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    kept = [
        (None, None, [0, 1, 2, 3]),
        (1, None, [1]),
        (3, None, [1, 2, 3]),
        (9, None, [0, 1, 2, 3]),
        (None, 0.05, [1]),
        (None, 0.39, [1]),
        (None, 0.41, [1, 3]),
        (None, 0.95, [0, 1, 2, 3]),
        (2, 0.5, [1]),  # of the two, the first has 4/7
        (2, 0.6, [1, 3]),
    ]
    for top_k, top_p, expected in kept:
        restricted = restrict(scores, top_k, top_p)
        assert restricted.isfinite().nonzero().flatten().tolist() == expected, (top_k, top_p)
        assert torch.equal(restricted[expected], scores[expected])


def test_top_k_keeps_k_of_equal_scores() -> None:
    assert restrict(torch.zeros(10), 4, None).isfinite().sum() == 4


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt has no tokens"),
        ([50], {}, "the prompt has the token 50, expected at most 49"),
        ([1], {"temperature": -1}, "temperature must be a number >= 0, got -1"),
        ([1], {"temperature": float("nan")}, "temperature must be a number >= 0, got nan"),
        ([1], {"top_k": 0}, "top_k must be .* 1, got 0"),
        ([1], {"top_p": 0}, "top_p must be a number > 0 and <= 1, got 0"),
        ([1], {"max_new_tokens": -1}, "max_new_tokens must be .* 0, got -1"),
    ],
)
def test_invalid_arguments_raise_at_once(prompt: list[int], options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        generate(model(), prompt, **{"max_new_tokens": 5, **options})


@given(st.text())
def test_streamed_text_equals_the_text(text: str) -> None:
    stream = TextStream(tokenizers.make("byte"))
    parts = [stream.add(token) for token in text.encode()]
    assert "".join(parts) == text
    assert stream.end() == ""


@given(st.binary(max_size=30))
def test_invalid_utf8_does_not_block_the_stream(data: bytes) -> None:
    stream = TextStream(tokenizers.make("byte"))
    text = "".join(stream.add(token) for token in [*data, *b"tide is low"]) + stream.end()
    assert text.endswith("tide is low")


def test_incomplete_characters_are_held_back() -> None:
    stream = TextStream(tokenizers.make("byte"))
    assert [stream.add(token) for token in b"a\xe2\x82\xac\xff\xf0\x9f\x98\x80!"] == [
        *("a", "", "", "€"),
        *("", "", "", "\ufffd", "😀", "!"),
    ]
    stream.add(0xE2)
    assert stream.end() == "\ufffd"


def test_logits_that_are_not_finite_raise() -> None:
    damaged = model("modern")
    with torch.no_grad():
        damaged.embedding.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="weights are damaged or have diverged"):
        list(generate(damaged, [1], max_new_tokens=1, generator=torch.Generator()))
