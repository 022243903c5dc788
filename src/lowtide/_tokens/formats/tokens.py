"""Where the tokens of a corpus are, and what a format of corpora implements."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy.typing as npt

from lowtide._io.identity import Identity, sample
from lowtide._io.journal import SUFFIX, published_size
from lowtide._io.store import Neighbours, Peek, Store
from lowtide._tokens.formats.index import TokenDtype, read_json
from lowtide.errors import FormatError

if TYPE_CHECKING:
    from lowtide._io.extents import Ints
    from lowtide._tokens.formats.documents import Documents
    from lowtide._tokens.formats.records import SampleFile

Marks = Literal["end", "start"]
UNFINISHED = ".prepare"
"""What ``lowtide prepare`` keeps in the output folder until the corpus is complete."""


@dataclass(slots=True)  # not frozen: that takes several times as long, for each of ten thousand shards
class Segment:
    """A run of tokens in one file."""

    path: str
    offset: int
    """Byte of the first token."""
    count: int
    """Tokens in it."""
    record: int = 0
    """Tokens per record; 0 if all tokens are contiguous."""
    stride: int = 0
    """Bytes from the start of a record to that of the next one."""
    file_size: int = 0
    """Size of the file when it was inspected."""
    identity: Identity | None = None
    """The file when it was inspected, to notice that it was replaced or written to since."""

    @classmethod
    def of(cls, file: Peek | SampleFile | Store, offset: int, count: int) -> Segment:
        """``count`` tokens from byte ``offset`` on in a file."""
        return cls(file.path, offset, count, file_size=file.size, identity=file.identity)

    @classmethod
    def raw(cls, file: Peek, itemsize: int, beside: Neighbours) -> Segment:
        """All tokens of a file without a header, with an identity that admits appending.

        While lowtide's own writer appends, they are those that it has published.
        """
        size, identity = file.size, file.identity
        if not identity.is_remote:  # an object is whole, and nobody appends to it
            if file.link or beside.has(file.path + SUFFIX):
                size = published_size(file.path, size)
            identity = identity._replace(samples=(sample(0, file.head),))
        if size % itemsize:
            raise FormatError(
                f"{file.path}: truncated, or of another dtype ({size} bytes, {size % itemsize} left over, "
                f"expected a multiple of a token's {itemsize}); pass dtype=, or copy it again"
            )
        return cls(file.path, 0, size // itemsize, file_size=size, identity=identity)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A corpus: its tokens in order, and how its documents are known."""

    format: str
    """lowtide, nanogpt, llm.c, megatron, datatrove, olmo, npy, litdata or mds; raw for files that only the
    caller's dtype describes."""
    dtype: TokenDtype
    segments: tuple[Segment, ...]
    documents: Documents | None = None
    """None where they must be found by a scan: for ``index`` if that is set, else for ``eos``."""
    eos: int | None = None
    usual_eos: int | None = None
    """The token that usually marks documents in this format, which does not record it. It is used if it
    occurs and the caller passes no other; the tokens show whether it starts or ends documents."""
    vocab_size: int | None = None
    marks: Marks = "end"
    """Whether ``eos`` is the last token of a document or the first; a document may cross segments."""
    index: Callable[[], Iterator[Ints]] | None = None
    """Blocks of document ends in global tokens, for an index that can only be read from front to back."""
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """All tokens."""
        return sum(segment.count for segment in self.segments)

    @property
    def tokenizer_digest(self) -> object:
        """The digest of the tokenizer's file, where the format records it."""
        tokenizer = self.metadata.get("tokenizer")
        return tokenizer.get("sha256") if isinstance(tokenizer, Mapping) else None


@dataclass(frozen=True, slots=True)
class Chained:
    """Reads one list of document ends after another: a call gives ends in global tokens, in blocks."""

    indexes: tuple[Callable[[], Iterator[Ints]], ...]
    counts: tuple[int, ...]

    def __call__(self) -> Iterator[Ints]:
        first = 0
        for index, count in zip(self.indexes, self.counts, strict=True):
            for ends in index():
                yield ends + first
            first += count


class IndexFile(Peek):
    """A JSON file that describes a whole corpus, with its content."""

    content: dict[str, object]

    @classmethod
    def read(cls, file: Peek) -> IndexFile:
        index = cls(*file)
        index.content = read_json(file.path)
        return index


@dataclass(frozen=True, slots=True)
class Selection:
    """What a caller of ``lowtide.corpus`` chose."""

    files: list[Peek]
    """The files in their order; or one ``IndexFile``."""
    split: str = "train"
    dtype: npt.DTypeLike | None = None
    folder: str | None = None
    """The folder that the files are from, if the caller gave a folder and not files."""
    beside: Neighbours = field(default_factory=Neighbours)

    @property
    def path(self) -> str:
        """The first file."""
        return self.files[0].path

    @property
    def index(self) -> IndexFile:
        """The only file, of a format that is recognised by its index."""
        [index] = self.files
        assert isinstance(index, IndexFile)
        return index


class TokenFormat(ABC):
    """A format of corpora. An instance in ``FORMATS`` is one that ``lowtide.corpus`` reads."""

    name: ClassVar[str]
    index: ClassVar[str | None] = None
    """The name of a JSON file that describes a whole folder."""
    signature: ClassVar[str] = ""
    """What tells its index from others of that name, for errors."""
    key: ClassVar[str | None] = None
    """A key of its index that others of that name do not have."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files of tokens that a folder is searched for."""
    pair: ClassVar[tuple[str, str] | None] = None
    """Suffixes of two files that are one data set; callers pass either, or what the paths share."""
    plain: ClassVar[bool] = False
    """Whether its files have no header, so that a file of any other kind may be taken for one."""

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        """Whether a file is of this format: its index, or by first bytes, name or the files beside it."""
        if not isinstance(file, IndexFile):
            return False
        return self.key in file.content if self.key else os.path.basename(file.path) == self.index

    @abstractmethod
    def find(self, selection: Selection) -> Tokens:
        """Where the tokens and documents are; every file was recognised."""
