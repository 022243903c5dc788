"""Bits per byte: the bytes of tokens of every kind of tokenizer, and what an evaluation makes of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lowtide
from lowtide._gpt.bits import TokenBytes, token_bytes
from lowtide._prepare import tokenizers
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide.gpt import train
from tests.support.training import TINY, lines

TEXT = "The low tide — 潮 — leaves the sand é 🌊 bare.\n  def f(x):\n\treturn x\n" * 3


def bpe() -> Any:
    from lowtide._prepare.tokenizers.huggingface import BpeTokenizer

    return BpeTokenizer.create("bpe:300", tokenizers.Texts([TEXT]))


def tiktoken() -> Any:
    from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer

    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"he": 257, b" the": 258}
    return TiktokenTokenizer("own", r"\s?\w+|\s+|[^\w\s]+", ranks, {"<|endoftext|>": 259})


@pytest.mark.parametrize(
    "make", [lambda: tokenizers.make("byte"), lambda: CharTokenizer(set(TEXT)), bpe, tiktoken],
    ids=["byte", "char", "bpe", "tiktoken"],
)  # fmt: skip
def test_token_bytes_sum_to_text_length(make: Any) -> None:
    tokenizer = make()
    lengths = token_bytes(tokenizer.to_json().encode())
    assert lengths is not None
    assert len(lengths) == tokenizer.vocab_size
    ids = tokenizer.encode_batch([TEXT])[0]
    assert lengths[ids].sum() == len(TEXT.encode())
    if tokenizer.eos is not None:
        assert lengths[tokenizer.eos] == 0


def test_sentencepiece_tokens_count_spaces_and_bytes() -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {"<s>": 0, "▁low": 1, "▁tide": 2, "é": 3, "<0xE2>": 4, "<0x80>": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(["<s>"])
    lengths = token_bytes(tokenizer.to_str().encode())
    assert lengths is not None
    assert lengths.tolist() == [0, 4, 5, 2, 1, 1]
    tokenizer.normalizer = normalizers.Lowercase()
    assert token_bytes(tokenizer.to_str().encode()) is None, "the text is not kept"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model": {"vocab": {}}}',
        b'{"format": "lowtide tokenizer", "kind": "x"}',
        b'{"model": {"vocab": {"a": 0, "b": "1"}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": -1}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": 99999999999}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": 0.5}}, "decoder": {"type": "ByteLevel"}}',
        b"[" * 10_000,
    ],
)
def test_unsupported_tokenizer_file_has_no_token_bytes(content: bytes) -> None:
    assert token_bytes(content) is None


def test_special_and_ignored_targets_do_not_count() -> None:
    lengths = np.array([1, 3, 0], np.int32)
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 2], [1, -1, 4]])  # the model has more ids than the tokenizer
    flat = (logits.flatten(0, 1), targets.flatten())
    total = float(torch.nn.functional.cross_entropy(*flat, ignore_index=-1, reduction="sum"))
    nats, count = TokenBytes(lengths, 5, torch.device("cpu")).measure(logits, targets, total)
    chosen = -torch.log_softmax(logits, -1)
    assert nats == pytest.approx(float(chosen[0, 0, 0] + chosen[0, 1, 1] + chosen[1, 0, 1]), rel=1e-5)
    assert count == 7


def test_val_bpb_is_loss_per_byte_for_any_tokenizer(tmp_path: Path) -> None:
    """Of an untrained model every tokenizer costs the logarithm of its vocabulary per token."""
    (tmp_path / "text.txt").write_text(TEXT * 40)
    for name in ("byte", "bpe:300"):
        corpus = tmp_path / name.replace(":", "")
        lowtide.prepare(tmp_path / "text.txt", corpus, tokenizer=name, val_fraction=0.5)
        out = tmp_path / f"run-{name[:4]}"
        settings = {**TINY, "eval_interval": 1, "max_iters": 1, "learning_rate": 1e-9, "eval_iters": 50}
        outcome = train(out, data=str(corpus), **settings)
        (line,) = lines(out)
        assert line["val_bpb"] == outcome.val_bpb
        tokenizer = lowtide.load_tokenizer(corpus)
        tokens = len(lowtide.corpus(corpus, split="val"))
        size = len(tokenizer.decode(lowtide.corpus(corpus, split="val")[:]).encode())
        assert outcome.val_loss is not None
        expected = outcome.val_loss / math.log(2) * tokens / size
        assert outcome.val_bpb == pytest.approx(expected, rel=0.02)


def test_val_bpb_is_none_without_tokenizer(tmp_path: Path) -> None:
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "val.bin")
    outcome = train(tmp_path / "run", data=str(tmp_path), vocab_size=500, **{**TINY, "max_iters": 1})
    assert outcome.val_loss is not None
    assert outcome.val_bpb is None
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["val_bpb"] is None
