"""OLMo and Dolma: raw tokens in files that are called ``.npy``, and documents in a ``.csv.gz`` beside each.

Nothing in the files tells their dtype. The list of documents is a compressed table, ``start,end,...`` in
tokens of its own file: it can only be read from front to back, so it is given as a stream.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowtide._io.store import Neighbours, Peek, opened
from lowtide._printable import brief
from lowtide._tokens.formats.index import may_grow, raw_count, token_dtype
from lowtide._tokens.formats.tokens import Segment, Tokens
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._tokens.formats.documents import Ints

_BLOCK = 2**16  # documents given at once
_MAX_LINE = 2**16  # a line holds two numbers, an id and a path
_MAX_EMPTY = 1000  # lines beyond one for each token


def find(seen: list[Peek], dtype: npt.DTypeLike | None) -> Tokens:
    """Files in their order; ``index`` is set if each has its list of documents.

    >>> from lowtide._io.store import peek
    >>> np.arange(7, dtype="<u2").tofile(tmp / "part-0.npy")
    >>> with gzip.open(tmp / "part-0.csv.gz", "wt") as file:
    ...     _ = file.write("0,3,id-1,a.jsonl,1\\n3,7,id-2,a.jsonl,2\\n")
    >>> found = find([peek(str(tmp / "part-0.npy"))], "uint16")
    >>> found.count, [ends.tolist() for ends in found.index()]
    (7, [[3, 7]])
    """
    if dtype is None:
        raise ArgumentError(
            f"{seen[0].path}: begins with {seen[0].head[:8]!r}, so it is no NumPy file despite its name; if "
            "it is one of OLMo or Dolma, which hold raw tokens, pass their dtype: "
            f"lowtide.corpus({seen[0].path!r}, dtype='uint16') or 'uint32'"
        )
    made = token_dtype(dtype, seen[0].path)
    segments, beside = [], Neighbours()
    for one in seen:
        count, size = raw_count(one, made.itemsize, beside)
        segments.append(Segment(one.path, 0, count, file_size=size, identity=may_grow(one)))
    tables = [one.path[: -len(".npy")] + ".csv.gz" for one in seen]
    there = [beside.has(table) for table in tables]
    if any(there) and not all(there):
        raise FormatError(
            f"{tables[there.index(False)]}: is not there, while {tables[there.index(True)]} is: documents "
            "are listed for every file or for none; restore it, or move the others away"
        )
    index = Tables(tuple(tables), tuple(segment.count for segment in segments)) if all(there) else None
    return Tokens("olmo", made, tuple(segments), index=index)


@dataclass(frozen=True, slots=True)
class Tables:
    """Reads the lists of documents one after the other: a call gives ends in global tokens, in blocks."""

    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    def __call__(self) -> Iterator[Ints]:
        first = 0
        for path, size in zip(self.paths, self.sizes, strict=True):
            for ends in _ends(path, size):
                yield ends + first
            first += size


def _ends(path: str, size: int) -> Iterator[Ints]:
    block: list[int] = []
    last = 0
    for number, line in enumerate(_lines(path), 1):
        if number > size + _MAX_EMPTY:  # megabytes of empty lines compress to a few bytes
            raise FormatError(
                f"{path}: has more than {size + _MAX_EMPTY} lines for {size} tokens: damaged, or of another "
                "file; write both again"
            )
        if line.isspace():
            continue
        start, end = _row(path, number, line)
        if start != last or not start <= end <= size:
            raise FormatError(
                f"{path}: line {number} says that a document goes from {start} to {end}, and one that begins "
                f"at {last} and ends by {size} was expected: damaged, or of another file; write both again"
            )
        last = end
        block.append(end)
        if len(block) == _BLOCK:
            yield np.array(block, np.int64)
            block.clear()
    if last != size:
        raise TruncatedFileError(
            f"{path}: the last document ends at token {last}, and the file of tokens has {size}: one of the "
            "two was cut short, or dtype is another; copy both again"
        )
    if block:
        yield np.array(block, np.int64)


def _lines(path: str) -> Iterator[bytes]:
    with opened(path) as store:
        try:
            with gzip.GzipFile(fileobj=store.stream()) as file:
                while line := file.readline(_MAX_LINE):
                    if len(line) == _MAX_LINE:
                        raise FormatError(f"{path}: a line has more than {_MAX_LINE} bytes: not such a table")
                    yield line
        except EOFError:
            raise TruncatedFileError(
                f"{path}: the compressed table ends in the middle: cut short; copy it again"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise FormatError(f"{path}: is no valid gzip file ({error}): damaged; copy it again") from None


def _row(path: str, number: int, line: bytes) -> tuple[int, int]:
    fields = line.split(b",", 2)
    if len(fields) < 2 or not all(field.strip().isdigit() and len(field) < 20 for field in fields[:2]):
        raise FormatError(
            f"{path}: line {number} must begin with start,end in tokens, found {brief(line, 80)}"
        )
    return int(fields[0]), int(fields[1])
