"""datatrove: ``x.ds`` with raw tokens, ``x.ds.index`` with document ends, ``x.ds.metadata`` with their width.

The index is uint64 without a count. The metadata's first line is the tokenizer's name, ``|`` and the bytes of
a token, its second the number of tokens; a third is for people.
"""

from __future__ import annotations

import numpy as np

from lowtide._arrays.formats.layout import size_error
from lowtide._io.store import HEAD, Neighbours, Peek, opened, peek
from lowtide._printable import brief
from lowtide._tokens.formats.documents import END, Column, Documents, integers
from lowtide._tokens.formats.index import TokenDtype, agree, all_or_none, check_same, token_dtype
from lowtide._tokens.formats.tokens import Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError

_WIDTHS: dict[str, TokenDtype] = {"2": np.dtype("<u2"), "4": np.dtype("<u4")}
_MAX_METADATA = 2**16


class Datatrove(TokenFormat):
    """Files in their order; documents if each has its index."""

    name = "datatrove"
    suffixes = (".ds",)

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return file.path.endswith(".ds")

    def find(self, selection: Selection) -> Tokens:
        files = selection.files
        known = {
            file.path: _metadata(path)
            for file in files
            if selection.beside.has(path := file.path + ".metadata")
        }
        metadata: dict[str, object] = {}
        if known:
            first, (tokenizer, dtype, _) = next(iter(known.items()))
            for path, (other_tokenizer, other_dtype, _) in known.items():
                check_same("dtype", path + ".metadata", str(other_dtype), first, str(dtype))
                check_same("tokenizer", path + ".metadata", other_tokenizer, first, tokenizer)
            dtype = agree(dtype, selection.dtype, first + ".metadata")
            metadata["tokenizer"] = tokenizer
        elif selection.dtype is not None:
            dtype = token_dtype(selection.dtype, selection.path)
        else:
            raise ArgumentError(
                f"{selection.path}: the width of its tokens is unknown without a .metadata beside it; pass "
                f"dtype, as in lowtide.corpus({selection.path!r}, dtype='uint16') or 'uint32'"
            )
        segments = []
        for file in files:
            count = known[file.path][2] if file.path in known else file.size // dtype.itemsize
            if file.size != (expected := count * dtype.itemsize):
                raise size_error(file.path, file.size, expected, f"{count} tokens of {dtype}")
            segments.append(Segment.of(file, 0, count))
        documents = _documents(segments, selection.beside)
        return Tokens(self.name, dtype, tuple(segments), documents, metadata=metadata)


def _documents(segments: list[Segment], beside: Neighbours) -> Documents | None:
    if not all_or_none([segment.path + ".index" for segment in segments], beside):
        return None
    parts = []
    for segment in segments:
        index = peek(segment.path + ".index")
        count, left = divmod(index.size, END.itemsize)
        if left or (segment.count and not count):
            what = f"document ends of {END.itemsize} bytes each, for {segment.count} tokens"
            raise size_error(index.path, index.size, (count + 1) * END.itemsize, what)
        parts.append(Column(integers(index.path, index.identity, count)))
    documents = Documents(parts, [segment.count for segment in segments], whole=True)
    if documents.count:
        documents.bounds(documents.count - 1, documents.count)  # so that a swapped pair is noticed now
    return documents


def _metadata(path: str) -> tuple[str, TokenDtype, int]:
    """Tokenizer, dtype and token count."""
    file = peek(path)
    text = file.head
    if file.size > HEAD:
        with opened(path) as store:
            text = store.read(0, min(file.size, _MAX_METADATA), "metadata")
    lines = text.decode("utf8", "replace").split("\n")
    # The name may hold the separator too: datatrove itself writes "Unknown|2|2".
    name, _, width = lines[0].rpartition("|")
    count = lines[1].strip() if len(lines) > 1 else ""
    if width.strip() not in _WIDTHS or not (count.isascii() and count.isdigit() and len(count) < 19):
        raise FormatError(
            f"{path}: damaged, or of another datatrove ({brief(lines[:2])}, expected tokenizer|2 or "
            "tokenizer|4 and the number of tokens); move it away and pass dtype="
        )
    return name, _WIDTHS[width.strip()], int(count)
