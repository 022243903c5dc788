"""Descriptions of paths: an array file with its arrays, or a corpus with its tokens."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide._arrays.formats import inspect, members
from lowtide._arrays.formats.layout import Member
from lowtide._io import pagecache, store
from lowtide._tokens.corpus import Corpus, corpus
from lowtide._tokens.formats import find
from lowtide.errors import FormatError, LowtideError

_SUFFIXES = (".npy", ".npz", ".safetensors", ".h5", ".hdf5")
_EXACT = 2**18  # tokens up to which the largest id is that of all
_REPEATED = 0.45  # of the tokens: wider ones that are read as narrow ones have a zero in every second place
_SMALL = 4096  # tokens of a validation split whose loss says little


@dataclass(frozen=True)
class ArrayFile:
    """A file of arrays."""

    path: str
    bytes: int
    bytes_in_page_cache: int | None
    arrays: list[Member]

    @property
    def damage(self) -> list[FormatError]:
        """The errors of arrays that are damaged."""
        return [member.error for member in self.arrays if isinstance(member.error, FormatError)]

    @property
    def is_torch(self) -> bool:
        """Whether a file without arrays is one of ``torch.save``."""
        with store.opened(self.path) as file:
            head = file.read(0, min(file.size, 4096), "first bytes")
        return head.startswith(b"PK") and b"/data.pkl" in head

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "arrays": [_as_json(member) for member in self.arrays]}


@dataclass(frozen=True)
class CorpusSummary:
    """A corpus of tokens."""

    path: str
    format: str
    tokens: int
    shards: int
    dtype: str
    bytes: int
    documents: int | None
    eos: int | None
    vocab_size: int | None
    largest_id: int
    largest_id_is: str
    splits: dict[str, int]
    """Tokens of each split of a folder; empty for files."""
    tokenizer: str | None
    remarks: list[str]
    """What looks wrong, a sentence each."""

    def as_json(self) -> dict[str, Any]:
        return vars(self)


def describe(
    path: str,
    *,
    dtype: str | None = None,
    shape: tuple[int, ...] | None = None,
    offset: int | None = None,
    member: str | None = None,
    split: str = "train",
    eos: int | None = None,
    scan: bool = False,
) -> ArrayFile | CorpusSummary:
    """Describe a file, a folder or a glob; from headers and indexes alone, unless ``scan``.

    Parameters
    ----------
    path
        An array file, or a corpus: a folder, a file or a glob.
    dtype, shape, offset
        Of a raw file, as in ``lowtide.open``; ``dtype`` also of a corpus.
    member
        Which array of a file that holds several.
    split
        Which split of a corpus.
    eos
        The token that ends a document, to count documents.
    scan
        Whether to read all tokens, so that the largest id is exact.

    >>> np.save(tmp / "x.npy", np.zeros((3, 4)))
    >>> describe(str(tmp / "x.npy")).arrays[0].layout.shape
    (3, 4)
    """
    chosen = dtype is not None or shape is not None or bool(offset) or member is not None
    if eos is not None or scan or not store.is_file(path):
        if store.exists(path) or store.is_pattern(path):
            return _corpus(path, split, dtype, eos, scan)
    elif not chosen and not _succeeds(members, path) and _succeeds(find, path):
        return _corpus(path, split, dtype, eos, scan)
    if chosen:
        layout = inspect(path, dtype, shape, offset, name=member)
        arrays = [Member(layout.name, layout.format, layout)]
    else:
        arrays = members(path)
    with store.opened(path) as file:
        size = file.size
    cached = None if store.is_address(path) else pagecache.resident(path)
    return ArrayFile(store.absolute(path), size, cached[0] if cached else None, arrays)


def expand(path: str, *, split: str = "train", dtype: str | None = None) -> list[str]:
    """The path itself; of a folder or a glob that is not a corpus, the array files in it.

    >>> np.save(tmp / "x.npy", np.zeros((3, 4)))
    >>> [os.path.basename(path) for path in expand(str(tmp))]
    ['x.npy']
    """
    if store.is_file(path) or _succeeds(find, path, split=split, dtype=dtype):
        return [path]
    if store.is_folder(path):
        candidates = [os.path.join(path, name) for name in store.list_folder(path).files if name[0] != "."]
    else:
        candidates = store.glob(path)
    files, readable = [], False
    for file in sorted(filter(store.is_file, candidates)):
        try:
            readable = any(member.layout for member in members(file)) or readable
        except LowtideError:
            if not file.lower().endswith(_SUFFIXES):
                continue
        files.append(file)
    return files if readable else [path]


def _succeeds(inspection: Callable[..., object], path: str, **options: Any) -> bool:
    try:
        inspection(path, **options)
    except LowtideError:
        return False
    return True


def _corpus(path: str, split: str, dtype: str | None, eos: int | None, scan: bool) -> CorpusSummary:
    with corpus(path, split=split, dtype=dtype, eos=eos) as opened:
        splits = _splits(path, opened, dtype)
        tokenizer = opened.metadata.get("tokenizer")
        largest = opened.largest(scan=scan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it is among the remarks
            documents = opened.documents.count if opened.has_documents else None
        return CorpusSummary(
            path=store.absolute(path),
            format=opened.format,
            tokens=len(opened),
            shards=len(opened.paths),
            dtype=str(opened.dtype),
            bytes=len(opened) * opened.dtype.itemsize,
            documents=documents,
            eos=opened.eos,
            vocab_size=opened.vocab_size,
            largest_id=largest,
            largest_id_is="exact" if scan or len(opened) <= _EXACT else "of a sample",
            splits=splits,
            tokenizer=str(tokenizer["name"]) if isinstance(tokenizer, dict) else None,
            remarks=_remarks(opened, splits, largest, documents),
        )


def _splits(path: str, opened: Corpus, dtype: str | None) -> dict[str, int]:
    """The tokens of each split, of a folder that has them."""
    if not store.is_folder(path):
        return {}
    names = opened.metadata.get("splits")
    splits: dict[str, int] = {}
    for name in names if isinstance(names, tuple) else ("train", "val", "test"):
        with suppress(LowtideError):
            splits[str(name)] = find(path, split=str(name), dtype=dtype).count
    return splits


def _remarks(opened: Corpus, splits: dict[str, int], largest: int, documents: int | None) -> list[str]:
    remarks = []
    if opened.vocab_size is not None and largest >= opened.vocab_size:
        remarks.append(
            f"the id {largest:,} is not in the vocabulary of {opened.vocab_size:,} ids: the dtype or the "
            "tokenizer is another one"
        )
    ids, counts = np.unique(opened._spread(64, 1024), return_counts=True)
    share = counts.max() / counts.sum()
    if len(opened) > 1000 and share >= _REPEATED:
        remarks.append(
            f"{100 * share:.0f} % of the tokens are {ids[counts.argmax()]}: padding, or the dtype is another "
            "one"
        )
    if documents == 1 and opened.eos is not None and len(opened) > 1 and not opened._layout.documents:
        remarks.append(f"token {opened.eos} never ends a document: the end of text is another one")
    if splits and "val" not in splits:
        remarks.append("there is no split val, on which a training run could be evaluated")
    elif 0 < splits.get("val", _SMALL) < _SMALL:
        remarks.append(f"val is small: a loss on {splits['val']:,} tokens says little")
    return remarks


def _as_json(member: Member) -> dict[str, Any]:
    layout = member.layout
    if layout is None:
        return {"name": member.name, "format": member.format, "problem": member.reason}
    return {
        "name": member.name,
        "format": member.format,
        "shape": list(layout.shape),
        "dtype": str(layout.dtype),
        "order": "F" if layout.fortran else "C",
        "offset": layout.offset,
        "bytes": layout.nbytes,
    }
