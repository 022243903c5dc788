"""Hugging Face data sets of tokens: the column ``input_ids`` of Arrow files, in place.

``save_to_disk`` writes ``state.json``, which lists the files, and for a ``DatasetDict`` one such folder per
split and ``dataset_dict.json``. Each row is a document: a list, a large list or a list of fixed size. Its
values follow each other in the body of a record batch, so that each batch is a segment; the ends of documents
are the offsets of the list, which are read where they are.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from lowtide._io.extents import Extents, Ints
from lowtide._io.identity import Identity
from lowtide._io.jsonfiles import invalid
from lowtide._io.reader import Reader, open_reader
from lowtide._io.store import Neighbours, Peek, Store, is_file, opened, peek
from lowtide._printable import brief
from lowtide._tokens.formats import arrowstream
from lowtide._tokens.formats.arrowstream import FIXED_LIST, INT, LARGE_LIST, LIST, Batch, Field, Stream
from lowtide._tokens.formats.documents import Documents, Even, Part
from lowtide._tokens.formats.index import Inside, TokenDtype, agree, check_same, no_split
from lowtide._tokens.formats.records import MAX_SEGMENTS
from lowtide._tokens.formats.tokens import IndexFile, Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError, UnsupportedError

NAMES = ("input_ids", "tokens")
"""Columns of tokens, the first that is there."""
SAME = {"training": "train", "valid": "val", "validation": "val"}
"""Names of splits that mean another one."""

_LISTS = {LIST: "<i4", LARGE_LIST: "<i8"}
_WIDTHS = {8, 16, 32, 64}


class Rows(Part):
    """The documents of one file: the ends of lists, in the offsets of each record batch."""

    def __init__(
        self, path: str, identity: Identity, dtype: str, batches: list[tuple[int, int, int, int]]
    ) -> None:
        """``batches`` are rows, first byte of the offsets, first offset and tokens before, of each batch."""
        self.where = f"{path}: the offsets of lists"
        self._path, self._identity, self._dtype = path, identity, np.dtype(dtype)
        rows, *columns = np.array(batches, np.int64).T
        self._firsts = np.concatenate(([0], np.cumsum(rows)))
        self._places, self._bases, self._tokens = columns
        self.count = int(self._firsts[-1])
        self._reader: Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def ends(self, start: int, stop: int) -> Ints:
        first, last = (np.searchsorted(self._firsts, (start, stop - 1), "right") - 1).tolist()
        borders = np.concatenate(([start], self._firsts[first + 1 : last + 1], [stop]))
        return self._read(np.arange(first, last + 1), borders[:-1], np.diff(borders))

    def pick(self, which: Ints) -> Ints:
        batches = np.searchsorted(self._firsts, which, "right") - 1
        return self._read(batches, which, np.ones(len(which), np.int64))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self, batches: Ints, rows: Ints, counts: Ints) -> Ints:
        """The ends of ``counts`` rows from some ``rows`` on, each of one batch."""
        item = self._dtype.itemsize
        sizes = counts * item
        # The end of a row is the offset of the next one.
        offsets = self._places[batches] + (rows - self._firsts[batches] + 1) * item
        values = np.empty(int(counts.sum()), self._dtype)
        reader = self._reader
        if reader is None:
            reader = self._reader = open_reader(self._path, self._identity.size, identity=self._identity)
        extents = Extents(offsets, np.cumsum(sizes) - sizes, sizes)
        reader.submit(extents, values.view(np.uint8)).wait()
        ends: Ints = values + np.repeat(self._tokens[batches] - self._bases[batches], counts)
        return ends


class Arrow(TokenFormat):
    """Arrow files in their order: those that ``state.json`` lists, or given ones."""

    name = "arrow"
    index = "state.json"
    signature = "'_data_files' of a Hugging Face data set"
    key = "_data_files"
    suffixes = (".arrow",)

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        starts = (arrowstream.CONTINUATION, arrowstream.FILE)
        named = file.path.endswith(".arrow") and file.head.startswith(starts)
        return named or super().recognises(file, beside)

    def find(self, selection: Selection) -> Tokens:
        files = list(selection.files)
        if isinstance(files[0], IndexFile):
            own = files[0].content.get("_split")
            if selection.split != "train" and canonical(selection.split) != canonical(str(own)):
                raise ArgumentError(
                    f"{os.path.dirname(files[0].path)}: is one data set and has no split {selection.split!r} "
                    f"(its split is {brief(own)}); pass the data set of that split"
                )
            files = _listed(files[0])
        return _tokens(files, selection)


class ArrowSplits(TokenFormat):
    """A ``DatasetDict``: one folder per split, in which ``Arrow`` finds the tokens."""

    name = "arrow"
    index = "dataset_dict.json"
    signature = "'splits' of a Hugging Face DatasetDict"

    def find(self, selection: Selection) -> Tokens:
        index = selection.index
        names = index.content.get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise invalid(f"{index.path}: splits", names, "a list of names", "save it again")
        split = canonical(selection.split)
        matches = [name for name in names if name == selection.split] or [
            name for name in names if canonical(name) == split
        ]
        if not matches:
            raise no_split(index.path, selection.split, names)
        path, _ = Inside(index.path).stat(f"{matches[0]}/{Arrow.index}", "splits")
        return _tokens(_listed(IndexFile.read(peek(path))), selection)


def canonical(split: str) -> str:
    """The name by which a split is known, whatever its library calls it.

    >>> canonical("validation")
    'val'
    """
    return SAME.get(split, split)


def _listed(index: IndexFile) -> list[Peek]:
    content = index.content
    if content.get("_indices_data_files"):
        raise UnsupportedError(
            f"{index.path}: the order of its rows is in a separate file (_indices_data_files); save it again "
            "after flatten_indices()"
        )
    entries = content.get("_data_files")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid(f"{index.path}: _data_files", entries, "a list of objects", "save it again")
    inside = Inside(index.path)
    return [
        peek(inside.stat(entry.get("filename"), f"_data_files[{i}].filename")[0])
        for i, entry in enumerate(entries)
    ]


def _tokens(files: list[Peek], selection: Selection) -> Tokens:
    dtype: TokenDtype | None = None
    segments: list[Segment] = []
    parts: list[Part] = []
    sizes: list[int] = []
    column = ""
    for file in files:
        with opened(file.path) as store:
            stream = Stream(store)
            field = _column(stream, store.path)
            own = _dtype(field, store.path)
            check_same("dtype", store.path, own, files[0].path, dtype or own)
            check_same("column", store.path, field.name, files[0].path, column or field.name)
            dtype, column = own, field.name
            of_file, part = _segments(store, stream, field, own.itemsize, MAX_SEGMENTS - len(segments))
        if part is not None:
            segments += of_file
            parts.append(part)
            sizes.append(sum(segment.count for segment in of_file))
    if not segments or dtype is None:
        where = files[0].path if files else selection.path
        raise FormatError(f"{where}: holds no tokens (found 0, expected 1 or more); save others")
    documents = Documents(parts, sizes, whole=True)
    dtype = agree(dtype, selection.dtype, files[0].path)
    return Tokens(Arrow.name, dtype, tuple(segments), documents, metadata={"column": column})


def _segments(
    store: Store, stream: Stream, column: Field, itemsize: int, most: int
) -> tuple[list[Segment], Part | None]:
    """At most so many segments of a file, and its documents, if it has any."""
    node, buffer = stream.place(column)
    segments: list[Segment] = []
    batches: list[tuple[int, int, int, int]] = []
    tokens = 0
    for batch in stream:
        if not batch.rows:
            continue
        first, last, offsets = _values(store, batch, column, node, buffer, itemsize)
        if last > first:
            at = batch.buffers[buffer + (2 if column.kind == FIXED_LIST else 3)][0] + first * itemsize
            segments.append(Segment.of(store, at, last - first))
            batches.append((batch.rows, offsets, first, tokens))
            tokens += last - first
        if len(segments) > most:
            raise UnsupportedError(
                f"{store.path}: the data set has more than {MAX_SEGMENTS} record batches, which are read in "
                "place one by one; save it again with a larger writer_batch_size"
            )
    if not batches:
        return [], None
    if column.kind == FIXED_LIST:
        return segments, Even(f"{store.path}: rows", sum(rows for rows, *_ in batches), column.width)
    return segments, Rows(store.path, store.identity, _LISTS[column.kind], batches)


def _values(
    store: Store, batch: Batch, column: Field, node: int, buffer: int, itemsize: int
) -> tuple[int, int, int]:
    """The first value of a batch, the one after its last, and the first byte of its offsets."""
    where = f"{store.path}: the column {column.name!r}"
    if batch.compressed:
        raise UnsupportedError(f"{where} is compressed and cannot be read in place; save it uncompressed")
    fixed = column.kind == FIXED_LIST
    values = buffer + (2 if fixed else 3)
    if len(batch.nodes) < node + 2 or len(batch.buffers) <= values or batch.nodes[node][0] != batch.rows:
        raise FormatError(f"{where} does not match the schema (a batch of {batch.rows} rows); write it again")
    (_, nulls), (length, null_values) = batch.nodes[node], batch.nodes[node + 1]
    if nulls or null_values:
        raise UnsupportedError(
            f"{where} has nulls ({nulls} rows, {null_values} values); remove them, as with "
            f"dataset.filter(lambda row: row[{column.name!r}] is not None), and save it again"
        )
    offsets = 0
    if fixed:
        first, last = 0, batch.rows * column.width
    else:
        item = np.dtype(_LISTS[column.kind]).itemsize
        offsets, nbytes = batch.buffers[buffer + 1]
        if nbytes < (batch.rows + 1) * item:
            raise FormatError(
                f"{where} has {nbytes} bytes of offsets, expected {(batch.rows + 1) * item} for {batch.rows} "
                "rows; write it again"
            )
        first, last = (
            int.from_bytes(store.read(offsets + row * item, item, "offsets"), "little", signed=True)
            for row in (0, batch.rows)
        )
    room = min(length, batch.buffers[values][1] // itemsize)
    if not 0 <= first <= last <= room:
        raise FormatError(
            f"{where} has values from {first} to {last} in a batch, expected within {room}; write it again"
        )
    return first, last, offsets


def _column(stream: Stream, path: str) -> Field:
    """The column of tokens: one of ``NAMES``, or the only one that is a list of integers."""
    lists = [one for one in stream.fields if _is_list(one)]
    named = [one for name in NAMES for one in lists if one.name == name]
    if named or len(lists) == 1:
        return (named or lists)[0]
    columns = brief([one.name for one in stream.fields])
    text = next((one.name for one in stream.fields if one.kind in arrowstream.TEXT), None)
    folder = os.path.dirname(path)
    saved = any(is_file(os.path.join(folder, index)) for index in (Arrow.index, ArrowSplits.index))
    source = folder if saved else path
    if lists:
        step = f"rename the one of tokens, as with dataset.rename_column({lists[0].name!r}, 'input_ids')"
    elif text is not None:
        step = f"tokenize its text with `lowtide prepare {source} -o OUT --text-field {text}`"
    else:
        step = "save one of token ids, as a tokenizer gives them"
    raise FormatError(
        f"{path}: an Arrow file without a column 'input_ids' of integers (found {columns}); {step}"
    )


def _is_list(column: Field) -> bool:
    kinds = (*_LISTS, FIXED_LIST)
    inner = column.children[0] if len(column.children) == 1 else None
    return column.kind in kinds and not column.encoded and inner is not None and inner.kind == INT


def _dtype(column: Field, path: str) -> TokenDtype:
    [values] = column.children
    if abs(values.width) not in _WIDTHS or values.encoded:
        raise invalid(f"{path}: the type of {column.name!r}", values.width, "integers of 8 to 64 bits")
    if column.kind == FIXED_LIST and column.width < 1:
        raise invalid(f"{path}: the size of lists in {column.name!r}", column.width, "1 or more")
    sign = "i" if values.width < 0 else "u"
    dtype: TokenDtype = np.dtype(f"<{sign}{abs(values.width) // 8}")
    return dtype
