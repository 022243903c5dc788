"""What a worker does: the text of a task to tokens, in files of its own, in bounded memory."""

from __future__ import annotations

import errno
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import _permutation as orders
from lowtide import errors
from lowtide._io import publish
from lowtide._prepare import sealed, tokenizers
from lowtide._prepare.reading import ReadOptions, read
from lowtide._prepare.tasks import Record, Task
from lowtide._prepare.tokenizers import Ids, Tokenizer
from lowtide._prepare.units import Piece, Unit
from lowtide.errors import FormatError

TRAIN, VAL = SPLITS = ("train", "val")

_AT_ONCE = 2**20  # characters that are handed to a tokenizer together
_COMPLAINTS = 5  # of each task, kept to be shown
_END = np.dtype("<u8")

_Placed = tuple[Unit, Piece]


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a run share. Plain values: it is sent to other processes and machines."""

    folder: str  # where a task's files go
    tokenizer: str  # the file to load it from
    key: str  # of the plan and the tokenizer: seals records, and tells one run's tokenizer from another's
    dtype: str  # of the ids in a task's files
    eos: int | None  # written behind each document
    options: ReadOptions
    val_fraction: float = 0.0
    seed: int = 0
    skip: bool = False


def encode(task: Task, job: Job) -> Record:
    """Encode a task and leave its files in the job's folder, the record last.

    Every attempt writes under names of its own and renames them at the end. So it does no harm if a task runs
    twice at once, as it may on a cluster that lost sight of a worker: both write the same.
    """
    if not os.path.isdir(job.folder):
        raise errors.NotFoundError(
            errno.ENOENT,
            "the worker does not find the output folder; with Dask, put sources and output on a file system "
            "that every worker sees under the same path",
            job.folder,
        )
    tokenizer = _load(job.tokenizer, job.key)
    attempt = uuid.uuid4().hex
    outputs = {
        split: _Output(os.path.join(job.folder, f"{task.index:08}.{split}"), attempt) for split in SPLITS
    }
    complaints: list[str] = []
    skipped = 0

    def skip(error: Exception) -> None:
        nonlocal skipped
        skipped += 1
        if len(complaints) < _COMPLAINTS:
            complaints.append(str(error))

    try:
        for batch in _batches(task, job, skip if job.skip else None):
            try:
                _encode_batch(batch, tokenizer, job, outputs)
            except FormatError as error:  # the tokenizer does not know where the text came from
                raise FormatError(f"{_where(batch)}: {error}") from error
        record = Record(
            task.index,
            {split: output.tokens for split, output in outputs.items()},
            {split: output.documents for split, output in outputs.items()},
            skipped,
            complaints,
            {name: told for output in outputs.values() for name, told in output.files().items()},
        )
        for output in outputs.values():
            output.finish()
        sealed.write(record_path(job.folder, task.index), record.to_json(), job.key, suffix=f".{attempt}")
    except BaseException:
        for output in outputs.values():
            output.abort()
        raise
    return record


def files_of(folder: str, task: int, split: str) -> tuple[str, str]:
    """The tokens and the document ends that a task left of a split; absent where it has none."""
    path = os.path.join(folder, f"{task:08}.{split}")
    return path + ".bin", path + ".ends"


def record_path(folder: str, task: int) -> str:
    return os.path.join(folder, f"{task:08}.json")


def falls_to_val(
    sources: npt.NDArray[np.uint64], documents: npt.NDArray[np.uint64], seed: int, fraction: float
) -> npt.NDArray[np.bool_]:
    """Which documents are for validation: a keyed hash of what a document is, and of nothing else.

    >>> numbers = np.arange(100_000, dtype=np.uint64)
    >>> int(falls_to_val(numbers // np.uint64(1000), numbers, seed=0, fraction=0.1).sum())
    10082
    """
    key = np.uint64(orders.key_of(seed, 0))
    hashed = orders.mix(orders.mix(sources + key) + documents)
    return hashed < np.uint64(int(fraction * 2**64))


class _Output:
    """The tokens and ends of one split of one task."""

    def __init__(self, path: str, attempt: str) -> None:
        self.tokens = 0
        self.documents = 0
        self._paths = (path + ".bin", path + ".ends")
        self._attempt = attempt
        self._fds: list[int] = []
        self._sizes = [0, 0]
        self._sums = [0, 0]

    def append(self, tokens: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> None:
        """Tokens, and how many of them come before each document's end."""
        try:
            if not self._fds:  # most tasks have nothing for validation
                for path in self._paths:
                    self._fds.append(
                        os.open(self._temporary(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                    )
            self._write(0, tokens)
            self._write(1, (ends + self.tokens).astype(_END))
        except OSError as error:
            raise errors.writing(self._paths[0], error) from error
        self.tokens += len(tokens)
        self.documents += len(ends)

    def _write(self, which: int, values: npt.NDArray[Any]) -> None:
        data = values.view(np.uint8).data
        publish.write_all(self._fds[which], data, self._sizes[which])
        self._sizes[which] += len(data)
        # Not SHA-256: of the time that the tokenizer 'byte' takes, that would be a third more.
        self._sums[which] = zlib.crc32(data, self._sums[which])

    def files(self) -> dict[str, tuple[int, int]]:
        """Size and CRC-32 of each file."""
        names = [os.path.basename(path).partition(".")[2] for path in self._paths]
        told = zip(names, self._sizes, self._sums, strict=True)
        return {name: (size, total) for name, size, total in told} if self._fds else {}

    def finish(self) -> None:
        for fd, path in zip(self._fds, self._paths, strict=False):
            try:
                os.close(fd)
                os.replace(self._temporary(path), path)
            except OSError as error:
                raise errors.writing(path, error) from error
        self._fds.clear()

    def abort(self) -> None:
        for fd, path in zip(self._fds, self._paths, strict=False):
            with suppress(OSError):
                os.close(fd)
            with suppress(OSError):
                os.unlink(self._temporary(path))
        self._fds.clear()

    def _temporary(self, path: str) -> str:
        return f"{path}.{self._attempt}"


def _batches(task: Task, job: Job, skip: Any) -> Iterator[list[_Placed]]:
    held: list[_Placed] = []
    size = 0
    for unit in task.units:
        for piece in _pieces(unit, job, skip):
            held.append((unit, piece))
            size += len(piece.text) + 16  # so that a million empty documents fill a batch too
            if size >= _AT_ONCE:
                yield held
                held, size = [], 0
    if held:
        yield held


def _pieces(unit: Unit, job: Job, skip: Any) -> Iterator[Piece]:
    """A unit's pieces. Where reading cannot go on and bad input is to be skipped, the rest of the unit is."""
    last = None
    try:
        for piece in read(unit, job.options, skip):
            last = piece
            yield piece
    except FormatError as error:
        if skip is None:
            raise
        skip(error)
        if last is not None and not last.ends:
            yield Piece("", True, last.document, last.position)


def _encode_batch(
    batch: Sequence[_Placed], tokenizer: Tokenizer, job: Job, outputs: dict[str, _Output]
) -> None:
    ids = tokenizer.encode_batch([piece.text for _, piece in batch])
    ends = np.fromiter((piece.ends for _, piece in batch), bool, len(batch))
    if not job.val_fraction:
        _append(ids, ends, tokenizer, job, outputs[TRAIN])
        return
    sources = np.fromiter((unit.source for unit, _ in batch), np.uint64, len(batch))
    documents = np.fromiter((piece.document for _, piece in batch), np.uint64, len(batch))
    val = falls_to_val(sources, documents, job.seed, job.val_fraction)
    for split, chosen in ((TRAIN, ~val), (VAL, val)):
        if chosen.all():
            _append(ids, ends, tokenizer, job, outputs[split])
        elif chosen.any():
            which = np.flatnonzero(chosen).tolist()
            _append([ids[i] for i in which], ends[chosen], tokenizer, job, outputs[split])


def _append(
    ids: Sequence[Ids],
    ends: npt.NDArray[np.bool_],
    tokenizer: Tokenizer,
    job: Job,
    output: _Output,
) -> None:
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    parts = ids
    if job.eos is not None:
        lengths += ends
        # The type of the ids may be too small for the end of text.
        eos: Ids = np.array([job.eos], job.dtype)
        pairs = zip(ids, ends.tolist(), strict=True)
        parts = [part for one, last in pairs for part in ((one, eos) if last else (one,))]
    tokens = np.concatenate(parts) if len(parts) != 1 else parts[0]
    tokens = tokenizers.checked(tokens, tokenizer)
    output.append(tokens, np.cumsum(lengths)[ends])


def _where(batch: Sequence[_Placed]) -> str:
    (first, begin), (last, end) = batch[0], batch[-1]
    if first.path == last.path:
        return f"{first.path}: between positions {begin.position} and {end.position}"
    return f"{first.path} to {last.path}"


@lru_cache(maxsize=1)
def _load(path: str, key: str) -> Tokenizer:  # noqa: ARG001 - the key makes it another entry
    return tokenizers.load(path, trusted=True)
