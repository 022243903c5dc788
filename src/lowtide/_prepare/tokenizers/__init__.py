"""Tokenizers: what turns text into ids and back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lowtide._io import jsonfiles
from lowtide._prepare.tokenizers import probe
from lowtide._prepare.tokenizers.bytelevel import ByteTokenizer
from lowtide._prepare.tokenizers.characters import CharTokenizer, alphabet
from lowtide._prepare.tokenizers.shared import FORMAT, VERSION
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Ids", "Tokenizer", "alphabet", "checked", "dtype_for", "load", "load_tokenizer", "make"]

_MAX_FILE = 128 * 2**20  # four times the largest vocabulary that is in use
_MAX_MEMORY = 2**30  # of its values while they are looked at

Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


class Tokenizer(Protocol):
    """One kind of tokenizer. It is made once, saved, and loaded again by each worker from its file."""

    @property
    def name(self) -> str:
        """As ``--tokenizer`` takes it."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it; the end of text counts too."""

    @property
    def eos(self) -> int | None:
        """The id that ends a document, where the vocabulary has one."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, with no end of text, in any unsigned dtype that holds them."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of the ids; bytes that are no UTF-8 come as U+FFFD."""

    def to_json(self) -> str:
        """The content of its file beside ``corpus.json``: JSON, never a pickle."""


def dtype_for(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """The smallest dtype of a corpus that holds every id.

    >>> dtype_for(65_536), dtype_for(65_537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def narrow_dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The smallest dtype of all that holds every id: what lies on disk for a moment only.

    >>> narrow_dtype_for(256), narrow_dtype_for(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.dtype("u1") if vocab_size <= 2**8 else dtype_for(vocab_size)


def checked(ids: Ids, tokenizer: Tokenizer) -> Ids:
    """The ids in their narrowest dtype; an id beyond the vocabulary would be another token there.

    >>> checked(np.array([1, 300], np.uint32), ByteTokenizer())
    Traceback (most recent call last):
    lowtide.errors.FormatError: the tokenizer 'byte' gave the id 300, and its vocabulary ends at 256; ...
    """
    if len(ids) and int(ids.max()) >= tokenizer.vocab_size:
        raise FormatError(
            f"the tokenizer {tokenizer.name!r} gave the id {int(ids.max())}, and its vocabulary ends at "
            f"{tokenizer.vocab_size - 1}; its file contradicts itself, get it again from where it was made"
        )
    return ids.astype(narrow_dtype_for(tokenizer.vocab_size), copy=False)


def make(
    name: str,
    *,
    sample: Callable[[], Iterable[str]] | None = None,
    alphabet: Iterable[str] | None = None,
    eos: str | None = None,
) -> Tokenizer:
    """The tokenizer called ``name``.

    ``byte``; ``char``, which needs the ``alphabet`` of the sources; ``bpe:VOCAB``, which is trained on the
    texts of ``sample()``; the path of a Hugging Face ``tokenizer.json``; or an encoding of tiktoken such as
    ``gpt2``.
    ``eos`` names the token that ends a document where the tokenizer has it under a name of its own.

    >>> make("byte").eos, make("char", alphabet="low tide").vocab_size
    (256, 8)
    """
    if eos is not None and (name in ("byte", "char") or name.startswith("bpe:")):
        raise ArgumentError(f"the tokenizer {name!r} has its own end of text; leave out eos={eos!r}")
    if name == "byte":
        return ByteTokenizer()
    if name == "char":
        if alphabet is None:
            raise ArgumentError("the tokenizer 'char' needs the alphabet of the sources; pass alphabet=")
        return CharTokenizer(alphabet)
    if name.startswith("bpe:"):
        if sample is None:
            raise ArgumentError(f"the tokenizer {name!r} is trained on a sample of the sources; pass sample=")
        if not (size := name.removeprefix("bpe:")).isdecimal():
            raise ArgumentError(f"the tokenizer bpe:VOCAB needs a number such as bpe:8192, got {name!r}")
        from lowtide._prepare.tokenizers import huggingface

        return huggingface.trained(int(size), sample())
    if os.path.exists(name) or name.endswith(".json"):
        path = os.path.join(name, "tokenizer.json") if os.path.isdir(name) else name
        return load(path, name=name, eos=eos)
    from lowtide._prepare.tokenizers import openai

    if name not in openai.names():
        raise ArgumentError(
            f"there is no tokenizer {name!r}; there are byte, char, bpe:VOCAB, the path of a tokenizer.json, "
            f"and tiktoken's {', '.join(openai.names())}"
        )
    return openai.by_name(name, eos)


def load(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    eos: int | str | None = None,
    trusted: bool = False,
) -> Tokenizer:
    """The tokenizer of a file that ``to_json`` gave, or of a ``tokenizer.json``; its content tells which.

    Parameters
    ----------
    path
        The file, of at most 128 MiB.
    name, eos
        A ``tokenizer.json`` does not say its name and which token ends a document: these do.
    trusted
        Load it at once. Otherwise one that is loaded by a library is tried in another process first, which
        takes about 0.2 s: damaged ones may end the process that loads them.

    >>> _ = (tmp / "tokenizer.json").write_text(make("char", alphabet="low tide").to_json())
    >>> load(tmp / "tokenizer.json").encode_batch(["tide"])[0].tolist()
    [6, 3, 1, 2]
    """
    where = os.path.abspath(path)
    content = jsonfiles.load(where, limit=_MAX_FILE, memory=_MAX_MEMORY, what="tokenizer")
    if isinstance(content, dict) and "model" in content:
        from lowtide._prepare.tokenizers import huggingface

        if not trusted:
            probe.run(where)
        text = json.dumps(content, ensure_ascii=False)
        return huggingface.from_text(text, name or os.path.basename(where), where, eos)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(f"{where}: is the file of no tokenizer that is known, found {brief(content)}")
    if content.get("version") != VERSION:
        raise FormatError(
            f"{where}: version {brief(content.get('version'))} is not known, {VERSION} is; written by a "
            "newer lowtide: update this one"
        )
    kind = content.get("kind")
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        characters = content.get("characters")
        if not isinstance(characters, str) or not characters or list(characters) != sorted(set(characters)):
            raise FormatError(
                f"{where}: characters must be a string, sorted and each once, found {brief(characters)}; "
                "restore the file"
            )
        return CharTokenizer(characters)
    if kind == "tiktoken":
        from lowtide._prepare.tokenizers import openai

        if not trusted:
            probe.run(where)
        return openai.from_content(content, where)
    raise FormatError(
        f"{where}: kind {brief(kind)} is not known; written by a newer lowtide: update this one"
    )


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a corpus, from the file that its ``corpus.json`` names."""
    from lowtide._tokens.formats import own

    where = os.path.join(os.path.abspath(folder), own.NAME)
    manifest = own.read(where)
    said = manifest.tokenizer
    if said is None or said.file is None:
        raise ArgumentError(f"{where}: names no tokenizer file; pass the tokenizer that made this corpus")
    file = os.path.join(os.path.dirname(where), said.file)
    tokenizer = load(file, name=said.name, eos=manifest.eos)
    if manifest.vocab_size is not None and tokenizer.vocab_size != manifest.vocab_size:
        raise FormatError(
            f"{file}: has {tokenizer.vocab_size} ids, and {where} says {manifest.vocab_size}: it is of "
            "another corpus; restore it"
        )
    return tokenizer
