"""Tables: Parquet files by row groups, and the Arrow streams of saved data sets by rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._extras import library
from lowtide._io.store import opened
from lowtide._prepare.inputs.kind import File, Head, Kind, ReadOptions, Skip, Unit
from lowtide._prepare.inputs.pieces import Piece, document, invalid_utf8
from lowtide._printable import brief
from lowtide.errors import FormatError

Value = bytes | npt.NDArray[Any] | None
"""The text of a row, or its token ids."""

_TEXT = 4 * 2**20  # bytes of text that are decoded at a time, as far as rows allow
_BUFFER = 2**20


class Table(Kind):
    """A file that pyarrow reads; one of its columns is the text."""

    unsafe = True

    @abstractmethod
    def sizes(self, path: str, options: ReadOptions) -> Iterator[tuple[int, int]]:
        """The row groups or rows, and the bytes of text, of each part of a file."""

    @abstractmethod
    def rows(self, unit: Unit, options: ReadOptions) -> Iterator[tuple[int, Value]]:
        """The number and the text, or the token ids, of each row of a unit."""

    def ranges(self, file: File, options: ReadOptions, /) -> Iterator[tuple[int, int]]:
        start = stop = size = 0
        with library_errors(file.path):
            for count, nbytes in self.sizes(file.path, options):
                stop += count
                size += nbytes
                if size >= options.unit_size:
                    yield start, stop
                    start, size = stop, 0
        if stop > start:
            yield start, stop

    def read(self, unit: Unit, options: ReadOptions, skip: Skip | None = None, /) -> Iterator[Piece]:
        with library_errors(unit.path):
            for row, value in self.rows(unit, options):
                try:
                    content = _decoded(value, f"{unit.path}: row {row}", options)
                except FormatError as error:
                    if skip is None:
                        raise
                    skip(error)
                    continue
                yield from document(content, row, options.piece_size)


class Parquet(Table):
    """Parquet files; a unit is a range of row groups."""

    name = "parquet"

    def recognises(self, head: Head, /) -> bool:
        return head.has_magic(b"PAR1", ".parquet")

    def sizes(self, path: str, options: ReadOptions) -> Iterator[tuple[int, int]]:
        with self._open(path, options) as (file, field):
            metadata = file.metadata
            for group in range(metadata.num_row_groups):
                row_group = metadata.row_group(group)
                chunks = map(row_group.column, range(row_group.num_columns))
                # A column of lists is "input_ids.list.element" there.
                own = (chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == field)
                yield 1, sum(chunk.total_uncompressed_size for chunk in own)

    def rows(self, unit: Unit, options: ReadOptions) -> Iterator[tuple[int, Value]]:
        with self._open(unit.path, options) as (file, field):
            groups = [file.metadata.row_group(group) for group in range(unit.stop)]
            row = sum(group.num_rows for group in groups[: unit.start])
            count = sum(group.num_rows for group in groups[unit.start :])
            nbytes = sum(group.total_byte_size for group in groups[unit.start :])
            batch_size = max(1, min(1024, _TEXT * count // max(1, nbytes)))
            numbers = list(range(unit.start, unit.stop))
            batches = file.iter_batches(batch_size, row_groups=numbers, columns=[field], use_threads=False)
            texts = (value for batch in batches for value in values(batch.column(0)))
            yield from enumerate(texts, row)

    @contextmanager
    def _open(self, path: str, options: ReadOptions) -> Iterator[tuple[Any, str]]:
        parquet = library("pyarrow.parquet", f"{path}: reading Parquet")
        # With a buffer a column is read in parts; without one a whole row group of it is loaded.
        with (
            opened(path) as store,
            library_errors(path),  # inside, since the library raises OSErrors without a number
            parquet.ParquetFile(store.stream(), buffer_size=_BUFFER, pre_buffer=False) as file,
        ):
            yield file, check_column(file.schema_arrow, options, path)


def _decoded(value: Value, where: str, options: ReadOptions) -> str | npt.NDArray[Any]:
    if value is None:
        raise FormatError(
            f"{where}: column {options.text_field!r} must be a string, found null; remove the row, or "
            "pass on_error='skip'"
        )
    if isinstance(value, np.ndarray):
        if len(value) and int(value.min()) < 0:
            raise FormatError(f"{where}: token ids must be 0 or more, found {value.min()}; repair the row")
        return value
    try:
        return value.decode("utf-8", options.decode_errors)
    except UnicodeDecodeError as error:
        raise invalid_utf8(f"{where}, byte {error.start} of the text", error) from None


def values(column: Any) -> Iterator[Value]:
    """The strings of a column as bytes, or its lists of integers as arrays; None for a null."""
    pa = library("pyarrow", "a table")
    if _holds_ids(column.type):
        column.validate(full=True)
        for value in column:
            ids = value.values
            yield None if ids is None or ids.null_count else ids.to_numpy()
        return
    if pa.types.is_dictionary(column.type):
        words = _as_bytes(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode()
    else:
        column = _as_bytes(column)
    for value in column:
        yield value.as_py()


@cache
def _bytes_types() -> dict[Any, Any]:
    pa = library("pyarrow", "a table")
    return {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }


def _as_bytes(column: Any) -> Any:
    """Strings as bytes, with validated offsets; the library does not report where a string is not UTF-8."""
    column = column.view(_bytes_types()[column.type])
    column.validate(full=True)
    return column


def _holds_ids(dtype: Any) -> bool:
    """Whether a column contains lists of integers."""
    types = library("pyarrow", "a table").types
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(kind(dtype) for kind in kinds) and types.is_integer(dtype.value_type)


def check_column(schema: Any, options: ReadOptions, path: str) -> str:
    """The name of the column to read: of strings, or of token ids; raise if there is none."""
    field = options.field_of(schema.names)
    if field not in schema.names:
        raise FormatError(
            f"{path}: has no column {field!r}, found {brief(schema.names)}; pass the column that contains "
            "the text (text_field)"
        )
    dtype = schema.field(field).type
    if library("pyarrow", path).types.is_dictionary(dtype):
        dtype = dtype.value_type
    if dtype not in _bytes_types() and not _holds_ids(dtype):
        raise FormatError(
            f"{path}: column {field!r} must contain strings or token ids, found {dtype}; pass another "
            "(text_field)"
        )
    return field


@contextmanager
def library_errors(path: str) -> Iterator[None]:
    """Turn what pyarrow raises into lowtide's errors."""
    try:
        yield
    except errors.LowtideError:
        raise
    except Exception as error:  # the library raises almost any type for a damaged file
        if isinstance(error, OSError) and error.errno:
            raise errors.reading(path, error) from error
        raise FormatError(
            f"{path}: is not a valid file of Parquet or Arrow ({brief(str(error))}); copy it again"
        ) from error
