"""One run of ``prepare``: plan, tokenizer, encoding, merging, publishing."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from lowtide import errors
from lowtide._io.atomic import write_file
from lowtide._io.store import is_file
from lowtide._prepare import inputs, sealed, tokenizers
from lowtide._prepare.executors import Executor, open_executor
from lowtide._prepare.inputs.kind import File
from lowtide._prepare.jobs import SAMPLE, InputTexts, Record, group, run
from lowtide._prepare.merge import Merger
from lowtide._prepare.published import PLAN
from lowtide._prepare.settings import Settings
from lowtide._prepare.shard_writer import DamagedError
from lowtide._prepare.sources import SPOOLED
from lowtide._prepare.summary import Progress, ProgressCounter, Summary
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._prepare.tokenizers.char import meta_pkl
from lowtide._prepare.tokenizers.ids import Function, FunctionTokenizer, IdsTokenizer
from lowtide._prepare.workdir import Workdir, sha256_of
from lowtide._prepare.worker import TRAIN, VAL, Job, encode
from lowtide._tokens.formats import find, own
from lowtide.errors import ArgumentError

_SMALL = 4096  # tokens of a validation split whose loss says little


@dataclasses.dataclass
class Run:
    """One call of ``prepare``, after its arguments were validated."""

    work: Workdir
    files: Sequence[File]
    settings: Settings
    workers: int
    dask: str | None
    progress: Callable[[Progress], object]
    tokenizer: Tokenizer | None = None
    """The tokenizer, if it is an object and not a name."""
    chosen: bool = True
    """Whether the caller has chosen the tokenizer."""

    def __post_init__(self) -> None:
        self.settings = self.settings.resolved(self.files)
        self._fraction = self.settings.val_fraction or 0.0
        self._options = self.settings.options()
        self._isolated = _isolated(self.files)
        with closing(open_executor(1, None, isolated=self._isolated)) as executor:
            units = inputs.plan(self.files, self._options, executor)
        val = self.settings.val_files
        self._tasks = group(units, [file.size for file in self.files], val)
        self._train_tasks = sum(val is None or task.units[0].number < val for task in self._tasks)
        self._total = sum(task.weight for task in self._tasks)
        self._executor: Executor | None = None

    def run(self, *, overwrite: bool) -> Summary:
        plan = self._plan()
        self._digest = sealed.digest_of(plan)
        if not overwrite and (summary := self._finished()) is not None:
            return summary
        self.work.start(plan, overwrite=overwrite)
        try:
            tokenizer = self._tokenizer()
            merger = self._encode(tokenizer)
        finally:
            if self._executor is not None:
                self._executor.close()
        return self._publish(tokenizer, merger)

    def _finished(self) -> Summary | None:
        """The corpus that an earlier run of the same plan has published, if all of its files are there."""
        record = sealed.read(os.path.join(self.work.out, PLAN))
        if record is None or record.get("plan") != self._digest or self._function is not None:
            return None  # the ids of a function may depend on anything
        try:
            manifest = own.read(os.path.join(self.work.out, own.NAME))
            if self.work.uploads is not None:
                complete = self.work.check_files(dict(manifest.files)) is None
            else:
                for split in manifest.splits:
                    find(self.work.out, split=split)  # which checks the size of each file
                complete = all(is_file(os.path.join(self.work.out, name)) for name, _ in manifest.files)
        except errors.LowtideError:
            return None
        if not complete:
            return None
        self.work.discard()  # left by a run that was killed after it had published
        shards = [shard for split in manifest.splits.values() for shard in split]
        return Summary(
            folder=self.work.out,
            manifest=manifest,
            tokens=sum(shard.tokens for shard in shards),
            documents=sum(shard.documents or 0 for shard in shards),
            lengths=(),
            notes=["was prepared before, from the same sources with the same settings; nothing was written"],
        )

    def _plan(self) -> dict[str, Any]:
        """Everything that determines the bytes, as JSON."""
        settings = dataclasses.asdict(self.settings)
        for path in (self.settings.tokenizer, os.path.join(self.settings.tokenizer, "tokenizer.json")):
            if (digest := sha256_of(path)) is not None:
                settings["tokenizer_sha256"] = digest
        return {
            "version": 5,
            "settings": settings,
            "unit": self._options.unit_size,
            "sources": [_identity(file) for file in self.files],
        }

    def _pool(self) -> Executor:
        """The executor, started when it is first needed: at most as many processes as tasks."""
        if self._executor is None:
            workers, isolated = min(self.workers, len(self._tasks)), self._isolated
            if self._function is not None and not _importable(self._function):
                if self.dask is not None:
                    raise ArgumentError(
                        f"the workers of a Dask cluster cannot import the tokenizer {self._function!r}; "
                        "define it in a module that they have"
                    )
                workers, isolated = 1, False
            self._executor = open_executor(workers, self.dask, isolated=isolated)
        return self._executor

    @property
    def _function(self) -> Function | None:
        return self.tokenizer.function if isinstance(self.tokenizer, FunctionTokenizer) else None

    def _tokenizer(self) -> Tokenizer:
        """The tokenizer, created once; later runs of the same plan load its file."""
        name, given = self.settings.tokenizer, self.tokenizer
        if not self.work.has_tokenizer():
            tokenizer = given or tokenizers.make(name, self._texts())
            self.work.write_tokenizer(tokenizer.to_json().encode())
        loaded = tokenizers.load(
            self.work.tokenizer, name=name, eos=given.eos if given else None, trusted=True
        )
        keep = loaded.eos is None or not self.settings.eos
        self._options = dataclasses.replace(self._options, keep_separators=keep)
        return loaded

    def _texts(self) -> InputTexts:
        """The text that a tokenizer is created from, and its progress: all of it, or a sample."""
        sampled = self.settings.tokenizer.startswith("bpe:")
        total = min(SAMPLE, sum(task.weight for task in self._tasks[: self._train_tasks]))
        counter = ProgressCounter(total if sampled else self._total, 0, self.progress)

        def tick(weight: int) -> None:
            counter.add(0, 0, weight)
            counter.tick(("sample" if weight else "training") if sampled else "alphabet")

        options, skip = self._options, self.settings.skips
        return InputTexts(self._tasks, options, self._pool, skip=skip, tick=tick, sampled=self._train_tasks)

    def _encode(self, tokenizer: Tokenizer) -> Merger:
        """Encode the remaining tasks, and merge them as they complete."""
        settings = self.settings
        by_document = settings.holdout == "documents"
        job = Job(
            folder=self.work.tasks,
            tokenizer=self.work.tokenizer,
            key=self.work.key,
            eos=tokenizer.eos if settings.eos else None,
            dtype=tokenizers.narrow_dtype_for(tokenizer.vocab_size).str,
            options=self._options,
            settings=settings,
            function=self._function,
            takes_ids=self.chosen,
        )
        merge = partial(
            Merger,
            self.work,
            narrow=job.dtype,
            dtype=tokenizers.dtype_for(tokenizer.vocab_size).str,
            layout=settings.layout,
            shard_tokens=settings.shard_tokens,
        )
        merger: Merger | None = None
        if (state := self.work.read_state()) is not None:
            try:
                merger = merge(state=state)
            except DamagedError as error:
                self.work.forget_state(str(error))
        # The start of a contiguous validation part is known only when all tokens have been counted.
        if merger is None and by_document:
            merger = merge()
        try:
            consumed = merger.consumed if merger else 0
            records = self.work.records(consumed, len(self._tasks))
            remaining = [task for task in self._tasks[consumed:] if task.index not in records]
            left = sum(task.weight for task in remaining)
            counter = ProgressCounter(self._total, self._total - left, self.progress)
            for writer in merger.writers.values() if merger else ():
                counter.add(writer.documents, writer.tokens)
            for record in records.values():
                counter.add(sum(record.documents.values()), sum(record.tokens.values()))
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
                merger = merge(train_tokens=int(total * (1 - self._fraction)))
            _consume(merger, records)
            merger.finish()
        finally:
            if merger is not None:
                merger.close()
        return merger

    def _publish(self, tokenizer: Tokenizer, merger: Merger) -> Summary:
        settings = self.settings
        for file in self.files:
            file.check()
        train, val = merger.writers[TRAIN], merger.writers[VAL]
        notes = self._notes(train.tokens, val.tokens, merger.skipped)
        notes += self._vocabulary_notes(tokenizer)
        if isinstance(tokenizer, IdsTokenizer):
            entry = own.Tokenizer(tokenizer.name)  # nothing else is known of it
        else:
            entry = tokenizers.save(tokenizer, self.work.shards)
        if settings.meta_pkl:
            write_file(os.path.join(self.work.shards, "meta.pkl"), meta_pkl(tokenizer))
        recorded = {**dataclasses.asdict(settings), "skipped": merger.skipped}
        del recorded["tokenizer"], recorded["layout"], recorded["code"], recorded["val_files"]
        manifest = own.Manifest(
            dtype=tokenizers.dtype_for(tokenizer.vocab_size).name,
            splits={writer.split: writer.shards for writer in (train, val) if writer.shards},
            layout=settings.layout,
            vocab_size=tokenizer.vocab_size,
            eos=tokenizer.eos if settings.eos else None,
            tokenizer=entry,
            # A name may contain bytes that are not UTF-8, which JSON cannot represent.
            sources=[
                {"name": file.name.encode("utf8", "backslashreplace").decode(), "bytes": file.size}
                for file in self.files
            ],
            settings=recorded,
        )
        sealed.write(os.path.join(self.work.shards, PLAN), {"plan": self._digest})
        self.work.publish(manifest)
        return Summary(
            folder=self.work.out,
            manifest=manifest,
            tokens=train.tokens + val.tokens,
            documents=train.documents + val.documents,
            lengths=(train.lengths + val.lengths).tolist(),
            skipped=merger.skipped,
            complaints=merger.complaints,
            notes=notes,
        )

    def _vocabulary_notes(self, tokenizer: Tokenizer) -> list[str]:
        size = self.settings.tokenizer.removeprefix("bpe:")
        if not size.isdecimal() or tokenizer.vocab_size >= int(size):
            return []
        return [
            f"the vocabulary has {tokenizer.vocab_size:,} ids instead of {int(size):,}: the text has no more "
            "pairs to merge"
        ]

    def _notes(self, train: int, val: int, skipped: int) -> list[str]:
        fraction = self._fraction
        notes = self.work.notes()
        if not train:
            self.work.discard()
            raise ArgumentError(
                f"{self.files[0].path}: the split 'train' would be empty ({val} tokens for 'val', {skipped} "
                f"documents skipped, val_fraction {fraction}); pass a smaller val_fraction, or "
                "holdout='contiguous' to cut by tokens"
            )
        if self.settings.val_files is not None and val < _SMALL:
            notes.append(f"val is small: a loss on {val:,} tokens says little; pass more sources as val")
        elif fraction and not val:
            notes.append(
                "no validation split: no document was selected for it; pass a larger val_fraction, or "
                "holdout='contiguous' to take the end of the tokens"
            )
        elif fraction and val < _SMALL:
            notes.append(f"val is small: a loss on {val:,} tokens says little; pass a larger val_fraction")
        elif fraction and not 0.5 < val / (train + val) / fraction < 2:
            notes.append(
                f"val has {100 * val / (train + val):.2g} % of the tokens: documents are few, or of very "
                "different lengths; pass holdout='contiguous' for an exact fraction"
            )
        return notes


def _consume(merger: Merger, records: dict[int, Record]) -> None:
    while merger.consumed in records:
        merger.consume(records.pop(merger.consumed))


def _isolated(files: Sequence[File]) -> bool:
    """Whether even a single worker must be a separate process, since a library may crash."""
    return any(file.kind.unsafe for file in files)


def _importable(function: Function) -> bool:
    """Whether other processes can import a function."""
    try:
        return b"__main__" not in pickle.dumps(function)
    except Exception:  # whatever the object raises
        return False


def _identity(file: File) -> dict[str, Any]:
    """What decides whether an input is the same as in an earlier run."""
    # Standard input and the documents of an iterable are a new file in each run.
    modified = sha256_of(file.path) if file.name in SPOOLED else file.modified
    return {"path": file.path, "kind": file.label, "size": file.size, "modified": modified}
