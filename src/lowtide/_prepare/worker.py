"""A worker: it encodes the text of a task and writes the tokens to files, in bounded memory."""

from __future__ import annotations

import dataclasses
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lowtide import _permutation as orders
from lowtide import errors
from lowtide._prepare import sealed, tokenizers
from lowtide._prepare.inputs.kind import ReadOptions, Skip, Unit
from lowtide._prepare.inputs.pieces import Piece
from lowtide._prepare.jobs import Record, Task
from lowtide._prepare.settings import Settings
from lowtide._prepare.tokenizers import Ids, Tokenizer
from lowtide._prepare.tokenizers.ids import Function, FunctionTokenizer
from lowtide._tokens.formats.documents import END
from lowtide.errors import FormatError

TRAIN, VAL = SPLITS = ("train", "val")

_BATCH = 2**20  # characters that are passed to a tokenizer together
_COMPLAINTS = 5  # per task, to be shown

_Source = tuple[Unit, Piece]


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """The settings of all tasks of a run. It is sent to other processes and machines."""

    folder: str  # for the files of tasks
    tokenizer: str  # the file to load it from
    key: str  # of the plan and the tokenizer: seals records, and distinguishes the tokenizers of two runs
    dtype: str  # of the ids in the files of tasks
    eos: int | None  # written after each document
    options: ReadOptions
    settings: Settings
    function: Function | None  # encodes the text, if the tokenizer is a function
    takes_ids: bool  # whether the tokenizer was chosen, so that ids in a source are its own


def encode(task: Task, job: Job) -> Record:
    """Encode a task and write its files to the job's folder, the record last.

    Every attempt writes to its own names, without a lock, and renames the files at the end: on a cluster that
    lost the connection to a worker a task may run twice at once, and both attempts write the same bytes.
    Nothing is forced to disk, since the files exist for seconds.
    """
    if not os.path.isdir(job.folder):
        raise errors.missing(
            job.folder,
            "the worker does not see the output folder; with Dask, put sources and output on a file system "
            "that every worker sees under the same path",
        )
    tokenizer = _load(job.tokenizer, job.key)
    if job.function is not None:
        tokenizer = FunctionTokenizer(job.function, tokenizer.name, tokenizer.vocab_size, tokenizer.eos)
    attempt = uuid.uuid4().hex
    outputs = {split: _Output(files_of(job.folder, task.index, split), attempt) for split in SPLITS}
    complaints: list[str] = []
    skipped = 0

    def skip(error: Exception) -> None:
        nonlocal skipped
        skipped += 1
        if len(complaints) < _COMPLAINTS:
            complaints.append(str(error))

    try:
        for batch in _batches(task, job, skip if job.settings.skips else None):
            try:
                _encode_batch(batch, tokenizer, job, outputs)
            except FormatError as error:  # the tokenizer does not know the position of the text
                raise FormatError(f"{_where(batch)}: {error}") from error
        record = Record(
            task.index,
            {split: output.tokens for split, output in outputs.items()},
            {split: output.documents for split, output in outputs.items()},
            skipped,
            complaints,
            {name: sums for output in outputs.values() for name, sums in output.files().items()},
        )
        for output in outputs.values():
            output.finish()
        content = dataclasses.asdict(record)
        path = record_path(job.folder, task.index)
        sealed.write(path, content, job.key, suffix=f".{attempt}", durable=False)
    except BaseException:
        for output in outputs.values():
            output.abort()
        raise
    return record


def files_of(folder: str, task: int, split: str) -> tuple[str, str]:
    """The tokens and the document ends that a task wrote for a split; absent if it has none."""
    path = os.path.join(folder, f"{task:08}.{split}")
    return path + ".bin", path + ".ends"


def record_path(folder: str, task: int) -> str:
    return os.path.join(folder, f"{task:08}.json")


def held_out(
    files: npt.NDArray[np.uint64], documents: npt.NDArray[np.uint64], seed: int, fraction: float
) -> npt.NDArray[np.bool_]:
    """Whether each document is held out, which depends on a keyed hash of its identity alone.

    >>> numbers = np.arange(100_000, dtype=np.uint64)
    >>> int(held_out(numbers // np.uint64(1000), numbers, seed=0, fraction=0.1).sum())
    10082
    """
    key = np.uint64(orders.key_of(seed, 0))
    hashed = orders.mix(orders.mix(files + key) + documents)
    return hashed < np.uint64(int(fraction * 2**64))


class _Output:
    """The tokens and ends of one split of one task."""

    def __init__(self, paths: tuple[str, str], attempt: str) -> None:
        self.tokens = 0
        self.documents = 0
        self._paths = paths
        self._temporary = [f"{path}.{attempt}" for path in paths]
        self._files: list[BinaryIO] = []
        self._sums = [(0, 0), (0, 0)]  # size and CRC-32

    def append(self, tokens: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> None:
        """Write tokens, and how many of them precede the end of each document."""
        with errors.write_errors(self._paths[0]):
            for path in self._temporary[len(self._files) :]:  # most tasks have no document for validation
                self._files.append(open(path, "xb"))  # noqa: SIM115
            for which, values in enumerate((tokens, (ends + self.tokens).astype(END))):
                data = values.view(np.uint8).data
                self._files[which].write(data)
                size, total = self._sums[which]
                # Not SHA-256, which would add a third to the time of the tokenizer 'byte'.
                self._sums[which] = size + len(data), zlib.crc32(data, total)
        self.tokens += len(tokens)
        self.documents += len(ends)

    def files(self) -> dict[str, tuple[int, int]]:
        """Size and CRC-32 of each file."""
        names = [os.path.basename(path).partition(".")[2] for path in self._paths]
        return dict(zip(names, self._sums, strict=True)) if self._files else {}

    def finish(self) -> None:
        for file, path in zip(self._files, self._paths, strict=False):
            with errors.write_errors(path):
                file.close()
                os.replace(file.name, path)
        self._files.clear()

    def abort(self) -> None:
        for file in self._files:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                os.unlink(file.name)
        self._files.clear()


def _batches(task: Task, job: Job, skip: Skip | None) -> Iterator[list[_Source]]:
    held: list[_Source] = []
    size = 0
    for unit in task.units:
        for piece in _pieces(unit, job, skip):
            held.append((unit, piece))
            tokens = 0 if piece.ids is None else len(piece.ids)
            size += len(piece.text) + 4 * tokens + 16  # a million empty documents must fill a batch as well
            if size >= _BATCH:
                yield held
                held, size = [], 0
    if held:
        yield held


def _pieces(unit: Unit, job: Job, skip: Skip | None) -> Iterator[Piece]:
    """The pieces of a unit. If reading cannot continue and errors are skipped, its rest is left out."""
    last = None
    try:
        for piece in unit.read(job.options, skip):
            last = piece
            yield piece
    except FormatError as error:
        if skip is None:
            raise
        skip(error)
        if last is not None and not last.ends:
            yield Piece("", True, last.document, last.position)


def _encode_batch(
    batch: Sequence[_Source], tokenizer: Tokenizer, job: Job, outputs: dict[str, _Output]
) -> None:
    ids = _ids(batch, tokenizer, job)
    ends = np.fromiter((piece.ends for _, piece in batch), bool, len(batch))
    settings, fraction = job.settings, job.settings.held_out
    if not fraction and settings.val_files is None:
        _append(ids, ends, tokenizer, job, outputs[TRAIN])
        return
    files = np.fromiter((unit.number for unit, _ in batch), np.uint64, len(batch))
    if settings.val_files is not None:
        val = files >= settings.val_files
    else:
        documents = np.fromiter((piece.document for _, piece in batch), np.uint64, len(batch))
        val = held_out(files, documents, settings.seed, fraction)
    for split, mask in ((TRAIN, ~val), (VAL, val)):
        if mask.any():
            part = ids if mask.all() else [ids[i] for i in np.flatnonzero(mask).tolist()]
            _append(part, ends[mask], tokenizer, job, outputs[split])


def _ids(batch: Sequence[_Source], tokenizer: Tokenizer, job: Job) -> list[Ids]:
    """The ids of pieces: from the source itself, or encoded from its text."""
    texts = [piece.text for _, piece in batch if piece.ids is None]
    if len(texts) == len(batch):
        return tokenizer.encode_batch(texts)
    if not job.takes_ids:
        raise FormatError(
            "the source contains token ids; pass the tokenizer that made them as tokenizer, or "
            "ids:VOCAB with the number of its ids"
        )
    encoded = iter(tokenizer.encode_batch(texts))
    ids: list[Ids] = []
    for _, piece in batch:
        one = next(encoded) if piece.ids is None else tokenizers.checked(piece.ids, tokenizer)
        # A source of ids may end its documents itself; the mark is written below.
        ended = piece.ids is not None and job.eos is not None and int(one[-1]) == job.eos
        ids.append(one[:-1] if ended else one)
    return ids


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
        # The dtype of the ids may be too small for the end of text.
        eos: Ids = np.array([job.eos], job.dtype)
        pairs = zip(ids, ends.tolist(), strict=True)
        parts = [part for one, last in pairs for part in ((one, eos) if last else (one,))]
    tokens = np.concatenate(parts) if len(parts) != 1 else parts[0]
    tokens = tokenizers.checked(tokens, tokenizer)
    output.append(tokens, np.cumsum(lengths)[ends])


def _where(batch: Sequence[_Source]) -> str:
    (first, start), (last, stop) = batch[0], batch[-1]
    if first.path == last.path:
        return f"{first.path}: between positions {start.position} and {stop.position}"
    return f"{first.path} to {last.path}"


@lru_cache(maxsize=1)
def _load(path: str, key: str) -> Tokenizer:  # noqa: ARG001 - the key makes it another cache entry
    return tokenizers.load(path, trusted=True)
