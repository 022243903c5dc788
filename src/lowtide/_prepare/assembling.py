"""Putting together what tasks left: shards of the size asked for, ends beside them, sums of both.

Tasks are taken in their order, each as soon as all before it are there. Every byte is written once more, and
hashed on its way, in another thread: both let go of the interpreter. ``commit`` puts all of it on disk and
says so in ``state.json``; what tasks left is deleted then and not before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io import publish
from lowtide._prepare.encoding import TRAIN, VAL, files_of, record_path
from lowtide._prepare.shards import END, DamagedError, Stream
from lowtide._prepare.tasks import Record
from lowtide._prepare.workfolder import Workfolder
from lowtide._tokens.formats.own import LayoutName
from lowtide.errors import FormatError

_BLOCK = 4 * 2**20  # bytes of ends read at once
_TOKENS = 2**20  # copied at once
_UNCOMMITTED = 128 * 2**20  # bytes copied before they are forced to disk


class Assembler:
    """Takes what tasks left, in their order, and keeps count."""

    def __init__(
        self,
        work: Workfolder,
        *,
        narrow: str,
        dtype: str,
        layout: LayoutName,
        shard_tokens: int | None,
        train_tokens: int | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """``narrow`` is the dtype of the tasks' tokens, ``dtype`` that of the shards'.

        ``train_tokens`` is where the stream is cut in two, if it is cut by place and not by document. From a
        ``state`` it resumes, or raises ``DamagedError`` if the shards are not those of that state.
        """
        self.streams = {
            split: Stream(work.shards, split, dtype, layout, shard_tokens) for split in (TRAIN, VAL)
        }
        self.consumed = 0  # tasks
        self.skipped = 0
        self.complaints: list[str] = []
        self._work = work
        self._narrow = np.dtype(narrow).newbyteorder("<")
        self._cut = train_tokens
        self._committed = 0  # tasks
        self._uncommitted = 0  # bytes
        self._pool = ThreadPoolExecutor(1, "lowtide-hash")
        self._read = np.empty(_TOKENS, self._narrow)
        self._tokens = np.empty(_TOKENS, np.dtype(dtype).newbyteorder("<"))
        if state is not None:
            try:
                self._restore(state)
            except BaseException:
                self.close()
                raise
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
                if found != (
                    record.tokens[split] * self._narrow.itemsize,
                    record.documents[split] * END.itemsize,
                ):
                    raise FormatError(
                        f"{tokens_path}: has {found[0]} bytes, and its record says {record.tokens[split]} "
                        "tokens: changed since; run the same command again"
                    )
                self._pour(tokens, _Ends(ends), record.tokens[split], split)
        except OSError as error:
            raise (
                error if isinstance(error, errors.LowtideError) else errors.reading(tokens_path, error)
            ) from error

    def _pour(self, tokens: Any, ends: _Ends, count: int, split: str) -> None:
        read = self._read.view(np.uint8).data
        done = 0
        while done < count:
            stream, room = self._next(split)
            begun = stream.tokens - done  # where this task's tokens begin in the stream
            wanted = min(count - done, room, _TOKENS)
            got, nbytes = 0, wanted * self._narrow.itemsize
            while got < nbytes:
                count_read = tokens.readinto(read[got:nbytes])
                if not count_read:
                    raise FormatError(f"{tokens.name}: became shorter while it was read; run it again")
                got += count_read
            data = self._read[:wanted]
            if self._narrow != self._tokens.dtype:
                data = self._tokens[:wanted]
                data[:] = self._read[:wanted]
            stream.append(data.view(np.uint8).data, self._pool)
            done += wanted
            stream.end_documents(ends.upto(done) + begun)
            self._uncommitted += data.nbytes
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
        wrong = self._work.check_shards([one for stream in self.streams.values() for one in stream.shards])
        if wrong is not None:
            raise DamagedError(f"out/{wrong}")
        self._forget(0)

    def _forget(self, first: int) -> None:
        """Delete the files of tasks that are on disk elsewhere."""
        if not first:
            numbers = {int(name[:8]) for name in os.listdir(self._work.tasks) if name[:8].isdecimal()}
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
            self._held = np.frombuffer(data, END).astype(np.int64)
        return np.concatenate(found)
