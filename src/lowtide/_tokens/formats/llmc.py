"""llm.c and modded-nanogpt: shards with a header of 256 int32.

The header has magic, version and token count; the two magics stand for GPT-2's and Llama 3's tokenizer.
Documents start with the end-of-text token and continue from one shard into the next. Shards of other
tokenizers have the same magics, so that their end of text is not known.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import size_error
from lowtide._io.store import Neighbours, Peek
from lowtide._tokens.formats.index import agree, check_same
from lowtide._tokens.formats.tokens import Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError

HEADER = 1024
"""Bytes before the first token."""
MAX_TOKENS = 2**31 - 1
"""The largest count that a header can hold."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a magic stands for."""

    magic: int
    version: int
    dtype: str
    model: str
    eos: int


KINDS = {
    20240520: Kind(20240520, 1, "<u2", "gpt-2", 50256),
    20240801: Kind(20240801, 7, "<u4", "llama-3", 128000),
}

_FIELDS = struct.Struct("<3i")


def make_header(dtype: npt.DTypeLike, count: int) -> bytes:
    """The bytes before ``count`` tokens.

    >>> len(make_header("uint16", 100)), make_header("uint16", 100)[:12].hex()
    (1024, '88d834010100000064000000')
    """
    kind = next((kind for kind in KINDS.values() if np.dtype(kind.dtype) == np.dtype(dtype)), None)
    if kind is None:
        raise ArgumentError(f"llm.c has headers for uint16 and uint32, got dtype {np.dtype(dtype)}")
    if not 0 <= count <= MAX_TOKENS:
        raise ArgumentError(
            f"a shard of llm.c holds 0 to {MAX_TOKENS} tokens, got {count}; write more shards"
        )
    return _FIELDS.pack(kind.magic, kind.version, count).ljust(HEADER, b"\0")


class LLMC(TokenFormat):
    """Shards in their order, all of one dtype.

    >>> from lowtide._io.store import peek
    >>> shard = tmp / "fineweb_train_000001.bin"
    >>> _ = shard.write_bytes(make_header("uint16", 3) + bytes(6))
    >>> tokens = LLMC().find(Selection([peek(str(shard))]))
    >>> tokens.segments[0].offset, tokens.count, tokens.usual_eos, tokens.marks
    (1024, 3, 50256, 'start')
    """

    name = "llm.c"
    suffixes = (".bin",)
    _magics = tuple(struct.pack("<i", magic) for magic in KINDS)

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return file.head.startswith(self._magics)

    def find(self, selection: Selection) -> Tokens:
        segments, kinds = [], []
        for file in selection.files:
            count, kind = check(file)
            segments.append(Segment.of(file, HEADER, count))
            kinds.append(f"{kind.dtype} of {kind.model}")
            check_same("dtype", file.path, kinds[-1], selection.path, kinds[0])
        dtype = agree(np.dtype(kind.dtype), selection.dtype, selection.path)
        metadata = {"model": kind.model}
        return Tokens(self.name, dtype, tuple(segments), usual_eos=kind.eos, marks="start", metadata=metadata)


def check(file: Peek) -> tuple[int, Kind]:
    """The token count and the kind of a shard, whose size must match its header."""
    if len(file.head) < _FIELDS.size:
        raise size_error(file.path, file.size, HEADER, "the header of an llm.c shard")
    magic, version, count = _FIELDS.unpack_from(file.head)
    kind = KINDS.get(magic)
    if kind is None:
        known = " or ".join(f"{kind.magic} ({kind.model})" for kind in KINDS.values())
        raise FormatError(
            f"{file.path}: not an llm.c shard (magic {magic}, expected {known}); write it again"
        )
    if version != kind.version:
        raise FormatError(
            f"{file.path}: damaged, or from a newer llm.c (version {version}, expected {kind.version} with "
            f"the magic {magic}); to read it as raw tokens, remove its header"
        )
    expected = HEADER + count * (2 if kind.dtype == "<u2" else 4)
    if count < 0:
        raise FormatError(f"{file.path}: damaged (token count {count}, expected >= 0); write it again")
    if file.size != expected:
        raise size_error(file.path, file.size, expected, f"a header and {count} tokens of {kind.dtype}")
    return count, kind
