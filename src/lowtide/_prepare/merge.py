"""Merging the files of tasks into shards.

Tasks are merged in their order, each as soon as all before it are done. Every byte is written once more and
hashed in another thread meanwhile: both release the interpreter lock. ``commit`` forces everything to disk
and records it in ``state.json``; the files of tasks are deleted after that, not before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BufferedReader
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io import atomic
from lowtide._prepare.jobs import Record
from lowtide._prepare.shard_writer import DamagedError, ShardWriter
from lowtide._prepare.workdir import Workdir
from lowtide._prepare.worker import SPLITS, VAL, files_of, record_path
from lowtide._tokens.formats.documents import END
from lowtide._tokens.formats.own import LayoutName
from lowtide.errors import FormatError

_BLOCK = 4 * 2**20  # bytes of ends that are read at once
_TOKENS = 2**20  # tokens that are copied at once
_UNCOMMITTED = 128 * 2**20  # bytes after which a commit forces them to disk


class Merger:
    """Merges the files of tasks in their order, and counts."""

    def __init__(
        self,
        work: Workdir,
        *,
        narrow: str,
        dtype: str,
        layout: LayoutName,
        shard_tokens: int | None,
        train_tokens: int | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """``narrow`` is the dtype of tokens in tasks, ``dtype`` that of tokens in shards.

        ``train_tokens`` is the number of tokens before the validation part, if that is the end of all tokens.
        A ``state`` is resumed from, or raises ``DamagedError`` if the shards do not match it.
        """
        self.writers = {
            split: ShardWriter(work.shards, split, dtype, layout, shard_tokens) for split in SPLITS
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
        self._buffer = np.empty(_TOKENS, self._narrow)
        self._tokens = np.empty(_TOKENS, np.dtype(dtype).newbyteorder("<"))
        if state is not None:
            try:
                self._restore(state)
            except BaseException:
                self.close()
                raise
        self._remove_others()

    def consume(self, record: Record) -> None:
        """Merge the files of the next task."""
        assert record.task == self.consumed
        for split in SPLITS:
            if record.tokens[split] or record.documents[split]:
                self._copy(record, split)
        self.skipped += record.skipped
        self.complaints += record.complaints[: 5 - len(self.complaints)]
        self.consumed += 1
        if self._uncommitted >= _UNCOMMITTED:
            self.commit()

    def commit(self) -> None:
        """Force everything merged so far to disk, then delete the files that it came from."""
        for writer in self.writers.values():
            writer.sync()
        atomic.sync_folder(self._work.shards)
        self._work.write_state(self._state())
        self._forget(self._committed)
        self._committed, self._uncommitted = self.consumed, 0
        self._work.send(self._complete().keys())

    def _complete(self) -> dict[str, str | None]:
        """The files of complete shards and their digests."""
        shards = (shard for writer in self.writers.values() for shard in writer.shards)
        return dict(file for shard in shards for file in shard.files)

    def finish(self) -> None:
        """Finish every shard, on disk."""
        for writer in self.writers.values():
            writer.finish()
        self.commit()
        self._remove_others()

    def close(self) -> None:
        self._pool.shutdown()
        for writer in self.writers.values():
            writer.close()

    def _copy(self, record: Record, split: str) -> None:
        tokens_path, ends_path = files_of(self._work.tasks, record.task, split)
        count, documents = record.tokens[split], record.documents[split]
        with (
            errors.read_errors(tokens_path),
            open(tokens_path, "rb") as tokens,
            open(ends_path, "rb") as ends,
        ):
            size = os.fstat(tokens.fileno()).st_size
            expected = count * self._narrow.itemsize
            if (size, os.fstat(ends.fileno()).st_size) != (expected, documents * END.itemsize):
                raise FormatError(
                    f"{tokens_path}: changed after it was written ({size} bytes, expected {expected}); run "
                    "the same command again"
                )
            self._append(tokens, _Ends(ends), count, split)

    def _append(self, tokens: BufferedReader, ends: _Ends, count: int, split: str) -> None:
        done = 0
        while done < count:
            writer, room = self._next(split)
            start = writer.tokens - done  # of this task in the split
            part = self._buffer[: min(count - done, room, _TOKENS)]
            if tokens.readinto(part.view(np.uint8).data) < part.nbytes:
                raise FormatError(
                    f"{tokens.name}: was truncated while it was read; run the same command again"
                )
            if self._narrow != self._tokens.dtype:
                np.copyto(self._tokens[: len(part)], part)
                part = self._tokens[: len(part)]
            writer.append(part.view(np.uint8).data, self._pool)
            done += len(part)
            writer.end_documents(ends.upto(done) + start)
            self._uncommitted += part.nbytes
        if not count:  # the last piece of a long document has no tokens
            in_val = self.writers[VAL].tokens and self._cut
            self.writers[VAL if in_val else split].end_document()

    def _next(self, split: str) -> tuple[ShardWriter, int]:
        """The writer for the next tokens, and how many of them it takes."""
        writer = self.writers[split]
        if self._cut is None:
            return writer, writer.room()
        if writer.tokens < self._cut:
            return writer, min(writer.room(), self._cut - writer.tokens)
        writer.end_document()
        return self.writers[VAL], self.writers[VAL].room()

    def _state(self) -> dict[str, Any]:
        return {
            "consumed": self.consumed,
            "train_tokens": self._cut,
            "skipped": self.skipped,
            "complaints": self.complaints,
            "writers": {split: writer.state() for split, writer in self.writers.items()},
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.consumed = self._committed = state["consumed"]
        self._cut = state["train_tokens"]
        self.skipped, self.complaints = state["skipped"], list(state["complaints"])
        for split, writer in self.writers.items():
            writer.restore(state["writers"][split])
        if (damaged := self._work.check_files(self._complete())) is not None:
            raise DamagedError(f"out/{damaged}")
        self._forget(0)

    def _forget(self, first: int) -> None:
        """Delete the files of tasks whose tokens are on disk in a shard."""
        tasks: Iterable[int] = range(first, self.consumed)
        if not first:
            numbers = {int(name[:8]) for name in os.listdir(self._work.tasks) if name[:8].isdecimal()}
            tasks = sorted(numbers.intersection(tasks))
        for task in tasks:
            paths = [record_path(self._work.tasks, task)]
            for split in SPLITS:
                paths += files_of(self._work.tasks, task, split)
            for path in paths:  # the record first: without it the other files are not used
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _remove_others(self) -> None:
        """Remove shards that were started after the last commit, or by another run."""
        names = set[str]().union(*(writer.names() for writer in self.writers.values()))
        for name in os.listdir(self._work.shards):
            if name not in names:
                os.unlink(os.path.join(self._work.shards, name))


class _Ends:
    """The document ends of one task, read as needed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ends = np.empty(0, np.int64)

    def upto(self, tokens: int) -> npt.NDArray[np.int64]:
        """The ends at or before a token that were not returned before."""
        parts = []
        while True:
            count = int(np.searchsorted(self._ends, tokens, "right"))
            parts.append(self._ends[:count])
            self._ends = self._ends[count:]
            if len(self._ends) or not (data := self._file.read(_BLOCK)):
                return np.concatenate(parts)
            self._ends = np.frombuffer(data, END).astype(np.int64)
