"""datatrove: ``x.ds`` with raw tokens, ``x.ds.index`` with document ends, ``x.ds.metadata`` with their width.

The index is uint64 without a count. The metadata's first line is the tokenizer's name, ``|`` and the bytes of
a token, its second the number of tokens; a third is for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowtide._arrays.formats.layout import Layout
from lowtide._io.store import HEAD, Neighbours, Peek, opened, peek
from lowtide._printable import brief
from lowtide._tokens.formats.documents import Column, Documents
from lowtide._tokens.formats.index import agree, token_dtype
from lowtide._tokens.formats.tokens import Segment, Tokens
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError

if TYPE_CHECKING:
    import numpy.typing as npt

_WIDTHS: dict[str, np.dtype[np.generic]] = {"2": np.dtype("<u2"), "4": np.dtype("<u4")}
_END: np.dtype[np.generic] = np.dtype("<u8")
_MAX_METADATA = 2**16


def find(seen: list[Peek], dtype: npt.DTypeLike | None) -> Tokens:
    """Files in their order; documents if each has its index.

    >>> np.arange(5, dtype="<u2").tofile(tmp / "x.ds")
    >>> np.array([3, 5], "<u8").tofile(tmp / "x.ds.index")
    >>> _ = (tmp / "x.ds.metadata").write_text("gpt2|2\\n5\\n5.00 T")
    >>> found = find([peek(str(tmp / "x.ds"))], None)
    >>> found.count, found.documents.count, found.metadata["tokenizer"]
    (5, 2, 'gpt2')
    """
    beside = Neighbours()
    tokenizer: str | None = None
    made = None if dtype is None else token_dtype(dtype, seen[0].path)
    promised: dict[str, int] = {}
    for one in seen:
        if not beside.has(one.path + ".metadata"):
            continue
        name, found, count = _metadata(one.path + ".metadata")
        if made is not None and promised and found != made:
            raise ArgumentError(
                f"{one.path}.metadata: tokens are {found}, and those of others {made}: one corpus has one "
                "dtype; name the files that belong together"
            )
        made = agree(found, made, one.path + ".metadata")
        if tokenizer not in (None, name):
            raise ArgumentError(
                f"{one.path}.metadata: the tokenizer is {brief(name)}, and that of others "
                f"{brief(tokenizer)}: one corpus has one tokenizer; name the files that belong together"
            )
        tokenizer, promised[one.path] = name, count
    if made is None:
        raise ArgumentError(
            f"{seen[0].path}: has no .metadata beside it, so nothing tells the width of its tokens; pass "
            f"dtype, as in lowtide.corpus({seen[0].path!r}, dtype='uint16') or 'uint32'"
        )
    segments = []
    for one in seen:
        count, left = divmod(one.size, made.itemsize)
        if left or count != promised.get(one.path, count):
            expected = promised[one.path] * made.itemsize if one.path in promised else count * made.itemsize
            wrong = TruncatedFileError if one.size < expected else FormatError
            raise wrong(
                f"{one.path}: has {one.size} bytes, and {expected} were expected for "
                f"{expected // made.itemsize} tokens of {made}: cut short, still being written, or of "
                "another dtype; copy or write it again"
            )
        segments.append(Segment(one.path, 0, count, file_size=one.size, identity=one.identity))
    metadata = {} if tokenizer is None else {"tokenizer": tokenizer}
    return Tokens("datatrove", made, tuple(segments), _documents(segments, beside), metadata=metadata)


def _documents(segments: list[Segment], beside: Neighbours) -> Documents | None:
    there = [beside.has(segment.path + ".index") for segment in segments]
    if not any(there):
        return None
    if not all(there):
        raise FormatError(
            f"{segments[there.index(False)].path}.index: is not there, while "
            f"{segments[there.index(True)].path}.index is: documents are listed for every file or for none; "
            "restore it, or move the others away"
        )
    parts = []
    for segment in segments:
        path = segment.path + ".index"
        identity = peek(path).identity
        size = identity.size
        count, left = divmod(size, _END.itemsize)
        if left or (segment.count and not count):
            wrong = TruncatedFileError if left else FormatError
            raise wrong(
                f"{path}: {size} bytes are no list of document ends of {_END.itemsize} bytes each for "
                f"{segment.count} tokens: cut short or still being written; copy or write it again"
            )
        layout = Layout(path, "datatrove", 0, _END, (count,), file_size=size, identity=identity)
        parts.append(Column(layout, "document ends"))
    documents = Documents("ends", parts, [segment.count for segment in segments], whole=True)
    if documents.count:
        documents.bounds(documents.count - 1, documents.count)  # so a swapped pair is met now, not in an hour
    return documents


def _metadata(path: str) -> tuple[str, np.dtype[np.generic], int]:
    """Tokenizer, dtype and token count."""
    seen = peek(path)
    text = seen.head
    if seen.size > HEAD:
        with opened(path) as store:
            text = store.read(0, min(seen.size, _MAX_METADATA), "metadata")
    lines = text.decode("utf8", "replace").split("\n")
    name, _, width = lines[0].rpartition(
        "|"
    )  # the name may hold one too: datatrove itself writes "Unknown|2|2"
    count = lines[1].strip() if len(lines) > 1 else ""
    if width.strip() not in _WIDTHS or not (count.isascii() and count.isdigit() and len(count) < 19):
        raise FormatError(
            f"{path}: line 1 must be tokenizer|2 or tokenizer|4 and line 2 the number of tokens, found "
            f"{brief(lines[:2])}: damaged, or of another datatrove; move it away and pass dtype="
        )
    return name, _WIDTHS[width.strip()], int(count)
