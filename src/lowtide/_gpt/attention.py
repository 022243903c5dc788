"""Attention within documents: the same result by a mask, document by document, or by a kernel of the GPU.

A mask of T x T for each row costs memory and, on long windows, most of the time. Without one:

* on a CPU attention is computed per document: with documents of 300 tokens in windows of 2,048 it takes a
  fifth of the time that a mask takes. In windows below 128 tokens the calls cost more than the mask.
* on a GPU ``torch.nn.attention.varlen`` takes the borders of the documents, in half precision and without
  dropout. It is tried before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name

Borders = npt.NDArray[np.int32]

_SHORT = 128  # tokens of a window, below which a mask is cheaper than a call for each document
_HALF = (torch.float16, torch.bfloat16)


class Documents:
    """The documents of a batch, for ``GPT.forward``. ``borders`` are those in the flattened batch.

    A subclass is one way to attend; this one makes a mask of (B, 1, T, T), once for all layers.
    """

    def __init__(self, ids: Tensor, positions: Tensor | None, borders: Borders) -> None:
        self.ids, self.positions, self.borders = ids, positions, borders
        self._mask: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Attention of q to k and v, each (B, H, T, D), causal and within documents."""
        if self._mask is None:
            self._mask = mask_of(self.ids)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask, dropout_p=dropout)


class Split(Documents):
    """Attention document by document; rows of a single document are computed together."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        length = q.shape[2]
        rows: list[Tensor] = []
        for row, pieces in self._rows(length):
            parts = zip(*(torch.split(part[row], pieces, 2) for part in (q, k, v)), strict=True)
            results = [
                F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
                for q, k, v in parts
            ]
            rows.append(results[0] if len(results) == 1 else torch.cat(results, 2))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _rows(self, length: int) -> list[tuple[slice, list[int]]]:
        """Rows and the lengths of their documents; adjacent rows of one document each are one slice."""
        firsts = np.searchsorted(self.borders, np.arange(len(self.ids) + 1) * length)
        result: list[tuple[slice, list[int]]] = []
        for row in range(len(self.ids)):
            pieces = np.diff(self.borders[firsts[row] : firsts[row + 1] + 1]).tolist()
            if result and len(pieces) == 1 and result[-1][1] == pieces:
                result[-1] = slice(result[-1][0].start, row + 1), pieces
            else:
                result.append((slice(row, row + 1), pieces))
        return result


class Varlen(Documents):
    """Attention by PyTorch's kernel for sequences of different lengths, which takes all rows as one."""

    kernel: Callable[..., Any] | None = None

    def __init__(self, ids: Tensor, positions: Tensor | None, borders: Borders) -> None:
        super().__init__(ids, positions, borders)
        self._longest = int(np.diff(borders).max())
        # Copied before the forward pass, and without waiting.
        self._cu_seqlens = torch.from_numpy(borders).to(ids.device, non_blocking=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if v.dtype not in _HALF or dropout:
            return super().attend(q, k, v, dropout)
        # Under autocast the norms of queries and keys are float32, and no autocast knows the kernel.
        flat = [part.transpose(1, 2).flatten(0, 1).to(v.dtype) for part in (q, k, v)]
        kernel = self.kernel or import_module("torch.nn.attention.varlen").varlen_attn
        borders, longest = self._cu_seqlens, self._longest
        y: Tensor = kernel(*flat, borders, borders, longest, longest, window_size=(-1, 0))
        return y.view(q.shape[0], q.shape[2], *y.shape[1:]).transpose(1, 2)


def documents_of(ids: Tensor, positions: Tensor | None, borders: Borders, *, compiled: bool) -> Documents:
    """The documents of a batch, attended to in the fastest way that works on its device.

    ``compiled`` models get a mask on the CPU: other lengths at every step would compile them again.
    """
    kind = Documents
    if ids.device.type == "cuda" and has_varlen(ids.device):
        kind = Varlen
    elif ids.device.type == "cpu" and ids.shape[1] >= _SHORT and not compiled:
        kind = Split
    return kind(ids, positions, borders)


def mask_of(ids: Tensor) -> Tensor:
    """Attention mask (B, 1, T, T): earlier tokens of the same document.

    >>> mask_of(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
    return (causal & (ids[:, :, None] == ids[:, None, :]))[:, None]


@cache
def has_varlen(device: torch.device) -> bool:
    """Whether PyTorch's kernel works on a device and agrees with a mask, forward and backward."""
    ids = torch.tensor([[0] * 5 + [1] * 3, [0] * 8], device=device)
    borders = np.array([0, 5, 8, 16], np.int32)
    results = []
    try:
        for kind in (Documents, Varlen):
            generator = torch.Generator().manual_seed(0)
            parts = [torch.randn(2, 2, 8, 64, generator=generator) for _ in range(3)]
            leaves = [part.to(device, torch.bfloat16).requires_grad_() for part in parts]
            y = kind(ids, None, borders).attend(leaves[0], leaves[1], leaves[2], 0.0)
            y.square().sum().backward()  # type: ignore[no-untyped-call]
            results.append([y, *(leaf.grad for leaf in leaves)])
    except (ImportError, AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
    close = (torch.allclose(a, b, atol=0.1, rtol=0.05) for a, b in zip(*results, strict=True))
    return all(close)
