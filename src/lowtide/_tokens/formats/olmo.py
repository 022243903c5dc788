"""OLMo and Dolma: raw tokens in files that are called ``.npy``, and documents in a ``.csv.gz`` beside each.

The files do not record their dtype. The list of documents is a compressed table, ``start,end,...`` in tokens
of its file, which can only be read from front to back: it is read as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lowtide._io.store import Neighbours, Peek, opened
from lowtide._printable import brief
from lowtide._tokens.formats.index import all_or_none, token_dtype
from lowtide._tokens.formats.tokens import Chained, Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError

if TYPE_CHECKING:
    from lowtide._io.extents import Ints

_BLOCK = 2**16  # documents given at once
_MAX_LINE = 2**16  # a line holds two numbers, an id and a path
_MAX_EMPTY = 1000  # lines beyond one for each token


class OLMo(TokenFormat):
    """Files in their order; ``index`` of the tokens is set if each has its list of documents."""

    name = "olmo"
    suffixes = (".npy",)
    plain = True

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return file.path.endswith(".npy")

    def find(self, selection: Selection) -> Tokens:
        path = selection.path
        if selection.dtype is None:
            raise ArgumentError(
                f"{path}: not a NumPy file despite its name (starts with {selection.files[0].head[:8]!r}); "
                "if it is one of OLMo or Dolma, which hold raw tokens, pass their dtype: "
                f"lowtide.corpus({path!r}, dtype='uint16') or 'uint32'"
            )
        dtype = token_dtype(selection.dtype, path)
        segments = [Segment.raw(file, dtype.itemsize, selection.beside) for file in selection.files]
        tables = [file.path[: -len(".npy")] + ".csv.gz" for file in selection.files]
        index = None
        if all_or_none(tables, selection.beside):
            sizes = tuple(segment.count for segment in segments)
            index = Chained(tuple(partial(_ends, *one) for one in zip(tables, sizes, strict=True)), sizes)
        return Tokens(self.name, dtype, tuple(segments), index=index)


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
                f"{path}: damaged, or of another file (line {number} has a document from {start} to {end}, "
                f"expected one from {last} to at most {size}); write both again"
            )
        last = end
        block.append(end)
        if len(block) == _BLOCK:
            yield np.array(block, np.int64)
            block.clear()
    if last != size:
        raise TruncatedFileError(
            f"{path}: truncated, or the tokens are, or of another dtype (the last document ends at token "
            f"{last}, expected {size}); copy both again"
        )
    if block:
        yield np.array(block, np.int64)


def _lines(path: str) -> Iterator[bytes]:
    import gzip  # few corpora need it
    import zlib

    with opened(path) as store:
        try:
            with gzip.GzipFile(fileobj=store.stream()) as file:
                while line := file.readline(_MAX_LINE):
                    if len(line) == _MAX_LINE:
                        raise FormatError(f"{path}: a line has more than {_MAX_LINE} bytes: not such a table")
                    yield line
        except EOFError:
            raise TruncatedFileError(
                f"{path}: truncated (the compressed table has no end); copy it again"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise FormatError(f"{path}: not a valid gzip file ({error}); copy it again") from None


def _row(path: str, number: int, line: bytes) -> tuple[int, int]:
    fields = line.split(b",", 2)
    if len(fields) < 2 or not all(field.strip().isdigit() and len(field) < 20 for field in fields[:2]):
        raise FormatError(
            f"{path}: line {number} must start with start,end in tokens, found {brief(line, 80)}"
        )
    return int(fields[0]), int(fields[1])
