"""``lowtide.prepare``: text to a token corpus, in bounded memory, in parallel, and resumable after a kill."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

from lowtide._io.publish import write_file
from lowtide._io.store import is_file
from lowtide._prepare import inputs, tokenizers
from lowtide._prepare.executors import Executor, open_executor
from lowtide._prepare.inputs.kind import File, ReadOptions
from lowtide._prepare.jobs import InputTexts, Record, group, run
from lowtide._prepare.merge import Merger
from lowtide._prepare.shard_writer import DamagedError
from lowtide._prepare.summary import Progress, ProgressCounter, Summary
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._prepare.tokenizers.char import meta_pkl as meta_pkl_of
from lowtide._prepare.workdir import Workdir, sha256_of
from lowtide._prepare.worker import TRAIN, VAL, Job, encode
from lowtide._sizes import parse_count, whole
from lowtide._tokens.formats import llmc, own
from lowtide.errors import ArgumentError

STDIN = "-"

UNIT = 8 * 2**20
"""Bytes of an input in a unit: few enough that all workers finish at about the same time."""

Holdout = Literal["documents", "contiguous"]
OnError = Literal["raise", "skip", "replace", "replace-or-skip"]


def prepare(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: str = "byte",
    val_fraction: float = 0.0005,
    holdout: Holdout = "documents",
    seed: int = 0,
    text_field: str = "text",
    split_on: str | None = None,
    glob: str | None = None,
    eos: bool = True,
    layout: own.LayoutName = "shards",
    shard_tokens: int | str = "100M",
    meta_pkl: bool = False,
    on_error: OnError = "raise",
    overwrite: bool = False,
    workers: int | None = None,
    dask: str | None = None,
    progress: Callable[[Progress], object] | None = None,
    split: Holdout | None = None,
    errors: Literal["strict", "replace"] | None = None,
) -> Summary:
    """Turn text into a token corpus that ``lowtide.corpus`` opens.

    The bytes of the corpus depend neither on ``workers`` nor on ``dask``. A run that was killed is resumed by
    a call with the same arguments, and ends with the same bytes; until it is complete, ``out`` contains no
    corpus.

    Parameters
    ----------
    sources
        Text files, JSON lines (both also ``.gz`` and ``.zst``), Parquet files, folders of them, Hugging Face
        data sets (a folder of ``save_to_disk``, or ``hf:NAME``), or ``-`` for standard input.
    out
        The folder to write.
    tokenizer
        ``byte``, ``char``, ``bpe:VOCAB`` (trained on a sample of the sources), the path of a
        ``tokenizer.json``, or an encoding of tiktoken such as ``gpt2``.
    val_fraction
        The fraction of the data that goes to the split ``val``, from 0 to below 1.
    holdout
        What goes to ``val``: ``documents`` that a hash of ``seed`` and their position selects, or the
        ``contiguous`` end of all tokens.
    seed
        Selects the documents for ``val``.
    text_field
        The field of JSON lines, or the column of tables, that contains the text.
    split_on
        The separator between two documents of a text file; without it a file is one document.
    glob
        Which files of folders to read, such as ``*.txt``; a pattern with a slash is matched with the path.
    eos
        Whether to end each document with the end-of-text token of the tokenizer.
    layout
        ``shards`` (raw tokens), ``nanogpt`` (``train.bin`` and ``val.bin``), or ``llmc`` (shards with the
        header of llm.c).
    shard_tokens
        Tokens per shard, as a number or with k, M or G.
    meta_pkl
        Whether to write nanoGPT's ``meta.pkl`` as well; for the tokenizer ``char``.
    on_error
        What to do with documents that cannot be read: ``raise``; ``skip`` and count them; ``replace`` bytes
        that are not UTF-8 by U+FFFD and raise for other errors; or ``replace-or-skip``.
    overwrite
        Whether to replace a corpus, or unfinished work with other settings, in ``out``.
    workers
        The number of processes; one per core by default.
    dask
        The address of a Dask cluster to run on instead, such as ``tcp://host:8786``.
    progress
        Called with a ``Progress`` several times per second.
    split, errors
        Deprecated; use ``holdout`` and ``on_error``.

    Returns
    -------
    Summary
        What was written; ``str`` of it is a report.

    Examples
    --------
    >>> _ = (tmp / "sea.txt").write_text("low tide")
    >>> summary = lowtide.prepare(tmp / "sea.txt", tmp / "corpus", val_fraction=0)
    >>> summary.tokens, summary.documents
    (9, 1)
    >>> lowtide.corpus(tmp / "corpus")[:]
    array([108, 111, 119,  32, 116, 105, 100, 101, 256], dtype=uint16)
    """
    if split is not None:
        _deprecate("split", "holdout")
        holdout = split
    if errors is not None:
        _deprecate("errors", "on_error")
        _check_choice("errors", errors, ("strict", "replace"))
        if errors == "replace":
            on_error = "replace-or-skip" if on_error in ("skip", "replace-or-skip") else "replace"
    settings = Settings(
        tokenizer=os.fspath(tokenizer),
        val_fraction=val_fraction,
        holdout=holdout,
        seed=whole("seed", seed),
        eos=bool(eos),
        layout=layout,
        shard_tokens=None if layout == "nanogpt" else parse_count(shard_tokens),
        meta_pkl=bool(meta_pkl),
        on_error=on_error,
        text_field=text_field,
        split_on=split_on,
    )
    if dask is not None and workers is not None:
        raise ArgumentError("workers and dask cannot be combined; a Dask cluster has its own workers")
    processes = _cores() if workers is None else whole("workers", workers, least=1)
    names = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    work = Workdir(os.fspath(out))
    try:
        files = _find([os.fspath(name) for name in names], glob, work)
        return _Run(work, files, settings, processes, dask, progress).run(overwrite=overwrite)
    finally:
        work.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What determines the bytes, together with the inputs."""

    tokenizer: str
    val_fraction: float
    holdout: Holdout
    seed: int
    eos: bool
    layout: own.LayoutName
    shard_tokens: int | None
    meta_pkl: bool
    on_error: OnError
    text_field: str
    split_on: str | None

    def __post_init__(self) -> None:
        _check_choice("holdout", self.holdout, get_args(Holdout))
        _check_choice("layout", self.layout, get_args(own.LayoutName))
        _check_choice("on_error", self.on_error, get_args(OnError))
        if not 0 <= self.val_fraction < 1 or math.isnan(self.val_fraction):
            raise ArgumentError(f"val_fraction must be from 0 to below 1, got {self.val_fraction!r}")
        if self.meta_pkl and self.tokenizer != "char":
            raise ArgumentError(
                "meta_pkl writes nanoGPT's table of characters, which only the tokenizer 'char' has, got "
                f"{self.tokenizer!r}"
            )
        most = llmc.MAX_TOKENS if self.layout == "llmc" else 2**50
        if self.shard_tokens is not None and not 1 <= self.shard_tokens <= most:
            raise ArgumentError(f"shard_tokens must be from 1 to {most}, got {self.shard_tokens}")

    @property
    def skips(self) -> bool:
        return self.on_error.endswith("skip")

    def options(self) -> ReadOptions:
        replace = self.on_error.startswith("replace")
        return ReadOptions(self.text_field, self.split_on, replace=replace, unit_size=UNIT)


class _Run:
    """One call of ``prepare``, after its arguments were validated."""

    def __init__(
        self,
        work: Workdir,
        files: Sequence[File],
        settings: Settings,
        workers: int,
        dask: str | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._work = work
        self._files = files
        self._settings = settings
        self._options = settings.options()
        self._workers = workers
        self._dask = dask
        self._progress = progress or (lambda progress: None)
        self._isolated = _isolated(files)
        units = inputs.plan(files, self._options, isolated=self._isolated)
        self._tasks = group(units, [file.size for file in files])
        self._total = sum(task.weight for task in self._tasks)
        self._executor: Executor | None = None

    def run(self, *, overwrite: bool) -> Summary:
        self._work.start(self._plan(), overwrite=overwrite)
        try:
            tokenizer = self._tokenizer()
            merger = self._encode(tokenizer)
        finally:
            if self._executor is not None:
                self._executor.close()
        return self._publish(tokenizer, merger)

    def _plan(self) -> dict[str, Any]:
        """Everything that determines the bytes, as JSON."""
        settings = dataclasses.asdict(self._settings)
        for path in (self._settings.tokenizer, os.path.join(self._settings.tokenizer, "tokenizer.json")):
            if is_file(path):
                settings["tokenizer_sha256"] = sha256_of(path)
        return {
            "version": 3,
            "settings": settings,
            "unit": self._options.unit_size,
            "sources": [_identity(file) for file in self._files],
        }

    def _pool(self) -> Executor:
        """The executor, started when it is first needed: at most as many processes as tasks."""
        if self._executor is None:
            workers = min(self._workers, len(self._tasks))
            self._executor = open_executor(workers, self._dask, isolated=self._isolated)
        return self._executor

    def _tokenizer(self) -> Tokenizer:
        """The tokenizer, created once; later runs of the same plan load its file."""
        if not self._work.has_tokenizer():
            counter = ProgressCounter(self._total, 0, self._progress)

            def tick(weight: int) -> None:
                counter.add(0, 0, weight)
                counter.tick("alphabet")

            texts = InputTexts(self._tasks, self._options, self._pool, skip=self._settings.skips, tick=tick)
            tokenizer = tokenizers.make(self._settings.tokenizer, texts)
            self._work.write_tokenizer(tokenizer.to_json().encode())
        return tokenizers.load(self._work.tokenizer, name=self._settings.tokenizer, trusted=True)

    def _encode(self, tokenizer: Tokenizer) -> Merger:
        """Encode the remaining tasks, and merge them as they complete."""
        settings = self._settings
        by_document = settings.holdout == "documents"
        job = Job(
            folder=self._work.tasks,
            tokenizer=self._work.tokenizer,
            key=self._work.key,
            eos=tokenizer.eos if settings.eos else None,
            dtype=tokenizers.narrow_dtype_for(tokenizer.vocab_size).str,
            options=self._options,
            val_fraction=settings.val_fraction if by_document else 0.0,
            seed=settings.seed,
            skip=settings.skips,
        )
        merge = partial(
            Merger,
            self._work,
            narrow=job.dtype,
            dtype=tokenizers.dtype_for(tokenizer.vocab_size).str,
            layout=settings.layout,
            shard_tokens=settings.shard_tokens,
        )
        merger: Merger | None = None
        if (state := self._work.read_state()) is not None:
            try:
                merger = merge(state=state)
            except DamagedError as error:
                self._work.forget_state(str(error))
        # Where a contiguous validation part starts is known when all tokens are there, not before.
        if merger is None and by_document:
            merger = merge()
        try:
            consumed = merger.consumed if merger else 0
            records = self._work.records(consumed, len(self._tasks))
            remaining = [task for task in self._tasks[consumed:] if task.index not in records]
            counter = self._counter(merger, records, sum(task.weight for task in remaining))
            counter.tick()
            for task, record in (
                run(remaining, partial(encode, job=job), self._pool(), counter.tick) if remaining else ()
            ):
                records[task.index] = record
                counter.add(sum(record.documents.values()), sum(record.tokens.values()), task.weight)
                if merger is not None:
                    _consume(merger, records)
            counter.tick()
            if merger is None:
                total = sum(record.tokens[TRAIN] for record in records.values())
                merger = merge(train_tokens=int(total * (1 - settings.val_fraction)))
            _consume(merger, records)
            merger.finish()
        finally:
            if merger is not None:
                merger.close()
        return merger

    def _counter(self, merger: Merger | None, records: dict[int, Record], remaining: int) -> ProgressCounter:
        """The progress of earlier runs."""
        counter = ProgressCounter(self._total, self._total - remaining, self._progress)
        for writer in merger.writers.values() if merger else ():
            counter.add(writer.documents, writer.tokens)
        for record in records.values():
            counter.add(sum(record.documents.values()), sum(record.tokens.values()))
        return counter

    def _publish(self, tokenizer: Tokenizer, merger: Merger) -> Summary:
        settings = self._settings
        for file in self._files:
            file.check()
        train, val = merger.writers[TRAIN], merger.writers[VAL]
        notes = self._notes(train.tokens, val.tokens, merger.skipped)
        data = tokenizer.to_json().encode()
        write_file(os.path.join(self._work.shards, "tokenizer.json"), data)
        if settings.meta_pkl:
            write_file(os.path.join(self._work.shards, "meta.pkl"), meta_pkl_of(tokenizer))
        recorded = {**dataclasses.asdict(settings), "skipped": merger.skipped}
        del recorded["tokenizer"], recorded["layout"]
        manifest = own.Manifest(
            dtype=tokenizers.dtype_for(tokenizer.vocab_size).name,
            splits={writer.split: writer.shards for writer in (train, val) if writer.shards},
            layout=settings.layout,
            vocab_size=tokenizer.vocab_size,
            eos=tokenizer.eos if settings.eos else None,
            tokenizer=own.Tokenizer(tokenizer.name, hashlib.sha256(data).hexdigest(), "tokenizer.json"),
            # A name may contain bytes that are not UTF-8, which JSON cannot represent.
            sources=[
                {"name": file.name.encode("utf8", "backslashreplace").decode(), "bytes": file.size}
                for file in self._files
            ],
            settings=recorded,
        )
        self._work.publish(manifest)
        return Summary(
            folder=self._work.out,
            manifest=manifest,
            tokens=train.tokens + val.tokens,
            documents=train.documents + val.documents,
            lengths=(train.lengths + val.lengths).tolist(),
            skipped=merger.skipped,
            complaints=merger.complaints,
            notes=notes,
        )

    def _notes(self, train: int, val: int, skipped: int) -> list[str]:
        fraction = self._settings.val_fraction
        notes = self._work.notes()
        if not train:
            self._work.discard()
            raise ArgumentError(
                f"{self._files[0].path}: the split 'train' would be empty ({val} tokens for 'val', {skipped} "
                f"documents skipped, val_fraction {fraction}); pass a smaller val_fraction, another seed, or "
                "more text"
            )
        if fraction and not val:
            notes.append("no validation split: no document was selected for it; pass a larger val_fraction")
        return notes


def _consume(merger: Merger, records: dict[int, Record]) -> None:
    while merger.consumed in records:
        merger.consume(records.pop(merger.consumed))


def _isolated(files: Sequence[File]) -> bool:
    """Whether even a single worker must be another process, since a library may crash."""
    return any(file.kind.unsafe for file in files)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find(names: Sequence[str], glob: str | None, work: Workdir) -> list[File]:
    paths = [inputs.spool(sys.stdin.buffer, work.path) if name == STDIN else name for name in names]
    spooled = os.path.join(work.path, "stdin")
    return [
        dataclasses.replace(file, name=STDIN) if file.path == spooled else file
        for file in inputs.find(paths, glob=glob)
    ]


def _identity(file: File) -> dict[str, Any]:
    """Determines whether an input is the same as in an earlier run."""
    # Standard input is a new file in each run.
    modified = sha256_of(file.path) if file.name == STDIN else file.modified
    return {"path": file.path, "kind": file.label, "size": file.size, "modified": modified}


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ArgumentError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def _deprecate(old: str, new: str) -> None:
    message = f"prepare({old}=) is deprecated and will be removed in the next version; use {new}="
    warnings.warn(message, DeprecationWarning, stacklevel=3)
