"""llm.c and modded-nanogpt: shards with a header of 256 int32.

The header tells magic, version and token count; the two magics stand for GPT-2's and Llama 3's tokenizer.
Documents begin with the end-of-text token and go on from one shard into the next.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowtide._io.store import Peek
from lowtide._tokens.formats.index import agree
from lowtide._tokens.formats.tokens import Segment, Tokens
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError

if TYPE_CHECKING:
    import numpy.typing as npt

HEADER = 1024
"""Bytes before the first token."""
MAX_TOKENS = 2**31 - 1
"""What the header's count can say."""


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
    made = np.dtype(dtype)
    kind = next((kind for kind in KINDS.values() if np.dtype(kind.dtype) == made), None)
    if kind is None:
        raise ArgumentError(f"llm.c has headers for uint16 and uint32, got dtype {made}")
    if not 0 <= count <= MAX_TOKENS:
        raise ArgumentError(
            f"a shard of llm.c holds 0 to {MAX_TOKENS} tokens, got {count}; write more shards"
        )
    return _FIELDS.pack(kind.magic, kind.version, count).ljust(HEADER, b"\0")


def find(seen: list[Peek], dtype: npt.DTypeLike | None) -> Tokens:
    """Shards in their order, all of one dtype.

    >>> from lowtide._io.store import peek
    >>> shard = tmp / "fineweb_train_000001.bin"
    >>> _ = shard.write_bytes(make_header("uint16", 3) + bytes(6))
    >>> found = find([peek(str(shard))], None)
    >>> found.segments[0].offset, found.count, found.eos, found.marks
    (1024, 3, 50256, 'begin')
    """
    first = read_kind(seen[0])
    made = agree(np.dtype(first.dtype), dtype, seen[0].path)
    segments = []
    for one in seen:
        count, kind = check(one)
        if kind != first:
            raise ArgumentError(
                f"{one.path}: has tokens of {kind.model} ({np.dtype(kind.dtype)}), and {seen[0].path} of "
                f"{first.model} ({made}): one corpus has one dtype; name those that belong together"
            )
        segments.append(Segment(one.path, HEADER, count, file_size=one.size, identity=one.identity))
    metadata = {"model": first.model}
    return Tokens("llm.c", made, tuple(segments), eos=first.eos, marks="begin", metadata=metadata)


def read_kind(seen: Peek) -> Kind:
    """What the header says that the tokens are."""
    if len(seen.head) < _FIELDS.size:
        raise TruncatedFileError(
            f"{seen.path}: an llm.c shard has a header of {HEADER} bytes, and the file has {seen.size}: cut "
            "short or still being written; copy or write it again"
        )
    magic, version, _ = _FIELDS.unpack_from(seen.head)
    kind = KINDS.get(magic)
    if kind is None:
        known = " or ".join(f"{kind.magic} ({kind.model})" for kind in KINDS.values())
        raise FormatError(f"{seen.path}: the magic of an llm.c shard is {known}, found {magic}")
    if version != kind.version:
        raise FormatError(
            f"{seen.path}: the header's version is {version}, and llm.c writes {kind.version} with the magic "
            f"{magic}: damaged, or from a newer llm.c; to read it as raw tokens cut off its header"
        )
    return kind


def check(seen: Peek) -> tuple[int, Kind]:
    """The tokens of one shard, if its size is what its header says."""
    kind = read_kind(seen)
    count: int = _FIELDS.unpack_from(seen.head)[2]
    expected = HEADER + count * (2 if kind.dtype == "<u2" else 4)
    if count < 0 or seen.size != expected:
        wrong = TruncatedFileError if count >= 0 and seen.size < expected else FormatError
        raise wrong(
            f"{seen.path}: the header's token count is {count}, so the file should have {expected} bytes "
            f"({kind.dtype} from byte {HEADER}), and it has {seen.size}: cut short, damaged or still being "
            "written; copy or write it again"
        )
    return count, kind
