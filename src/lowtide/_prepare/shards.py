"""The shards of a split, written one after another: tokens, document ends beside them, sums of both."""

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
from lowtide._io import publish
from lowtide._tokens.formats import llmc
from lowtide._tokens.formats.own import LayoutName, Shard
from lowtide.errors import LowtideError

BINS = 48
"""Of the histogram of lengths: bin i counts documents of 2**(i - 1) to 2**i - 1 tokens."""

END = np.dtype("<u8")
"""The end of a document, on disk."""

_BLOCK = 4 * 2**20  # bytes summed up at once


class DamagedError(LowtideError):
    """A file of a shard is not what a state says; its message is the file's name."""


class Stream:
    """The shards of one split, written one after another."""

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
        """Tokens that may be appended before the next call; a new shard is begun where the last is full."""
        if self._open is not None and self._open.tokens == self._shard_tokens:
            self._close_shard()
        if self._open is None:
            self._open = self._begin_shard()
        return 2**60 if self._shard_tokens is None else self._shard_tokens - self._open.tokens

    def append(self, data: memoryview, pool: ThreadPoolExecutor) -> None:
        """Tokens as bytes, no more than there is room for."""
        assert self._open is not None
        self._open.append(data, pool)
        self.tokens += len(data) // self._dtype.itemsize

    def end_documents(self, ends: npt.NDArray[np.int64]) -> None:
        """Documents end before these tokens of the split; those with no token are none."""
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
        """Let a document end here, if one has not."""
        self.end_documents(np.array([self.tokens], np.int64))

    def finish(self) -> None:
        """Close the last shard; a split without tokens has none."""
        if self._open is not None:
            self.end_document()
            self._close_shard()

    def open_names(self) -> set[str]:
        """The files of the shard that is being written."""
        return set() if self._open is None else self._open.names()

    def sync(self) -> None:
        if self._open is not None:
            self._open.sync()

    def state(self) -> dict[str, Any]:
        """As plain JSON, to go on from."""
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "ended": self._ended,
            "lengths": self.lengths.tolist(),
            "shards": [asdict(shard) for shard in self.shards],
            "open": None if self._open is None else self._open.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state: what was written after it is cut off, what was written before is checked."""
        self.tokens, self.documents, self._ended = state["tokens"], state["documents"], state["ended"]
        self.lengths = np.array(state["lengths"], np.int64)
        self.shards = [Shard(**shard) for shard in state["shards"]]
        if state["open"] is not None:
            self._open = self._begin_shard()
            self._open.restore(state["open"])

    def close(self) -> None:
        """Let go of files; what was not committed is lost."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _begin_shard(self) -> _OpenShard:
        name = self.split if self._layout == "nanogpt" else f"{self.split}-{len(self.shards):05}"
        header = b""
        if self._layout == "llmc":  # its count is right unless it is the last shard
            header = llmc.make_header(self._dtype, self._shard_tokens or 0)
        return _OpenShard(os.path.join(self._folder, name), header, self._dtype.itemsize)

    def _close_shard(self) -> None:
        assert self._open is not None
        header = llmc.make_header(self._dtype, self._open.tokens) if self._layout == "llmc" else b""
        self.shards.append(self._open.finish(header))
        self._open = None


class _OpenShard:
    """The shard that is being written: its tokens and its ends."""

    def __init__(self, path: str, header: bytes, itemsize: int) -> None:
        self.tokens = 0
        self._header = header
        self._itemsize = itemsize
        self._bin, self._ends = _Hashed(path + ".bin"), _Hashed(path + ".ends")
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
        if self._header:  # which `finish` may have changed since
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


class _Hashed:
    """A file that is appended to, and the sum of what is in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise errors.writing(path, error) from error
        self._sum = hashlib.sha256()
        self._pace = publish.Pace(self._fd)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def append(self, data: bytes | memoryview, pool: ThreadPoolExecutor | None = None) -> None:
        hashing = pool.submit(self._sum.update, data) if pool else None
        try:
            publish.write_all(self._fd, memoryview(data), self.size)
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
        """Put other bytes at the beginning, and sum the file up once more."""
        try:
            publish.write_all(self._fd, memoryview(head), 0)
        except OSError as error:
            raise errors.writing(self.path, error) from error
        self._sum_up(self.size)

    def state(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self.sha256}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sum_up(state["size"])
        if self.sha256 != state["sha256"]:
            raise DamagedError(f"out/{os.path.basename(self.path)}")
        self.size = state["size"]
        self._pace = publish.Pace(self._fd, self.size)

    def sync(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)  # what an earlier run wrote beyond the last commit
            os.fsync(self._fd)
        except OSError as error:
            raise errors.writing(self.path, error) from error

    def close(self) -> None:
        os.close(self._fd)

    def _sum_up(self, size: int) -> None:
        self._sum = hashlib.sha256()
        at = 0
        while at < size:
            data = os.pread(self._fd, min(_BLOCK, size - at), at)
            if not data:
                break  # the sum will say so
            self._sum.update(data)
            at += len(data)
