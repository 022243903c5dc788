"""Attention within documents: every way gives what a mask gives, and what each document gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lowtide._gpt import attention
from lowtide._gpt.attention import Documents, Split, Varlen, documents_of, has_varlen
from lowtide._tokens.documents import cu_seqlens
from tests.support.models import ids as tokens
from tests.support.models import model


def reference_kernel(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, **more: Any
) -> Any:
    """What ``torch.nn.attention.varlen.varlen_attn`` documents, by SDPA: its kernels need a GPU."""
    assert more == {"window_size": (-1, 0)}, "causal"
    assert max_q == max_k == int(np.diff(cu_q).max())
    parts = [part.split(np.diff(cu_q).tolist()) for part in (q, k, v)]
    attend: Any = torch.nn.functional.scaled_dot_product_attention
    heads_first = ([one.transpose(0, 1)[None] for one in some] for some in zip(*parts, strict=True))
    done = [attend(*some, is_causal=True) for some in heads_first]
    return torch.cat([one[0].transpose(0, 1) for one in done])


class ReferenceVarlen(Varlen):
    kernel = staticmethod(reference_kernel)


def documents(kind: type[Documents], marks: Any) -> Documents:
    ids = np.cumsum(np.asarray(marks, np.int32), axis=1, dtype=np.int32)
    borders = cu_seqlens(ids)
    positions = np.arange(ids.size) - np.repeat(borders[:-1], np.diff(borders))
    return kind(torch.from_numpy(ids), torch.from_numpy(positions.reshape(ids.shape)), borders)


@given(st.lists(st.lists(st.integers(0, 1), min_size=7, max_size=7), min_size=1, max_size=4), st.data())
def test_split_attention_matches_masked_attention(marks: list[list[int]], data: st.DataObject) -> None:
    shape = (len(marks), 2, 7, 4)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    results = []
    parts = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    for kind in (Documents, Split):
        leaves = [part.clone().requires_grad_() for part in parts]
        y = documents(kind, marks).attend(leaves[0], leaves[1], leaves[2], 0.0)
        y.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("variant", ["modern", "nanogpt"])
@pytest.mark.parametrize("kind", [Documents, Split])
def test_document_logits_match_document_alone(variant: str, kind: type[Documents]) -> None:
    gpt, x = model(variant), tokens(2, 12)
    marks = np.zeros((2, 12), np.int32)
    marks[0, 5] = marks[0, 9] = marks[1, 1] = 1
    logits = gpt(x, documents=documents(kind, marks))[0]
    for row, start, stop in ((0, 0, 5), (0, 5, 9), (0, 9, 12), (1, 0, 1), (1, 1, 12)):
        alone = gpt(x[row : row + 1, start:stop])[0]
        torch.testing.assert_close(logits[row : row + 1, start:stop], alone, atol=2e-5, rtol=1e-4)


def test_varlen_kernel_gets_borders_and_half_precision() -> None:
    marks = np.zeros((3, 8), np.int32)
    marks[0, 3] = marks[2, 7] = 1
    q, k, v = (torch.randn(3, 2, 8, 4) for _ in range(3))
    half = [part.bfloat16() for part in (q, k, v)]
    expected = documents(Documents, marks).attend(half[0], half[1], half[2], 0.0)
    # Norms leave queries and keys in float32 under autocast.
    result = documents(ReferenceVarlen, marks).attend(half[0].float(), half[1].float(), half[2], 0.0)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, atol=0.02, rtol=0.02)
    # What the kernel cannot do is done by a mask.
    for some, dropout in (((q, k, v), 0.0), (half, 0.5)):
        torch.manual_seed(1)
        expected = documents(Documents, marks).attend(some[0], some[1], some[2], dropout)
        torch.manual_seed(1)
        assert torch.equal(documents(Varlen, marks).attend(some[0], some[1], some[2], dropout), expected)


def test_implementation_depends_on_length_and_compile() -> None:
    def kind(length: int, compiled: bool = False) -> type:
        ids = torch.zeros(2, length, dtype=torch.int32)
        borders = np.arange(3, dtype=np.int32) * length
        return type(documents_of(ids, None, borders, compiled=compiled))

    assert kind(64) is Documents
    assert kind(256) is Split
    assert kind(256, compiled=True) is Documents


def test_varlen_kernel_is_unavailable_on_cpu() -> None:
    has_varlen.cache_clear()
    assert not has_varlen(torch.device("cpu"))


def test_varlen_kernel_with_wrong_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel, agrees in ((reference_kernel, True), (lambda q, *_, **__: q, False)):
        monkeypatch.setattr(attention.Varlen, "kernel", staticmethod(kernel))
        has_varlen.cache_clear()
        assert has_varlen(torch.device("cpu")) is agrees
    has_varlen.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_kernel_matches_mask() -> None:
    assert has_varlen(torch.device("cuda", 0))
