"""Megatron-LM: ``x.bin`` with raw tokens and ``x.idx`` with the sequences and documents in it.

The index: 9 bytes ``MMIDIDX``, u64 version 1, u8 dtype code, u64 sequences, u64 documents + 1, int32 lengths,
int64 byte offsets, int64 document indices (in sequences, from 0), and int8 modes in multimodal data.

lowtide reads ``x.bin`` from front to back, which is right when the sequences lie there in order and without
holes, as Megatron's own builder writes them. That is checked for all of up to 2**21 sequences when the corpus
is opened; in larger indexes it is checked for the first, the last and 64 runs between, and for all by
``documents.verify()``.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide._arrays.formats.layout import Layout
from lowtide._io.store import Peek, Store, opened, peek
from lowtide._tokens.formats.documents import Documents, Ints
from lowtide._tokens.formats.index import TokenDtype, agree
from lowtide._tokens.formats.tokens import MEGATRON_MAGIC as MAGIC
from lowtide._tokens.formats.tokens import Segment, Tokens
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
EXACT = 2**21
"""Sequences up to which every one is checked when the corpus is opened."""

_HEADER = struct.Struct("<9sQBQQ")
_BLOCK = 2**16
_RUNS = 64


class Index:
    """One ``.idx`` and its ``.bin``; also the documents in it, as a part of ``Documents``."""

    def __init__(self, store: Store, data: Peek) -> None:
        self.path, self._identity = store.path, store.identity
        self.data = data
        magic, version, code, sequences, documents = _HEADER.unpack(
            store.read(0, _HEADER.size, "Megatron index header")
        )
        if magic != MAGIC:
            raise FormatError(f"{self.path}: a Megatron index begins with {MAGIC!r}, found {magic!r}")
        if version != 1:
            raise FormatError(
                f"{self.path}: version must be 1, found {version}: damaged, or a newer Megatron"
            )
        if code not in DTYPES:
            raise FormatError(f"{self.path}: the dtype code must be 1 to 8, found {code}: damaged")
        self.dtype: np.dtype[np.generic] = np.dtype(DTYPES[code])
        if self.dtype.kind == "f":
            raise UnsupportedError(
                f"{self.path}: tokens are integers, and this data is {self.dtype} (code {code})"
            )
        self.sequences = sequences
        """How many there are."""
        expected = _HEADER.size + 12 * sequences + 8 * documents
        if store.size not in (expected, expected + sequences) or not documents:
            wrong = TruncatedFileError if store.size < expected else FormatError
            raise wrong(
                f"{self.path}: {sequences} sequences and {documents} document indices (1 at least) take "
                f"{expected} bytes, or {expected + sequences} with modes, and the file has {store.size}: "
                "cut short, damaged or still being written; copy or write it again"
            )
        self.count = documents - 1
        self.tokens, left = divmod(data.size, self.dtype.itemsize)
        if left:
            raise FormatError(
                f"{data.path}: {data.size} bytes are no multiple of a token's {self.dtype.itemsize} "
                f"({self.dtype} by {self.path}): cut short, or of another index; copy both again"
            )
        self._lengths = _HEADER.size
        self._offsets = self._lengths + 4 * sequences
        self._documents = self._offsets + 8 * sequences
        self._arrays: tuple[Any, Any] | None = None
        self._check_ends(store)
        if sequences <= EXACT:
            self._check_order(store, 0, sequences)
        else:
            for run in range(_RUNS):
                start = run * (sequences - _BLOCK // _RUNS) // (_RUNS - 1)
                self._check_order(store, start, start + _BLOCK // _RUNS)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    @property
    def where(self) -> str:
        return f"{self.path}: the documents by document_indices and offsets"

    def ends(self, start: int, stop: int) -> Ints:
        return self._begin(self._open()[0][start + 1 : stop + 1])

    def pick(self, which: Ints) -> Ints:
        return self._begin(self._open()[0].take(which + 1))

    def verify(self) -> None:
        """Whether every sequence lies behind the one before it."""
        with opened(self.path) as store:
            self._check_order(store, 0, self.sequences)

    def close(self) -> None:
        self._arrays = None

    def _begin(self, sequences: npt.NDArray[np.int64]) -> Ints:
        """The first token of some sequences; that of the one behind the last is where the tokens end."""
        if len(sequences) and not 0 <= int(sequences.min()) <= int(sequences.max()) <= self.sequences:
            raise FormatError(
                f"{self.path}: document_indices must be from 0 to {self.sequences}, found {sequences.min()} "
                f"to {sequences.max()}: damaged; write the index again"
            )
        begin = np.full(len(sequences), self.tokens, np.int64)
        inner = sequences < self.sequences
        if inner.any():
            begin[inner] = self._open()[1].take(sequences[inner]) // self.dtype.itemsize
        return begin

    def _open(self) -> tuple[Any, Any]:
        arrays = self._arrays
        if arrays is None:
            from lowtide._arrays.array import Array

            kind: np.dtype[np.generic] = np.dtype("<i8")
            made = [
                Array(
                    Layout(
                        self.path,
                        "megatron",
                        at,
                        kind,
                        (count,),
                        file_size=self._identity.size,
                        identity=self._identity,
                    )
                )
                for at, count in ((self._documents, self.count + 1), (self._offsets, self.sequences))
            ]
            self._arrays = arrays = (made[0], made[1])
        return arrays

    def _check_ends(self, store: Store) -> None:
        if not self.sequences:
            if self.data.size:
                raise FormatError(
                    f"{self.path}: lists 0 sequences, and {self.data.path} has {self.data.size} bytes: the "
                    "index of another file, or still being written; copy or write both again"
                )
            return
        last = self.sequences - 1
        end = int(self._read(store, self._offsets, "<i8", last)[0])
        end += int(self._read(store, self._lengths, "<i4", last)[0]) * self.dtype.itemsize
        if end != self.data.size:
            wrong = TruncatedFileError if end > self.data.size else FormatError
            raise wrong(
                f"{self.data.path}: has {self.data.size} bytes, and by {self.path} its last sequence ends at "
                f"byte {end}: cut short, still being written, or of another index; copy or write both again"
            )
        found = [int(self._read(store, self._documents, "<i8", i)[0]) for i in (0, self.count)]
        if self.count and found != [0, self.sequences]:
            raise FormatError(
                f"{self.path}: document_indices must go from 0 to the {self.sequences} sequences, found "
                f"{found[0]} to {found[1]}: damaged; write the index again"
            )

    def _check_order(self, store: Store, start: int, stop: int) -> None:
        """Each of these sequences begins where the one before it ends, the first of all at byte 0."""
        for first in range(start, stop, _BLOCK):
            count = min(_BLOCK, stop - first)
            before = min(first, 1)
            offsets = self._read(store, self._offsets, "<i8", first - before, count + before)
            lengths = self._read(store, self._lengths, "<i4", first - before, count + before)
            ends = offsets + lengths.astype(np.int64) * self.dtype.itemsize
            expected = ends[:-1] if before else np.concatenate(([0], ends[:-1]))
            wrong = np.flatnonzero((offsets[before:] != expected) | (lengths[before:] < 0))
            if len(wrong):
                at = int(wrong[0])
                raise UnsupportedError(
                    f"{self.path}: sequence {first + at} (length {lengths[before + at]}) begins at byte "
                    f"{offsets[before + at]} of {self.data.path}, and {expected[at]} was expected: lowtide "
                    "reads sequences that lie in order and without holes, as Megatron's builder writes them; "
                    "write it again with IndexedDatasetBuilder.add_index, or the index is damaged"
                )

    @staticmethod
    def _read(store: Store, base: int, dtype: str, start: int, count: int = 1) -> npt.NDArray[Any]:
        width = np.dtype(dtype).itemsize
        return np.frombuffer(store.read(base + start * width, count * width, "Megatron index"), dtype)


def find(seen: list[Peek], dtype: npt.DTypeLike | None) -> Tokens:
    """Data sets in their order, each named by its ``.bin``, its ``.idx`` or what they have in common.

    >>> from lowtide._io.store import peek
    >>> np.arange(5, dtype="<u2").tofile(tmp / "x.bin")
    >>> index = _HEADER.pack(MAGIC, 1, 8, 2, 3) + struct.pack("<2i2q3q", 3, 2, 0, 6, 0, 1, 2)
    >>> _ = (tmp / "x.idx").write_bytes(index)
    >>> found = find([peek(str(tmp / "x.idx"))], None)
    >>> str(found.dtype), found.count, found.documents.bounds(0, 2).tolist()
    ('uint16', 5, [[0, 3], [3, 5]])
    """
    parts: list[Index] = []
    for prefix in dict.fromkeys(os.path.splitext(one.path)[0] for one in seen):
        data = peek(prefix + ".bin")
        with opened(prefix + ".idx") as store:
            part = Index(store, data)
        parts.append(part)
        if part.dtype != parts[0].dtype:
            raise ArgumentError(
                f"{part.path}: has tokens of {part.dtype}, and {parts[0].path} of {parts[0].dtype}: one "
                "corpus has one dtype; name those that belong together"
            )
    made: TokenDtype = agree(parts[0].dtype, dtype, parts[0].path)
    segments = [
        Segment(part.data.path, 0, part.tokens, file_size=part.data.size, identity=part.data.identity)
        for part in parts
    ]
    documents = None
    if all(part.count for part in parts):  # where end_document was never called, nothing tells
        documents = Documents("megatron", parts, [part.tokens for part in parts], whole=True)
    metadata = {"sequences": sum(part.sequences for part in parts)}
    return Tokens("megatron", made, tuple(segments), documents, metadata=metadata)
