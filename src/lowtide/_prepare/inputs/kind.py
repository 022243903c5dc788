"""The base class of kinds of input, and what they share: files, units, options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cached_property

from lowtide._io.store import HEAD, Store, opened
from lowtide._prepare.inputs import streams
from lowtide._prepare.inputs.pieces import Piece
from lowtide.errors import ArgumentError, changed

Skip = Callable[[Exception], None]

IDS = "input_ids"
"""The field or column of token ids, which is read if there is none of text."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How inputs are read. Together with the inputs it determines every piece, and so every token.

    >>> ReadOptions(split_on="<|endoftext|>").decode_errors
    'strict'
    """

    text_field: str = "text"  # of JSON lines, Parquet files and data sets; it may contain token ids instead
    split_on: str | None = None  # the separator between the documents of a text
    keep_separators: bool = False  # at the end of each document, where no end-of-text token marks it
    replace: bool = False  # read bytes that are not UTF-8 as U+FFFD
    unit_size: int = 32 * 2**20  # bytes that a unit covers
    piece_size: int = 2**18  # bytes from which a document is cut into pieces
    line_limit: int = 64 * 2**20  # bytes of one JSON line, which is parsed as a whole

    def __post_init__(self) -> None:
        if self.split_on == "":
            raise ArgumentError("split_on must contain at least one character, got ''")
        if self.split_on is not None:
            try:
                self.split_on.encode()
            except UnicodeEncodeError:
                raise ArgumentError(f"split_on must be valid Unicode, got {self.split_on!r}") from None

    def field_of(self, names: Container[str]) -> str:
        """The field to read: ``text_field``, or that of token ids if there is no field ``text``."""
        usual = self.text_field == "text" and "text" not in names
        return IDS if usual and IDS in names else self.text_field

    @property
    def decode_errors(self) -> str:
        """The argument ``errors`` of ``bytes.decode``."""
        return "replace" if self.replace else "strict"


@dataclass(frozen=True, slots=True)
class Unit:
    """A file or a range of it, which one worker reads at a time.

    The units depend on the inputs alone, never on the workers, so that the output is always the same.
    """

    number: int  # of its file
    path: str
    kind: Kind
    compression: str | None
    start: int  # in bytes, row groups or rows, depending on the kind
    stop: int

    @property
    def end(self) -> int:
        """Where it ends in the decompressed stream; a compressed file is one unit of unknown length."""
        return 2**63 if self.compression else self.stop

    def read(self, options: ReadOptions, skip: Skip | None = None) -> Iterator[Piece]:
        """The pieces of a unit, in order.

        A document that cannot be read raises; with ``skip``, the error is passed to ``skip`` and the document
        is left out, or only the piece if the document has several. Empty documents are left out.

        >>> from lowtide._prepare.inputs import find, plan
        >>> _ = (tmp / "x.jsonl").write_text('{"text": "low"}\\n{"text": "tide"}\\n')
        >>> (unit,) = plan(find([str(tmp / "x.jsonl")]), ReadOptions())
        >>> [piece.text for piece in unit.read(ReadOptions())]
        ['low', 'tide']
        """
        return self.kind.read(self, options, skip)


@dataclass(frozen=True, slots=True)
class File:
    """A file to read."""

    path: str  # absolute: other processes read it
    name: str  # as the user passed it
    kind: Kind
    compression: str | None  # "gz" or "zst"
    size: int  # bytes on disk
    modified: int  # nanoseconds, to detect a change

    @property
    def label(self) -> str:
        """The kind and the compression, as in ``jsonl.gz``."""
        return f"{self.kind.name}.{self.compression}" if self.compression else self.kind.name

    def check(self) -> None:
        """Raise if the file has changed: a run that continues would mix old and new content."""
        with opened(self.path) as store:
            if (store.size, store.identity.mtime_ns) != (self.size, self.modified):
                raise changed(
                    self.path,
                    f"changed while it was prepared ({store.size} bytes, expected {self.size}); leave "
                    "sources unchanged during a run, and run it again with overwrite (--overwrite)",
                )


class Head:
    """The start of a file, from which its kind is recognised."""

    def __init__(self, store: Store) -> None:
        self.path = store.path
        self.data = store.read(0, min(HEAD, store.size))
        name = store.path.lower()
        self.compression = streams.compression_of(self.data, name, store.path)
        self.name = name.removesuffix(f".{self.compression}")  # lower case, without the compression

    @cached_property
    def block(self) -> bytes:
        """The first decompressed bytes."""
        return next(streams.blocks(self.path, self.compression), b"")

    def has_magic(self, magic: bytes, ending: str) -> bool:
        """Whether the file starts with ``magic``; a name that ends in ``ending`` must."""
        if self.data.startswith(magic):
            return True
        if self.name.endswith(ending):
            raise streams.mismatch(self.path, ending[1:], self.data, magic)
        return False


class Kind(ABC):
    """A kind of input: an instance in the list ``KINDS`` recognises its files and reads them.

    It has no state, since it is sent to other processes and machines.
    """

    name: str
    unsafe = False  # its library may crash on a damaged file, so that it is read in another process

    def expand(self, name: str, /) -> list[str] | None:
        """The files of a name or folder that only this kind understands; None for any other name."""
        return None

    @abstractmethod
    def recognises(self, head: Head, /) -> bool:
        """Whether a file is of this kind; the kinds are tried in their order."""

    def ranges(self, file: File, options: ReadOptions, /) -> Iterator[tuple[int, int]]:
        """Ranges of about ``unit_size`` bytes, counted as ``read`` counts: in bytes by default."""
        if file.compression:
            yield 0, file.size  # a compressed stream can be read from its start only
            return
        for start in range(0, file.size, options.unit_size):
            yield start, min(start + options.unit_size, file.size)

    @abstractmethod
    def read(self, unit: Unit, options: ReadOptions, skip: Skip | None, /) -> Iterator[Piece]:
        """The pieces of a unit; see ``Unit.read``."""
