"""The base class of tokenizers, and what they share: checks of ids, lowtide's own file, library errors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, LowtideError

T = TypeVar("T")

Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]

FORMAT = "lowtide tokenizer"
VERSION = 1

MAX_VOCABULARY = 2**24
"""Ids that a vocabulary may have, holes included: libraries allocate memory for each."""

# Names of the token that ends a document, most common first.
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]")


class Texts:
    """The texts that a tokenizer is trained on; a run passes a subclass that reads its inputs."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts

    def sample(self) -> Iterable[str]:
        """A bounded amount of text from all over the inputs."""
        return self._texts

    def map(self, function: Callable[[Iterable[str]], T]) -> Iterable[T]:
        """Results of ``function`` for parts that together are all of the text, possibly in parallel."""
        return [function(self._texts)]


class Tokenizer(ABC):
    """A kind of tokenizer. It is created once, saved, and loaded from its file by each worker.

    ``owns`` and ``reads`` say which names and which files belong to a class in the list ``KINDS``.
    """

    kind: ClassVar[str] = ""  # its name in ``own_file``, and for --tokenizer
    trained: ClassVar[bool] = False  # created from texts
    unsafe: ClassVar[bool] = False  # its library may crash on a damaged file

    name: str  # as the option --tokenizer takes it
    vocab_size: int  # ids are below it, including the end of text
    eos: int | None  # the id that ends a document, if the vocabulary has one

    @classmethod
    def usage(cls) -> str:
        """The names that it takes, for error messages."""
        return cls.kind

    @classmethod
    def owns(cls, name: str, /) -> bool:
        """Whether ``name`` is a name of this kind."""
        return name == cls.kind

    @classmethod
    def create(cls, _name: str, _texts: Texts, /) -> Tokenizer:
        """The tokenizer with a name that it owns; it is trained on the texts if it is ``trained``."""
        return cls()

    @classmethod
    def reads(cls, content: Mapping[str, Any], /) -> bool:
        """Whether the JSON content of a file is a tokenizer of this kind."""
        return bool(cls.kind) and content.get("format") == FORMAT and content.get("kind") == cls.kind

    @classmethod
    def load(cls, _content: Mapping[str, Any], _path: str, _name: str, _eos: int | None, /) -> Tokenizer:
        """The tokenizer in a file that it reads; name and end of text are those of the corpus."""
        return cls()

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, without end of text, in any unsigned dtype that holds them."""

    @abstractmethod
    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD."""

    @abstractmethod
    def to_json(self) -> str:
        """The content of its file next to ``corpus.json``: JSON, never a pickle."""

    def own_file(self, **content: Any) -> str:
        """The content of a file in lowtide's own format."""
        return json.dumps({"format": FORMAT, "version": VERSION, "kind": self.kind, **content}) + "\n"


def as_ids(values: Any) -> npt.NDArray[Any] | None:
    """An iterable of integers as an array of one dimension; None for anything else."""
    listed = isinstance(values, Iterable) and not hasattr(values, "__array__")
    ids = np.asarray(list(values) if listed else values)
    return ids if ids.ndim == 1 and (not len(ids) or ids.dtype.kind in "iu") else None


def outside(ids: npt.NDArray[Any], tokenizer: Tokenizer) -> int | None:
    """The first id that is not in the vocabulary, or None."""
    if not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
        return None
    return next(int(value) for value in ids.tolist() if not 0 <= value < tokenizer.vocab_size)


def decodable(ids: npt.ArrayLike, tokenizer: Tokenizer) -> list[int]:
    """The ids that stand for text: all except the end of text; one outside the vocabulary raises."""
    values = np.asarray(ids).ravel()
    if len(values) and values.dtype.kind not in "iu":
        raise ArgumentError(f"ids must be integers, got {brief(values[:4].tolist())}")
    if (wrong := outside(values, tokenizer)) is not None:
        raise ArgumentError(
            f"the id {wrong} is not in the vocabulary of the tokenizer {tokenizer.name!r}, which ends at "
            f"{tokenizer.vocab_size - 1}; decode with the tokenizer of the corpus"
        )
    return [value for value in values.tolist() if value != tokenizer.eos]


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turn what a tokenizer's library raises into lowtide's errors.

    Panics of Rust do not inherit from ``Exception``: a caller that catches errors would not catch them.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise unencodable(error) from None
    except (LowtideError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        problem = brief(f"{type(error).__name__}: {error}")
        raise FormatError(
            f"{where}: the library of the tokenizer failed ({problem}); download the tokenizer again"
        ) from error


def unencodable(error: UnicodeEncodeError) -> ArgumentError:
    """The error for a text that cannot be encoded as UTF-8."""
    return ArgumentError(
        f"a text to encode must be valid Unicode, found {error.object[error.start]!r} at character "
        f"{error.start}; replace it"
    )
