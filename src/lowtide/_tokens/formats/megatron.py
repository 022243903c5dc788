"""Megatron-LM: ``x.bin`` with raw tokens and ``x.idx`` with the sequences and documents in it.

The index: 9 bytes ``MMIDIDX``, u64 version 1, u8 dtype code, u64 sequences, u64 documents + 1, int32 lengths,
int64 byte offsets, int64 document indices (in sequences, from 0), and int8 modes in multimodal data.

lowtide reads ``x.bin`` from front to back, which is right when the sequences are in order and without
holes, as Megatron's own builder writes them. That is checked for all of up to 2**21 sequences when the corpus
is opened; in larger indexes it is checked for the first, the last and 64 runs between, and for all by
``documents.verify()``.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import size_error
from lowtide._io.extents import Ints
from lowtide._io.jsonfiles import invalid
from lowtide._io.store import Neighbours, Peek, Store, opened, peek
from lowtide._tokens.formats.documents import Column, Documents, Part, integers
from lowtide._tokens.formats.index import agree, check_same
from lowtide._tokens.formats.tokens import Segment, Selection, TokenFormat, Tokens
from lowtide.errors import FormatError, UnsupportedError

MAGIC = b"MMIDIDX\0\0"
DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
EXACT = 2**21
"""Sequences up to which every one is checked when the corpus is opened."""

_HEADER = struct.Struct("<9sQBQQ")
_INT64: np.dtype[np.generic] = np.dtype("<i8")
_BLOCK = 2**16
_RUNS = 64


class Index(Part):
    """One ``.idx`` and its ``.bin``; also the documents in it, as a part of ``Documents``."""

    def __init__(self, store: Store, data: Peek) -> None:
        self.path = store.path
        self.where = f"{self.path}: the documents by document_indices and offsets"
        self.data = data
        magic, version, code, sequences, documents = _HEADER.unpack(
            store.read(0, _HEADER.size, "Megatron index header")
        )
        if magic != MAGIC:
            raise FormatError(
                f"{self.path}: not a Megatron index (starts with {magic!r}, expected {MAGIC!r}); write it "
                "again"
            )
        if version != 1:
            raise invalid(f"{self.path}: version", version, "1; a newer Megatron has another")
        if code not in DTYPES:
            raise invalid(f"{self.path}: the dtype code", code, "1 to 8")
        self.dtype: np.dtype[np.generic] = np.dtype(DTYPES[code])
        if self.dtype.kind == "f":
            raise UnsupportedError(
                f"{self.path}: tokens are integers, and this data is {self.dtype} (code {code})"
            )
        self.sequences = sequences
        """How many there are."""
        if not documents:
            raise invalid(f"{self.path}: the number of document indices", 0, "1 or more")
        expected = _HEADER.size + 12 * sequences + 8 * documents
        if store.size not in (expected, expected + sequences):
            modes = expected + sequences
            what = f"{sequences} sequences and {documents} document indices, or {modes} with modes"
            raise size_error(self.path, store.size, expected, what)
        self.count = documents - 1
        self.tokens, left = divmod(data.size, self.dtype.itemsize)
        if left:
            raise FormatError(
                f"{data.path}: truncated, or of another index ({data.size} bytes, expected a multiple of "
                f"a token's {self.dtype.itemsize} for {self.dtype} by {self.path}); copy both again"
            )
        self._lengths = _HEADER.size
        self._offsets = self._lengths + 4 * sequences
        self._documents = self._offsets + 8 * sequences
        file = self.path, store.identity
        self._byte_offsets = Column(integers(*file, sequences, self._offsets, _INT64))
        self._indices = Column(integers(*file, documents, self._documents, _INT64))
        self._check_ends(store)
        if sequences <= EXACT:
            self._check_order(store, 0, sequences)
        else:
            for run in range(_RUNS):
                start = run * (sequences - _BLOCK // _RUNS) // (_RUNS - 1)
                self._check_order(store, start, start + _BLOCK // _RUNS)

    def ends(self, start: int, stop: int) -> Ints:
        return self._starts(self._indices.ends(start + 1, stop + 1))

    def pick(self, which: Ints) -> Ints:
        return self._starts(self._indices.pick(which + 1))

    def verify(self) -> None:
        """Check that every sequence comes after the one before it."""
        with opened(self.path) as store:
            self._check_order(store, 0, self.sequences)

    def close(self) -> None:
        self._indices.close()
        self._byte_offsets.close()

    def _starts(self, sequences: Ints) -> Ints:
        """The first token of some sequences; that of the one after the last is where the tokens end."""
        if len(sequences) and not 0 <= int(sequences.min()) <= int(sequences.max()) <= self.sequences:
            raise FormatError(
                f"{self.path}: document_indices must be from 0 to {self.sequences}, found {sequences.min()} "
                f"to {sequences.max()}: damaged; write the index again"
            )
        starts = np.full(len(sequences), self.tokens, np.int64)
        inner = sequences < self.sequences
        if inner.any():
            starts[inner] = self._byte_offsets.pick(sequences[inner]) // self.dtype.itemsize
        return starts

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
            what = f"the sequences of {self.path}"
            raise size_error(self.data.path, self.data.size, end, what, "copy or write both again")
        ends = [int(self._read(store, self._documents, "<i8", i)[0]) for i in (0, self.count)]
        if self.count and ends != [0, self.sequences]:
            raise invalid(f"{self.path}: document_indices", ends, f"from 0 to the {self.sequences} sequences")

    def _check_order(self, store: Store, start: int, stop: int) -> None:
        """Each of these sequences starts where the one before it ends, the first of all at byte 0."""
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
                    f"{self.path}: damaged, or sequences out of order or with holes between them (sequence "
                    f"{first + at} of length {lengths[before + at]} starts at byte {offsets[before + at]} of "
                    f"{self.data.path}, expected {expected[at]}); write it again with "
                    "IndexedDatasetBuilder.add_index"
                )

    @staticmethod
    def _read(store: Store, base: int, dtype: str, start: int, count: int = 1) -> npt.NDArray[Any]:
        width = np.dtype(dtype).itemsize
        return np.frombuffer(store.read(base + start * width, count * width, "Megatron index"), dtype)


class Megatron(TokenFormat):
    """Data sets in their order, each given by its ``.bin``, its ``.idx`` or what they have in common."""

    name = "megatron"
    suffixes = (".bin", ".idx")
    pair = (".bin", ".idx")

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        if file.head.startswith(MAGIC) or file.path.endswith(".idx"):
            return True
        return file.path.endswith(".bin") and beside.has(file.path[: -len(".bin")] + ".idx")

    def find(self, selection: Selection) -> Tokens:
        parts: list[Index] = []
        for prefix in dict.fromkeys(os.path.splitext(file.path)[0] for file in selection.files):
            with opened(prefix + ".idx") as store:
                parts.append(Index(store, peek(prefix + ".bin")))
            check_same("dtype", parts[-1].path, parts[-1].dtype, parts[0].path, parts[0].dtype)
        dtype = agree(parts[0].dtype, selection.dtype, parts[0].path)
        documents = None
        if all(part.count for part in parts):  # where end_document was never called, they are unknown
            documents = Documents(parts, [part.tokens for part in parts], whole=True)
        segments = tuple(Segment.of(part.data, 0, part.tokens) for part in parts)
        metadata = {"sequences": sum(part.sequences for part in parts)}
        return Tokens(self.name, dtype, segments, documents, metadata=metadata)
