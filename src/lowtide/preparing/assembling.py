"""Putting together what tasks left: shards of the size asked for, ends beside them, sums of both.

Tasks are taken in their order, each as soon as all before it are there. Every byte is written once more, and
hashed on its way, in another thread: both let go of the interpreter. ``commit`` puts all of it on disk and
says so in ``state.json``; what tasks left is deleted then and not before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import errors, publish
from lowtide.errors import FormatError
from lowtide.formats import llmc
from lowtide.formats.own import LayoutName, Shard
from lowtide.preparing.encoding import TRAIN, VAL, files_of, record_path
from lowtide.preparing.tasks import Record
from lowtide.preparing.workfolder import Workfolder

BINS = 48  # of the histogram of lengths: bin i counts documents of 2**(i - 1) to 2**i - 1 tokens

_BLOCK = 4 * 2**20  # bytes copied at once
_UNCOMMITTED = 128 * 2**20  # bytes copied before they are forced to disk
_END = np.dtype("<u8")


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
        self._ends.append(ends.astype(_END).view(np.uint8).data)

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
            self._ends.size // _END.itemsize,
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
            raise FormatError(
                f"{self.path}: is not what was written there, by its sum: changed or damaged since; remove "
                f"{os.path.dirname(os.path.dirname(self.path))} and run the same command again"
            )
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


class Assembler:
    """Takes what tasks left, in their order, and keeps count."""

    def __init__(
        self,
        work: Workfolder,
        *,
        dtype: str,
        layout: LayoutName,
        shard_tokens: int | None,
        train_tokens: int | None = None,
    ) -> None:
        """``train_tokens`` is where the stream is cut in two, if it is cut by place and not by document."""
        self.streams = {
            split: Stream(work.shards, split, dtype, layout, shard_tokens) for split in (TRAIN, VAL)
        }
        self.consumed = 0  # tasks
        self.skipped = 0
        self.complaints: list[str] = []
        self._work = work
        self._itemsize = np.dtype(dtype).itemsize
        self._cut = train_tokens
        self._committed = 0  # tasks
        self._uncommitted = 0  # bytes
        self._pool = ThreadPoolExecutor(1, "lowtide-hash")
        self._buffer = bytearray(_BLOCK)
        state = work.read_state()
        if state is not None:
            self._restore(state)
        self._remove_others()

    def consume(self, record: Record) -> None:
        """Take the next task's files."""
        assert record.task == self.consumed
        for split in (TRAIN, VAL):
            if record.tokens[split] or record.documents[split]:
                self._copy(record, split)
        self.skipped += record.skipped
        self.complaints += record.complaints[: 5 - len(self.complaints)]
        self.consumed += 1
        if self._uncommitted >= _UNCOMMITTED:
            self.commit()

    def commit(self) -> None:
        """Put all that was taken on disk, then forget the files that it came from."""
        if self._committed < self.consumed:
            self._commit()

    def _commit(self) -> None:
        for stream in self.streams.values():
            stream.sync()
        publish.sync_folder(self._work.shards)
        self._work.write_state(self._state())
        self._forget(self._committed)
        self._committed, self._uncommitted = self.consumed, 0

    def finish(self) -> None:
        """Close every shard, on disk."""
        for stream in self.streams.values():
            stream.finish()
        self._commit()
        self._remove_others()

    def close(self) -> None:
        self._pool.shutdown()
        for stream in self.streams.values():
            stream.close()

    def _copy(self, record: Record, split: str) -> None:
        tokens_path, ends_path = files_of(self._work.tasks, record.task, split)
        try:
            with open(tokens_path, "rb", buffering=0) as tokens, open(ends_path, "rb") as ends:
                found = os.fstat(tokens.fileno()).st_size, os.fstat(ends.fileno()).st_size
                if found != (record.tokens[split] * self._itemsize, record.documents[split] * _END.itemsize):
                    raise FormatError(
                        f"{tokens_path}: has {found[0]} bytes, and its record says {record.tokens[split]} "
                        f"tokens: damaged; remove {self._work.path} and run the same command again"
                    )
                self._pour(tokens, _Ends(ends), record.tokens[split], split)
        except OSError as error:
            raise (
                error if isinstance(error, errors.LowtideError) else errors.reading(tokens_path, error)
            ) from error

    def _pour(self, tokens: Any, ends: _Ends, count: int, split: str) -> None:
        view = memoryview(self._buffer)
        done = 0
        while done < count:
            stream, room = self._next(split)
            begun = stream.tokens - done  # where this task's tokens begin in the stream
            wanted = min(count - done, room, _BLOCK // self._itemsize) * self._itemsize
            got = 0
            while got < wanted:
                got += tokens.readinto(view[got:wanted])
            stream.append(view[:wanted], self._pool)
            done += wanted // self._itemsize
            stream.end_documents(ends.upto(done) + begun)
            self._uncommitted += wanted
        if not count:  # the last piece of a long document had no token of its own
            (
                self.streams[VAL] if self.streams[VAL].tokens and self._cut else self.streams[split]
            ).end_document()

    def _next(self, split: str) -> tuple[Stream, int]:
        """Where the next tokens go, and how many of them."""
        stream = self.streams[split]
        if self._cut is None:
            return stream, stream.room()
        if stream.tokens < self._cut:
            return stream, min(stream.room(), self._cut - stream.tokens)
        stream.end_document()
        return self.streams[VAL], self.streams[VAL].room()

    def _state(self) -> dict[str, Any]:
        return {
            "consumed": self.consumed,
            "train_tokens": self._cut,
            "skipped": self.skipped,
            "complaints": self.complaints,
            "streams": {split: stream.state() for split, stream in self.streams.items()},
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.consumed = self._committed = state["consumed"]
        self._cut = state["train_tokens"]
        self.skipped, self.complaints = state["skipped"], list(state["complaints"])
        for split, stream in self.streams.items():
            stream.restore(state["streams"][split])
        self._forget(0)

    def _forget(self, first: int) -> None:
        """Delete the files of tasks that are on disk elsewhere."""
        if not first:
            numbers = {int(name[:8]) for name in os.listdir(self._work.tasks)}
            done = sorted(number for number in numbers if number < self.consumed)
        else:
            done = list(range(first, self.consumed))
        for task in done:
            paths = [record_path(self._work.tasks, task)]
            for split in self.streams:
                paths += files_of(self._work.tasks, task, split)
            for path in paths:  # the record first: without it the rest is nothing
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _remove_others(self) -> None:
        """Remove shards that were begun after the last commit, and by another run."""
        mine = {
            name
            for stream in self.streams.values()
            for shard in stream.shards
            for name in (shard.file, shard.ends)
        }
        for stream in self.streams.values():
            mine |= stream.open_names()
        for name in os.listdir(self._work.shards):
            if name not in mine:
                os.unlink(os.path.join(self._work.shards, name))


class _Ends:
    """The document ends of one task, read as far as they are needed."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._held = np.empty(0, np.int64)

    def upto(self, tokens: int) -> npt.NDArray[np.int64]:
        """The ends at or before a token, that were not given before."""
        found = []
        while True:
            taken = int(np.searchsorted(self._held, tokens, "right"))
            found.append(self._held[:taken])
            self._held = self._held[taken:]
            if len(self._held):
                break
            data = self._file.read(_BLOCK)
            if not data:
                break
            self._held = np.frombuffer(data, _END).astype(np.int64)
        return np.concatenate(found)
