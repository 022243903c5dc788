"""``lowtide.prepare``: text to a token corpus, in bounded memory, in parallel, and killed at any time."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from lowtide._io.publish import write_file
from lowtide._prepare import sources as sourcing
from lowtide._prepare import tokenizers, vocabulary
from lowtide._prepare.assembling import Assembler
from lowtide._prepare.encoding import TRAIN, VAL, Job, encode
from lowtide._prepare.executors import Executor, open_executor
from lowtide._prepare.plan import TABLES, plan
from lowtide._prepare.reading import ReadOptions
from lowtide._prepare.running import run
from lowtide._prepare.shards import DamagedError
from lowtide._prepare.summary import Progress, Summary
from lowtide._prepare.tasks import Record, Task, group
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._prepare.tokenizers.characters import meta_pkl
from lowtide._prepare.workfolder import Workfolder, sha256_of
from lowtide._sizes import parse_count, whole
from lowtide._tokens.formats import llmc, own
from lowtide.errors import ArgumentError

STDIN = "-"

UNIT = 8 * 2**20
"""Bytes of a source in a unit: few enough that all workers end at about the same time."""

SplitName = Literal["documents", "contiguous"]


def prepare(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: str = "byte",
    val_fraction: float = 0.0005,
    split: SplitName = "documents",
    seed: int = 0,
    text_field: str = "text",
    split_on: str | None = None,
    glob: str | None = None,
    eos: bool = True,
    layout: own.LayoutName = "shards",
    shard_tokens: int | str = "100M",
    meta_pkl: bool = False,
    errors: Literal["strict", "replace"] = "strict",
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    workers: int | None = None,
    dask: str | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Summary:
    """Turn text into a token corpus that ``lowtide.corpus`` opens.

    ``sources`` are text files, JSON lines (plain, ``.gz``, ``.zst``), Parquet files, folders of them
    (``glob`` chooses), ``-`` for standard input, or Hugging Face data sets. ``tokenizer`` is ``byte``,
    ``char``, ``bpe:VOCAB``, the path of a ``tokenizer.json``, or an encoding of tiktoken such as ``gpt2``.

    A document goes to the split ``val`` by a hash of ``seed`` and of where it lies, or, with
    ``split="contiguous"``, the last ``val_fraction`` of all tokens does.

    Units of work run in ``workers`` processes (default: one for each core), or on the cluster at the address
    ``dask``. The bytes that are written depend on neither. A run that was killed goes on when it is called
    again with the same arguments, and ends with the same bytes; until then nothing is seen in ``out``.

    >>> _ = (tmp / "sea.txt").write_text("low tide")
    >>> summary = lowtide.prepare(tmp / "sea.txt", tmp / "corpus", val_fraction=0)
    >>> summary.tokens, summary.documents
    (9, 1)
    >>> lowtide.corpus(tmp / "corpus")[:]
    array([108, 111, 119,  32, 116, 105, 100, 101, 256], dtype=uint16)
    """
    named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    settings = Settings(
        tokenizer=os.fspath(tokenizer),
        val_fraction=val_fraction,
        split=split,
        seed=whole("seed", seed),
        eos=bool(eos),
        layout=layout,
        shard_tokens=None if layout == "nanogpt" else parse_count(shard_tokens),
        meta_pkl=bool(meta_pkl),
        on_error=on_error,
        text_field=text_field,
        split_on=split_on,
        errors=errors,
    )
    if dask is not None and workers is not None:
        raise ArgumentError("workers and dask were both given; with dask the cluster has the workers")
    places = _cores() if workers is None else whole("workers", workers, least=1)
    work = Workfolder(os.fspath(out))
    try:
        found = _find([os.fspath(name) for name in named], glob, work)
        made = _Preparation(work, found, settings, places, dask, progress)
        return made.run(overwrite=overwrite)
    finally:
        work.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What decides the bytes, beside the sources."""

    tokenizer: str
    val_fraction: float
    split: SplitName
    seed: int
    eos: bool
    layout: own.LayoutName
    shard_tokens: int | None
    meta_pkl: bool
    on_error: Literal["raise", "skip"]
    text_field: str
    split_on: str | None
    errors: Literal["strict", "replace"]

    def __post_init__(self) -> None:
        _one_of("split", self.split, ("documents", "contiguous"))
        _one_of("layout", self.layout, ("shards", "nanogpt", "llmc"))
        _one_of("on_error", self.on_error, ("raise", "skip"))
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

    def options(self) -> ReadOptions:
        return ReadOptions(
            text_field=self.text_field, split_on=self.split_on, errors=self.errors, unit_size=UNIT
        )


class _Preparation:
    """One call of ``prepare``, after its arguments were looked at."""

    def __init__(
        self,
        work: Workfolder,
        sources: Sequence[sourcing.Source],
        settings: Settings,
        workers: int,
        dask: str | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._work = work
        self._sources = sources
        self._settings = settings
        self._options = settings.options()
        self._workers = workers
        self._dask = dask
        self._progress = progress or (lambda told: None)
        self._isolated = _isolated(sources)
        units = plan(sources, self._options, isolated=self._isolated)
        self._tasks = group(units, [source.size for source in sources])
        self._total = sum(task.weight for task in self._tasks)
        self._executor: Executor | None = None

    def run(self, *, overwrite: bool) -> Summary:
        self._work.begin(self._plan(), overwrite=overwrite)
        try:
            tokenizer = self._tokenizer()
            assembler = self._encode(tokenizer)
        finally:
            if self._executor is not None:
                self._executor.close()
        return self._publish(tokenizer, assembler)

    def _plan(self) -> dict[str, Any]:
        """Everything that decides the bytes, as JSON."""
        told = dataclasses.asdict(self._settings)
        for file in (self._settings.tokenizer, os.path.join(self._settings.tokenizer, "tokenizer.json")):
            if os.path.isfile(file):
                told["tokenizer_sha256"] = sha256_of(file)
        return {
            "version": 2,
            "settings": told,
            "unit": self._options.unit_size,
            "sources": [_identity(source) for source in self._sources],
        }

    def _pool(self) -> Executor:
        """The executor, begun when it is first needed: no more processes than there are tasks."""
        if self._executor is None:
            workers = min(self._workers, len(self._tasks))
            self._executor = open_executor(workers, self._dask, isolated=self._isolated)
        return self._executor

    def _tokenizer(self) -> Tokenizer:
        """Made once; later runs of the same plan find its file."""
        if not self._work.has_tokenizer():
            done = 0

            def tick(weight: int) -> None:
                nonlocal done
                done += weight
                self._progress(Progress("alphabet", done, self._total, 0, 0, 0))

            made = vocabulary.make(
                self._settings.tokenizer,
                self._tasks,
                self._options,
                self._pool,
                skip=self._settings.on_error == "skip",
                tick=tick,
            )
            self._work.write_tokenizer(made.to_json().encode())
        return tokenizers.load(self._work.tokenizer, name=self._settings.tokenizer, trusted=True)

    def _encode(self, tokenizer: Tokenizer) -> Assembler:
        """Encode what is left, and put it together as it comes."""
        settings = self._settings
        by_document = settings.split == "documents"
        job = Job(
            folder=self._work.tasks,
            tokenizer=self._work.tokenizer,
            key=self._work.key,
            eos=tokenizer.eos if settings.eos else None,
            dtype=tokenizers.narrow_dtype_for(tokenizer.vocab_size).str,
            options=self._options,
            val_fraction=settings.val_fraction if by_document else 0.0,
            seed=settings.seed,
            skip=settings.on_error == "skip",
        )
        assemble = partial(
            Assembler,
            self._work,
            narrow=job.dtype,
            dtype=tokenizers.dtype_for(tokenizer.vocab_size).str,
            layout=settings.layout,
            shard_tokens=settings.shard_tokens,
        )
        assembler: Assembler | None = None
        if (state := self._work.read_state()) is not None:
            try:
                assembler = assemble(state=state)
            except DamagedError as error:
                self._work.forget_state(str(error))
        # Where the stream is cut is known when all of it is there, so nothing is put together before.
        if assembler is None and by_document:
            assembler = assemble()
        try:
            consumed = assembler.consumed if assembler else 0
            records = self._work.records(consumed, len(self._tasks))
            left = [task for task in self._tasks[consumed:] if task.index not in records]
            counts = _Counts(assembler, records, self._tasks, left, self._progress)
            counts.tick()
            for task, record in (
                run(left, partial(encode, job=job), self._pool(), counts.tick) if left else ()
            ):
                records[task.index] = record
                counts.add(task, record)
                if assembler is not None:
                    _consume(assembler, records)
            counts.tick()
            if assembler is None:
                total = sum(record.tokens[TRAIN] for record in records.values())
                assembler = assemble(train_tokens=int(total * (1 - settings.val_fraction)))
            _consume(assembler, records)
            assembler.finish()
        finally:
            if assembler is not None:
                assembler.close()
        return assembler

    def _publish(self, tokenizer: Tokenizer, assembler: Assembler) -> Summary:
        settings = self._settings
        for source in self._sources:
            source.check()
        train, val = assembler.streams[TRAIN], assembler.streams[VAL]
        notes = self._notes(train.tokens, val.tokens, assembler.skipped)
        file = tokenizer.to_json().encode()
        write_file(os.path.join(self._work.shards, "tokenizer.json"), file)
        if settings.meta_pkl:
            write_file(os.path.join(self._work.shards, "meta.pkl"), meta_pkl(tokenizer))
        told = dataclasses.asdict(settings)
        del told["tokenizer"], told["layout"]
        manifest = own.Manifest(
            dtype=tokenizers.dtype_for(tokenizer.vocab_size).name,
            splits={stream.split: stream.shards for stream in (train, val) if stream.shards},
            layout=settings.layout,
            vocab_size=tokenizer.vocab_size,
            eos=tokenizer.eos if settings.eos else None,
            tokenizer=own.Tokenizer(tokenizer.name, hashlib.sha256(file).hexdigest(), "tokenizer.json"),
            # A name may have bytes that are not UTF-8, which JSON cannot hold.
            sources=[
                {"name": source.name.encode("utf8", "backslashreplace").decode(), "bytes": source.size}
                for source in self._sources
            ],
            settings={**told, "skipped": assembler.skipped},
        )
        self._work.publish(manifest)
        return Summary(
            folder=self._work.out,
            manifest=manifest,
            tokens=train.tokens + val.tokens,
            documents=train.documents + val.documents,
            lengths=(train.lengths + val.lengths).tolist(),
            skipped=assembler.skipped,
            complaints=assembler.complaints,
            notes=notes,
        )

    def _notes(self, train: int, val: int, skipped: int) -> list[str]:
        fraction = self._settings.val_fraction
        notes = self._work.notes()
        if not train:
            self._work.discard()
            raise ArgumentError(
                f"{self._sources[0].path}: no token is left for the split 'train': the sources hold {val} "
                f"tokens ({skipped} documents were skipped), and val_fraction is {fraction}; take a smaller "
                "one, another seed, or more text"
            )
        if fraction and not val:
            notes.append("no validation split: no document fell to it; take a larger val_fraction")
        return notes


class _Counts:
    """How far the run is, told at every tick."""

    def __init__(
        self,
        assembler: Assembler | None,
        records: dict[int, Record],
        tasks: Sequence[Task],
        left: Sequence[Task],
        progress: Callable[[Progress], object],
    ) -> None:
        self._total = sum(task.weight for task in tasks)
        self._done = self._earlier = self._total - sum(task.weight for task in left)
        self._documents = self._tokens = 0
        self._progress = progress
        for stream in assembler.streams.values() if assembler else ():
            self._documents += stream.documents
            self._tokens += stream.tokens
        for record in records.values():
            self._count(record)

    def add(self, task: Task, record: Record) -> None:
        self._done += task.weight
        self._count(record)

    def tick(self) -> None:
        self._progress(
            Progress("tokens", self._done, self._total, self._earlier, self._documents, self._tokens)
        )

    def _count(self, record: Record) -> None:
        self._documents += sum(record.documents.values())
        self._tokens += sum(record.tokens.values())


def _consume(assembler: Assembler, records: dict[int, Record]) -> None:
    while assembler.consumed in records:
        assembler.consume(records.pop(assembler.consumed))


def _isolated(sources: Sequence[sourcing.Source]) -> bool:
    """Whether even a single worker must be another process: what reads tables may crash."""
    return any(source.kind in TABLES for source in sources)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find(named: Sequence[str], glob: str | None, work: Workfolder) -> list[sourcing.Source]:
    names = [sourcing.spool(sys.stdin.buffer, work.path) if name == STDIN else name for name in named]
    found = sourcing.find(names, glob=glob)
    spooled = os.path.join(work.path, "stdin")
    return [dataclasses.replace(one, name=STDIN) if one.path == spooled else one for one in found]


def _identity(source: sourcing.Source) -> dict[str, Any]:
    """What tells whether a source is the same as in an earlier run."""
    told = {"path": source.path, "kind": source.kind, "size": source.size, "modified": source.modified}
    if source.name == STDIN:  # written anew by each run
        told["modified"] = sha256_of(source.path)
    return told


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ArgumentError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
