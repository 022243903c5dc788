"""Bits per byte: a loss that does not depend on the tokenizer, where the bytes of each token are known."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._gpt.model import torch
from lowtide._prepare.tokenizers.kind import FORMAT, MAX_VOCABULARY

Lengths = npt.NDArray[np.int32]

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # of SentencePiece, for a byte that is in no other token
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def token_bytes(content: bytes) -> Lengths | None:
    """Bytes of text that each id of a ``tokenizer.json`` stands for; 0 for special tokens.

    None for a tokenizer that does not keep the text as it is, such as one that lowers it.

    >>> from lowtide._prepare.tokenizers.char import CharTokenizer
    >>> token_bytes(CharTokenizer("aé").to_json().encode()).tolist()
    [1, 2]
    """
    try:
        record = json.loads(content)
        lengths = _own(record) if record.get("format") == FORMAT else _hugging_face(record)
        if not lengths or not 0 <= min(lengths) <= max(lengths) < MAX_VOCABULARY:
            return None
        table = np.zeros(max(lengths) + 1, np.int32)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # encoding or decoding with it raises the error
    table[list(lengths)] = list(lengths.values())
    return table


def _own(record: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of the ids of lowtide's own kinds."""
    if record["kind"] == "byte":
        return {**dict.fromkeys(range(256), 1), 256: 0}
    if record["kind"] == "char":
        return {id: len(one.encode()) for id, one in enumerate(record["characters"])}
    ranks = {int(rank): len(base64.b64decode(token)) for token, rank in record["ranks"].items()}
    return {**ranks, **{int(id): 0 for id in record["special"].values()}}


def _hugging_face(record: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of the ids of a byte-level vocabulary, or of one in SentencePiece's style; nothing for others."""
    model = record["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # with their scores
        vocabulary = {token: id for id, (token, _) in enumerate(vocabulary)}
    kinds = _kinds(record.get("decoder"))
    if record.get("normalizer") is not None and _kinds(record["normalizer"]) - {"Prepend", "Replace"}:
        return {}
    if "ByteLevel" in kinds:  # a character for each byte
        lengths = {id: len(token) for token, id in vocabulary.items()}
    elif kinds & {"Replace", "Metaspace"}:
        lengths = {
            id: 1 if _BYTE.fullmatch(token) else len(token.replace(_SPACE, " ").encode())
            for token, id in vocabulary.items()
        }
    else:
        return {}
    for added in record.get("added_tokens") or ():
        lengths[added["id"]] = 0 if added["special"] else len(added["content"].encode())
    return lengths


def _kinds(part: Any) -> set[str]:
    """The types of a tokenizer's part, which may be a sequence of parts."""
    if not isinstance(part, Mapping):
        return set()
    inside = part.get("decoders") or part.get("normalizers") or ()
    return {str(part.get("type")), *(kind for one in inside for kind in _kinds(one))} - {"Sequence"}


class TokenBytes:
    """Bytes of each id, on the device of the model."""

    def __init__(self, lengths: Lengths, vocab_size: int, device: torch.device) -> None:
        # A model may know more ids than the tokenizer: sizes are rounded up.
        table = np.zeros(max(vocab_size, len(lengths)), np.int64)
        table[: len(lengths)] = lengths
        self._table = torch.from_numpy(table).to(device)

    def measure(self, logits: torch.Tensor, targets: torch.Tensor, nats: float) -> tuple[float, int]:
        """Nats and bytes of a batch whose targets cost ``nats`` in all.

        Targets without bytes, which are special tokens, count in neither: predicting them encodes no text.
        Ignored targets (negative ids) are not part of ``nats``.
        """
        lengths = self._table[targets.clamp(min=0)] * (targets >= 0)
        silent = (lengths == 0) & (targets >= 0)
        if silent.any():
            entropy = torch.nn.functional.cross_entropy
            nats -= float(entropy(logits[silent].float(), targets[silent], reduction="sum"))
        return nats, int(lengths.sum())
