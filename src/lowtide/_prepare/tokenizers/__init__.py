"""Tokenizers: the list ``KINDS`` of all kinds, and the tokenizer for a name or a file."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from lowtide._io import atomic, jsonfiles
from lowtide._prepare.tokenizers import probe
from lowtide._prepare.tokenizers.byte import ByteTokenizer
from lowtide._prepare.tokenizers.char import CharTokenizer
from lowtide._prepare.tokenizers.huggingface import BpeTokenizer, HuggingFaceTokenizer
from lowtide._prepare.tokenizers.ids import IdsTokenizer
from lowtide._prepare.tokenizers.kind import FORMAT, VERSION, Ids, Texts, Tokenizer, outside
from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer
from lowtide._printable import brief
from lowtide._tokens.formats import own
from lowtide.errors import ArgumentError, FormatError

__all__ = ["KINDS", "Ids", "Texts", "Tokenizer", "checked", "dtype_for", "load", "load_tokenizer", "make"]

KINDS: list[type[Tokenizer]] = [
    ByteTokenizer,
    CharTokenizer,
    IdsTokenizer,
    BpeTokenizer,
    HuggingFaceTokenizer,
    TiktokenTokenizer,
]
"""The first that owns a name creates it, the first that reads a file loads it."""

_MAX_FILE = 128 * 2**20  # four times the largest vocabulary in use
_MAX_MEMORY = 2**30  # of its values while it is parsed


def dtype_for(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """The smallest dtype of a corpus that holds every id.

    >>> dtype_for(65_536), dtype_for(65_537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def narrow_dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The smallest dtype that holds every id, for temporary files.

    >>> narrow_dtype_for(256), narrow_dtype_for(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.dtype("u1") if vocab_size <= 2**8 else dtype_for(vocab_size)


def checked(ids: Ids, tokenizer: Tokenizer) -> Ids:
    """The ids in their narrowest dtype; one outside the vocabulary, which would not fit it, raises.

    >>> checked(np.array([1, 300], np.uint32), ByteTokenizer())
    Traceback (most recent call last):
    lowtide.errors.FormatError: the id 300 is not in the vocabulary of the tokenizer 'byte', which ends ...
    """
    if (wrong := outside(ids, tokenizer)) is not None:
        raise FormatError(
            f"the id {wrong} is not in the vocabulary of the tokenizer {tokenizer.name!r}, which ends at "
            f"{tokenizer.vocab_size - 1}; pass the tokenizer of these ids, or download its file again"
        )
    return ids.astype(narrow_dtype_for(tokenizer.vocab_size), copy=False)


def make(name: str, texts: Texts | None = None) -> Tokenizer:
    """The tokenizer called ``name``; a kind that is trained needs ``texts``.

    >>> make("byte").eos, make("char", Texts(["low tide"])).vocab_size
    (256, 8)
    """
    kind = next((kind for kind in KINDS if kind.owns(name)), None)
    if kind is None:
        *names, last = [kind.usage() for kind in KINDS]
        raise ArgumentError(f"there is no tokenizer {name!r}; pass {', '.join(names)}, or one of {last}")
    if kind.trained and texts is None:
        raise ArgumentError(
            f"the tokenizer {name!r} is created from the text that it encodes; pass the tokenizer.json of a "
            "corpus that was prepared with it"
        )
    return kind.create(name, texts or Texts([]))


def load(
    path: str | os.PathLike[str], *, name: str | None = None, eos: int | None = None, trusted: bool = False
) -> Tokenizer:
    """The tokenizer in a file that ``to_json`` wrote, or in a ``tokenizer.json``, by its content.

    ``name`` and ``eos`` are for a ``tokenizer.json``, which contains neither. Unless ``trusted``, a file for
    a library is tried in another process first, which takes 0.2 s, since a damaged one may crash it.

    >>> _ = (tmp / "tokenizer.json").write_text(CharTokenizer("low tide").to_json())
    >>> load(tmp / "tokenizer.json").encode_batch(["tide"])[0].tolist()
    [6, 3, 1, 2]
    """
    where = os.path.abspath(path)
    content = jsonfiles.load(where, limit=_MAX_FILE, memory=_MAX_MEMORY, what="tokenizer")
    if not isinstance(content, dict):
        content = {}
    kind = next((kind for kind in KINDS if kind.reads(content)), None)
    if content.get("format") == FORMAT and (content.get("version") != VERSION or kind is None):
        raise FormatError(
            f"{where}: was written by a newer lowtide (version {brief(content.get('version'))} and kind "
            f"{brief(content.get('kind'))}, expected version {VERSION}); update lowtide"
        )
    if kind is None:
        raise FormatError(
            f"{where}: is not a tokenizer (found {brief(content)}, expected a file of lowtide or a Hugging "
            "Face tokenizer.json); pass another file"
        )
    if kind.unsafe and not trusted:
        probe.run(where)
    return kind.load(content, where, name or os.path.basename(where), eos)


def save(tokenizer: Tokenizer, folder: str) -> own.Tokenizer:
    """Write the file of a corpus's tokenizer, and return its entry in ``corpus.json``."""
    data = tokenizer.to_json().encode()
    atomic.write_file(os.path.join(folder, "tokenizer.json"), data)
    return own.Tokenizer(tokenizer.name, hashlib.sha256(data).hexdigest(), "tokenizer.json")


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a corpus that ``lowtide.prepare`` wrote.

    Parameters
    ----------
    folder
        The folder of the corpus; its ``corpus.json`` contains the name of the tokenizer's file.

    Returns
    -------
    Tokenizer
        With ``encode_batch(texts)``, ``decode(ids)``, ``vocab_size`` and ``eos``.

    Examples
    --------
    >>> _ = (tmp / "sea.txt").write_text("low tide")
    >>> _ = lowtide.prepare(tmp / "sea.txt", tmp / "corpus", val_fraction=0)
    >>> lowtide.load_tokenizer(tmp / "corpus").decode([108, 111, 119, 256])
    'low'
    """
    where = os.path.join(os.path.abspath(folder), own.NAME)
    manifest = own.read(where)
    entry = manifest.tokenizer
    if entry is None or entry.file is None:
        raise ArgumentError(f"{where}: has no tokenizer file; pass the tokenizer that made this corpus")
    file = os.path.join(os.path.dirname(where), entry.file)
    tokenizer = load(file, name=entry.name, eos=manifest.eos)
    if manifest.vocab_size is not None and tokenizer.vocab_size != manifest.vocab_size:
        raise FormatError(
            f"{file}: belongs to another corpus ({tokenizer.vocab_size} ids, expected {manifest.vocab_size} "
            f"by {where}); restore it"
        )
    return tokenizer
