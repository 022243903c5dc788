"""``lowtide.prepare``: text to a token corpus, in bounded memory, in parallel, and resumable after a kill."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

from lowtide._io import store
from lowtide._prepare import inputs, published
from lowtide._prepare.inputs.kind import File
from lowtide._prepare.run import STDIN, Holdout, OnError, Run, Settings, check_choice
from lowtide._prepare.summary import Progress, Summary
from lowtide._prepare.workdir import Workdir
from lowtide._sizes import parse_count, whole
from lowtide._tokens.formats import own
from lowtide.errors import ArgumentError


def prepare(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: str = "byte",
    val_fraction: float | None = None,
    holdout: Holdout = "auto",
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
    work: str | os.PathLike[str] | None = None,
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
        The folder to write, or an address such as ``s3://bucket/corpus``. There the corpus appears when it is
        complete; until then it is in ``work``.
    tokenizer
        ``byte``, ``char``, ``bpe:VOCAB`` (trained on a sample of the sources), the path of a
        ``tokenizer.json``, or an encoding of tiktoken such as ``gpt2``.
    val_fraction
        The fraction of the data that goes to the split ``val``, from 0 to below 1. By default that of 4 MiB
        in the sources, from 0.0005 to 0.1.
    holdout
        What goes to ``val``: ``documents`` that a hash of ``seed`` and their position selects, or the
        ``contiguous`` end of all tokens. ``auto`` is contiguous for up to 100 text files of one
        document each, and documents for all other sources.
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
    work
        For an address: the local folder to prepare the corpus in, removed at the end. By default it is in
        ``~/.cache/lowtide``. With ``dask`` all workers must see it.
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
        check_choice("errors", errors, ("strict", "replace"))
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

    def prepared(folder: str) -> Summary:
        with closing(Workdir(folder)) as workdir:
            files = _find([os.fspath(name) for name in names], glob, workdir)
            run = Run(workdir, files, settings, processes, dask, progress or (lambda _: None))
            return run.run(overwrite=overwrite)

    if store.is_address(out):
        address = store.absolute(out)
        local = published.work_folder(address) if work is None else os.fspath(work)
        return published.publish(address, local, overwrite, lambda: prepared(local))
    if work is not None:
        raise ArgumentError(f"work is for an address, got out={os.fspath(out)!r}; leave it out")
    return prepared(os.fspath(out))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find(names: Sequence[str], glob: str | None, work: Workdir) -> list[File]:
    paths = [inputs.spool(sys.stdin.buffer, work.path) if name == STDIN else name for name in names]
    spooled = os.path.join(work.path, "stdin")
    return [
        dataclasses.replace(file, name=STDIN) if file.path == spooled else file
        for file in inputs.find(paths, glob=glob)
    ]


def _deprecate(old: str, new: str) -> None:
    message = f"prepare({old}=) is deprecated and will be removed in the next version; use {new}="
    warnings.warn(message, DeprecationWarning, stacklevel=3)
