"""``lowtide.prepare``: text to a token corpus, in bounded memory, in parallel, and resumable after a kill."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Literal

from lowtide._io import store
from lowtide._io.system import cores
from lowtide._prepare import published
from lowtide._prepare import sources as files_of
from lowtide._prepare.inputs.kind import File
from lowtide._prepare.run import Run
from lowtide._prepare.settings import Holdout, OnError, Settings, check_choice
from lowtide._prepare.sources import Sources
from lowtide._prepare.summary import Progress, Summary
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._prepare.tokenizers.ids import Function, FunctionTokenizer, IdsTokenizer, adopt, code_of
from lowtide._prepare.tokenizers.kind import Texts
from lowtide._prepare.workdir import Workdir
from lowtide._sizes import parse_count, whole
from lowtide._tokens.formats import own
from lowtide.errors import ArgumentError


def prepare(
    sources: Sources,
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer | Function | None = None,
    vocab_size: int | None = None,
    val: Sources | None = None,
    val_fraction: float | None = None,
    holdout: Holdout = "auto",
    seed: int = 0,
    text_field: str = "text",
    split_on: str | None = None,
    glob: str | None = None,
    eos: bool | int = True,
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
        data sets (a folder of ``save_to_disk``, or ``hf:NAME``), or ``-`` for standard input. Also any
        iterable of documents, such as a ``datasets.Dataset`` or a generator: texts, mappings with
        ``text_field``, or lists of token ids. They are written to a file in ``out`` first.
    out
        The folder to write, or an address such as ``s3://bucket/corpus``. There the corpus appears when it is
        complete; until then it is in ``work``.
    tokenizer
        ``byte`` (the default), ``char``, ``bpe:VOCAB`` (trained on a sample of the sources), the path of a
        ``tokenizer.json``, an encoding of tiktoken such as ``gpt2``, or ``ids:VOCAB`` for sources that
        contain token ids and no text. Also a tokenizer object of Hugging Face or tiktoken, or a function from
        a text to its ids. A function that other processes can import runs in the workers, any other one in
        this process.
    vocab_size
        The number of ids, if the tokenizer is a function.
    val
        Sources of the split ``val``, instead of a fraction of ``sources``.
    val_fraction
        The fraction of the data that goes to the split ``val``, from 0 to below 1. By default 4 MiB of the
        sources, but at least 0.0005 and at most 0.1 of them.
    holdout
        What goes to ``val``: ``documents`` that a hash of ``seed`` and their position selects, or the
        ``contiguous`` end of all tokens. ``auto`` is contiguous for up to 100 text files of one
        document each, and documents for all other sources.
    seed
        Selects the documents for ``val``.
    text_field
        The field of JSON lines, or the column of tables, that contains the text, or lists of token ids.
        If there is none called ``text``, ``input_ids`` is read.
    split_on
        The separator between two documents of a text file; without it a file is one document. It is replaced
        by the end-of-text token, or stays at the end of the document if there is none.
    glob
        Which files of folders to read, such as ``*.txt``; a pattern with a slash is matched with the path.
    eos
        Whether to end each document with the end-of-text token of the tokenizer; or that token, if the
        tokenizer is a function or ``ids:VOCAB``.
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
    if val is not None and val_fraction:
        raise ArgumentError("val and val_fraction cannot be combined; pass the sources of val, or a fraction")
    given = _given(tokenizer, vocab_size, eos)
    name = "byte" if tokenizer is None else given.name if given else os.fspath(tokenizer)  # type: ignore[arg-type]
    settings = Settings(
        tokenizer=name,
        val_fraction=val_fraction,
        holdout=holdout,
        seed=whole("seed", seed),
        eos=type(eos) is int or bool(eos),
        layout=layout,
        shard_tokens=None if layout == "nanogpt" else parse_count(shard_tokens),
        meta_pkl=bool(meta_pkl),
        on_error=on_error,
        text_field=text_field,
        split_on=split_on,
        code=_digest(given) if given else "",
    )
    if dask is not None and workers is not None:
        raise ArgumentError("workers and dask cannot be combined; a Dask cluster has its own workers")
    if dask is not None and not isinstance(dask, str):
        raise ArgumentError(
            f"dask must be the address of a cluster, got {dask!r}; pass that of a client, as in "
            "dask=client.scheduler.address"
        )
    processes = cores() if workers is None else whole("workers", workers, least=1)

    def prepared(folder: str, uploads: published.Uploads | None = None) -> Summary:
        with closing(Workdir(folder, uploads)) as workdir:
            find = partial(files_of.find, folder=workdir.path, field=text_field, glob=glob)
            files, chosen = find(sources, name="train.jsonl"), settings
            if val is not None:
                chosen = dataclasses.replace(settings, val_files=len(files))
                files += _others(files, find(val, name="val.jsonl"))
            report = progress or (lambda _: None)
            run = Run(workdir, files, chosen, processes, dask, report, given, tokenizer is not None)
            return run.run(overwrite=overwrite)

    if store.is_address(out):
        address = store.absolute(out)
        local = published.work_folder(address) if work is None else os.fspath(work)
        return published.publish(address, local, overwrite, partial(prepared, local))
    if work is not None:
        raise ArgumentError(f"work is for an address, got out={os.fspath(out)!r}; leave it out")
    return prepared(os.fspath(out))


def _given(tokenizer: object, vocab_size: int | None, eos: bool | int) -> Tokenizer | None:
    """The tokenizer, if it is an object; or ``ids:VOCAB`` with an end of text."""
    end = eos if type(eos) is int else None
    if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike):
        return adopt(tokenizer, vocab_size, end)
    if vocab_size is not None:
        raise ArgumentError(f"vocab_size is for a function as tokenizer, got {tokenizer!r}; leave it out")
    if end is None:
        return None
    if not isinstance(tokenizer, str) or not IdsTokenizer.owns(tokenizer):
        raise ArgumentError(f"eos must be true or false for the tokenizer {tokenizer!r}, got the id {eos}")
    ids = IdsTokenizer.create(tokenizer, Texts([]))
    return IdsTokenizer(ids.name, ids.vocab_size, end)


def _digest(tokenizer: Tokenizer) -> str:
    if isinstance(tokenizer, FunctionTokenizer):
        return code_of(tokenizer.function)
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def _others(files: list[File], val: list[File]) -> list[File]:
    """The files of validation data, none of which may be among the others."""
    if twice := {file.path for file in files}.intersection(file.path for file in val):
        raise ArgumentError(f"{min(twice)}: is among the sources and in val; pass it once")
    return val


def _deprecate(old: str, new: str) -> None:
    message = f"prepare({old}=) is deprecated and will be removed in the next version; use {new}="
    warnings.warn(message, DeprecationWarning, stacklevel=3)
