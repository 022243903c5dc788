"""Writing the shards of a split one after another: tokens, document ends next to them, digests of both."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io import system
from lowtide._io.pace import Pace
from lowtide._tokens.formats import llmc
from lowtide._tokens.formats.documents import END
from lowtide._tokens.formats.own import LayoutName, Shard
from lowtide.errors import LowtideError, write_errors

BINS = 48
"""Bins of the histogram of lengths: bin i counts documents of 2**(i - 1) to 2**i - 1 tokens."""


_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
_BLOCK = 4 * 2**20  # bytes that are hashed at once


class DamagedError(LowtideError):
    """A file of a shard does not match the state; the message is the name of the file."""


class ShardWriter:
    """Writes the shards of one split, one after another."""

    def __init__(
        self, folder: str, split: str, dtype: str, layout: LayoutName, shard_tokens: int | None
    ) -> None:
        self.split = split
        self.tokens = 0
        self.documents = 0
        self.lengths = np.zeros(BINS, np.int64)
        self.shards: list[Shard] = []
        self._folder = folder
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._layout = layout
        self._shard_tokens = shard_tokens
        self._first = 0  # the token with which the open shard starts
        self._ended = 0  # tokens before the end of the last document
        self._files: list[_HashedFile] = []  # tokens and ends of the open shard

    def room(self) -> int:
        """How many tokens may be appended now; starts a new shard if the last one is full."""
        if self._files and self.tokens - self._first == self._shard_tokens:
            self._close_shard()
        if not self._files:
            self._open_shard()
        return 2**60 if self._shard_tokens is None else self._first + self._shard_tokens - self.tokens

    def append(self, data: memoryview, pool: ThreadPoolExecutor | None = None) -> None:
        """Append tokens as bytes, at most as many as ``room`` returned; hashed by ``pool`` meanwhile."""
        self._files[0].append(data, pool)
        self.tokens += len(data) // self._dtype.itemsize

    def end_documents(self, ends: npt.NDArray[np.int64]) -> None:
        """End documents before these tokens of the split; documents without tokens do not count."""
        lengths = np.diff(ends, prepend=self._ended)
        ends, lengths = ends[lengths > 0], lengths[lengths > 0]
        if not len(ends):
            return
        self._files[1].append((ends - self._first).astype(END).view(np.uint8).data)
        self._ended = int(ends[-1])
        self.documents += len(ends)
        self.lengths += np.bincount(np.frexp(lengths)[1], minlength=BINS)

    def end_document(self) -> None:
        """End the document here, unless it has ended already."""
        self.end_documents(np.array([self.tokens], np.int64))

    def finish(self) -> None:
        """Finish the last shard; a split without tokens has none."""
        if self._files:
            self.end_document()
            self._close_shard()

    def names(self) -> set[str]:
        """The names of all files that belong to the split."""
        complete = (name for shard in self.shards for name, _ in shard.files)
        return {*complete, *(file.name for file in self._files)}

    def sync(self) -> None:
        for file in self._files:
            file.sync()

    def state(self) -> dict[str, Any]:
        """The state as JSON, to resume from."""
        files = zip(("bin", "ends"), self._files, strict=False)
        shard = {"tokens": self.tokens - self._first, **{name: file.state() for name, file in files}}
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "ended": self._ended,
            "lengths": self.lengths.tolist(),
            "shards": [asdict(shard) for shard in self.shards],
            "open": shard if self._files else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to a state: verify what was written before it, and discard the rest."""
        self.tokens, self.documents, self._ended = state["tokens"], state["documents"], state["ended"]
        self.lengths = np.array(state["lengths"], np.int64)
        self.shards = [Shard(**shard) for shard in state["shards"]]
        if (shard := state["open"]) is not None:
            self._open_shard()
            self._first -= shard["tokens"]
            for name, file in zip(("bin", "ends"), self._files, strict=True):
                file.restore(shard[name])

    def close(self) -> None:
        """Close the files; tokens that were not committed are lost."""
        while self._files:
            self._files.pop().close()

    def _open_shard(self) -> None:
        name = self.split if self._layout == "nanogpt" else f"{self.split}-{len(self.shards):05}"
        for ending in (".bin", ".ends"):
            self._files.append(_HashedFile(os.path.join(self._folder, name + ending)))
        self._first = self.tokens
        if self._layout == "llmc":  # its count is correct except in the last shard
            self._files[0].append(llmc.make_header(self._dtype, self._shard_tokens or 0))

    def _close_shard(self) -> None:
        tokens = self.tokens - self._first
        data, ends = self._files
        if self._layout == "llmc" and tokens != self._shard_tokens:
            data.rewrite(llmc.make_header(self._dtype, tokens))
        self.sync()
        shard = Shard(data.name, tokens, data.sha256, ends.size // END.itemsize, ends.name, ends.sha256)
        self.shards.append(shard)
        self.close()


class _HashedFile:
    """A file that is appended to, and the digest of its content."""

    def __init__(self, path: str) -> None:
        self.name = os.path.basename(path)
        self.size = 0
        self._path = path
        with write_errors(path):
            self._fd = os.open(path, _FLAGS, 0o666)
        self._sum = hashlib.sha256()
        self._pace = Pace(self._fd)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def append(self, data: bytes | memoryview, pool: ThreadPoolExecutor | None = None) -> None:
        hashing = pool.submit(self._sum.update, data) if pool else None
        try:
            with write_errors(self._path):
                system.write_at(self._fd, memoryview(data), self.size)
        finally:
            if hashing is not None:
                hashing.result()
        if hashing is None:
            self._sum.update(data)
        self.size += len(data)
        self._pace.wrote(self.size)

    def rewrite(self, head: bytes) -> None:
        """Write other bytes to the start, and hash the file again."""
        with write_errors(self._path):
            system.write_at(self._fd, memoryview(head), 0)
        self._hash(self.size)

    def state(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self.sha256}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._hash(state["size"])
        if self.sha256 != state["sha256"]:
            raise DamagedError(f"out/{self.name}")
        self.size = state["size"]
        self._pace = Pace(self._fd, self.size)

    def sync(self) -> None:
        with write_errors(self._path):
            os.ftruncate(self._fd, self.size)  # an earlier run may have written beyond the last commit
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _hash(self, size: int) -> None:
        self._sum = hashlib.sha256()
        at = 0
        while at < size and (data := system.bytes_at(self._fd, min(_BLOCK, size - at), at)):
            self._sum.update(data)
            at += len(data)
