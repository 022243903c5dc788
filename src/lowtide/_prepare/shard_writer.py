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

from lowtide import errors
from lowtide._io import atomic, system
from lowtide._tokens.formats import llmc
from lowtide._tokens.formats.own import LayoutName, Shard
from lowtide.errors import LowtideError

BINS = 48
"""Bins of the histogram of lengths: bin i counts documents of 2**(i - 1) to 2**i - 1 tokens."""

END = np.dtype("<u8")
"""The dtype of the end of a document on disk."""

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
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
        self._ended = 0  # tokens before the end of the last document
        self._open: _OpenShard | None = None

    def room(self) -> int:
        """Tokens that may be appended before the next call; starts a shard if the last one is full."""
        if self._open is not None and self._open.tokens == self._shard_tokens:
            self._close_shard()
        if self._open is None:
            self._open = self._start_shard()
        return 2**60 if self._shard_tokens is None else self._shard_tokens - self._open.tokens

    def append(self, data: memoryview, pool: ThreadPoolExecutor) -> None:
        """Append tokens as bytes, at most as many as ``room`` returned."""
        assert self._open is not None
        self._open.append(data, pool)
        self.tokens += len(data) // self._dtype.itemsize

    def end_documents(self, ends: npt.NDArray[np.int64]) -> None:
        """End documents before these tokens of the split; documents without tokens do not count."""
        lengths = np.diff(ends, prepend=self._ended)
        ends, lengths = ends[lengths > 0], lengths[lengths > 0]
        if not len(ends):
            return
        assert self._open is not None
        self._open.end_documents(ends - (self.tokens - self._open.tokens))
        self._ended = int(ends[-1])
        self.documents += len(ends)
        self.lengths += np.bincount(np.frexp(lengths)[1], minlength=BINS)

    def end_document(self) -> None:
        """End the document here, unless it has ended already."""
        self.end_documents(np.array([self.tokens], np.int64))

    def finish(self) -> None:
        """Finish the last shard; a split without tokens has none."""
        if self._open is not None:
            self.end_document()
            self._close_shard()

    def open_names(self) -> set[str]:
        """The names of the files of the shard that is being written."""
        return set() if self._open is None else self._open.names()

    def sync(self) -> None:
        if self._open is not None:
            self._open.sync()

    def state(self) -> dict[str, Any]:
        """The state as JSON, to resume from."""
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "ended": self._ended,
            "lengths": self.lengths.tolist(),
            "shards": [asdict(shard) for shard in self.shards],
            "open": None if self._open is None else self._open.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to a state: what was written after it is removed, what was written before is verified."""
        self.tokens, self.documents, self._ended = state["tokens"], state["documents"], state["ended"]
        self.lengths = np.array(state["lengths"], np.int64)
        self.shards = [Shard(**shard) for shard in state["shards"]]
        if state["open"] is not None:
            self._open = self._start_shard()
            self._open.restore(state["open"])

    def close(self) -> None:
        """Close the files; what was not committed is lost."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _start_shard(self) -> _OpenShard:
        name = self.split if self._layout == "nanogpt" else f"{self.split}-{len(self.shards):05}"
        header = b""
        if self._layout == "llmc":  # its count is correct except in the last shard
            header = llmc.make_header(self._dtype, self._shard_tokens or 0)
        return _OpenShard(os.path.join(self._folder, name), header, self._dtype.itemsize)

    def _close_shard(self) -> None:
        assert self._open is not None
        header = llmc.make_header(self._dtype, self._open.tokens) if self._layout == "llmc" else b""
        self.shards.append(self._open.finish(header))
        self._open = None


class _OpenShard:
    """The shard that is being written: tokens and ends."""

    def __init__(self, path: str, header: bytes, itemsize: int) -> None:
        self.tokens = 0
        self._header = header
        self._itemsize = itemsize
        self._bin, self._ends = _HashedFile(path + ".bin"), _HashedFile(path + ".ends")
        if header and not self._bin.size:
            self._bin.append(header)

    def append(self, data: memoryview, pool: ThreadPoolExecutor) -> None:
        self._bin.append(data, pool)
        self.tokens += len(data) // self._itemsize

    def end_documents(self, ends: npt.NDArray[np.int64]) -> None:
        self._ends.append(ends.astype(END).view(np.uint8).data)

    def state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "bin": self._bin.state(), "ends": self._ends.state()}

    def names(self) -> set[str]:
        return {os.path.basename(self._bin.path), os.path.basename(self._ends.path)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.tokens = state["tokens"]
        if self._header:  # which `finish` may have changed
            self._bin.rewrite(self._header)
        self._bin.restore(state["bin"])
        self._ends.restore(state["ends"])

    def sync(self) -> None:
        self._bin.sync()
        self._ends.sync()

    def finish(self, header: bytes) -> Shard:
        if header != self._header:
            self._bin.rewrite(header)
        self.sync()
        self.close()
        return Shard(
            os.path.basename(self._bin.path),
            self.tokens,
            self._bin.sha256,
            self._ends.size // END.itemsize,
            os.path.basename(self._ends.path),
            self._ends.sha256,
        )

    def close(self) -> None:
        self._bin.close()
        self._ends.close()


class _HashedFile:
    """A file that is appended to, and the digest of its content."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        try:
            self._fd = os.open(path, _FLAGS, 0o666)
        except OSError as error:
            raise errors.writing(path, error) from error
        self._sum = hashlib.sha256()
        self._pace = atomic.Pace(self._fd)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def append(self, data: bytes | memoryview, pool: ThreadPoolExecutor | None = None) -> None:
        hashing = pool.submit(self._sum.update, data) if pool else None
        try:
            system.write_at(self._fd, memoryview(data), self.size)
        except OSError as error:
            raise errors.writing(self.path, error) from error
        finally:
            if hashing is not None:
                hashing.result()
        if hashing is None:
            self._sum.update(data)
        self.size += len(data)
        self._pace.wrote(self.size)

    def rewrite(self, head: bytes) -> None:
        """Write other bytes to the start, and hash the file again."""
        try:
            system.write_at(self._fd, memoryview(head), 0)
        except OSError as error:
            raise errors.writing(self.path, error) from error
        self._hash(self.size)

    def state(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self.sha256}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._hash(state["size"])
        if self.sha256 != state["sha256"]:
            raise DamagedError(f"out/{os.path.basename(self.path)}")
        self.size = state["size"]
        self._pace = atomic.Pace(self._fd, self.size)

    def sync(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)  # an earlier run may have written beyond the last commit
            os.fsync(self._fd)
        except OSError as error:
            raise errors.writing(self.path, error) from error

    def close(self) -> None:
        os.close(self._fd)

    def _hash(self, size: int) -> None:
        self._sum = hashlib.sha256()
        at = 0
        while at < size and (data := system.bytes_at(self._fd, min(_BLOCK, size - at), at)):
            self._sum.update(data)
            at += len(data)
