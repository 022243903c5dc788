"""Tables: Parquet files by row groups, and the Arrow streams of saved data sets by rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from lowtide import errors
from lowtide._extras import library
from lowtide._io.store import opened
from lowtide._prepare.inputs.kind import File, Head, Kind, ReadOptions, Skip, Unit
from lowtide._prepare.inputs.pieces import Piece, document, invalid_utf8
from lowtide._printable import brief
from lowtide.errors import FormatError

_TEXT = 4 * 2**20  # bytes of text that are decoded at a time, as far as rows allow
_BUFFER = 2**20


class Table(Kind):
    """A file that pyarrow reads, one column of which is the text."""

    unsafe = True

    @abstractmethod
    def sizes(self, path: str, field: str) -> Iterator[tuple[int, int]]:
        """How many row groups or rows, and how many bytes of text, the next part of a file has."""

    @abstractmethod
    def rows(self, unit: Unit, field: str) -> Iterator[tuple[int, bytes | None]]:
        """The number and the text of each row of a unit."""

    def ranges(self, file: File, options: ReadOptions, /) -> Iterator[tuple[int, int]]:
        start = stop = size = 0
        with library_errors(file.path):
            for count, nbytes in self.sizes(file.path, options.text_field):
                stop += count
                size += nbytes
                if size >= options.unit_size:
                    yield start, stop
                    start, size = stop, 0
        if stop > start:
            yield start, stop

    def read(self, unit: Unit, options: ReadOptions, skip: Skip | None = None, /) -> Iterator[Piece]:
        with library_errors(unit.path):
            for row, value in self.rows(unit, options.text_field):
                try:
                    text = _decoded(value, f"{unit.path}: row {row}", options)
                except FormatError as error:
                    if skip is None:
                        raise
                    skip(error)
                    continue
                yield from document(text, row, options.piece_size)


class Parquet(Table):
    """Parquet files. A unit counts row groups."""

    name = "parquet"

    def recognises(self, head: Head, /) -> bool:
        return head.has_magic(b"PAR1", ".parquet")

    def sizes(self, path: str, field: str) -> Iterator[tuple[int, int]]:
        with self._open(path, field) as file:
            metadata = file.metadata
            for group in range(metadata.num_row_groups):
                row_group = metadata.row_group(group)
                chunks = map(row_group.column, range(row_group.num_columns))
                own = (chunk for chunk in chunks if chunk.path_in_schema == field)
                yield 1, sum(chunk.total_uncompressed_size for chunk in own)

    def rows(self, unit: Unit, field: str) -> Iterator[tuple[int, bytes | None]]:
        with self._open(unit.path, field) as file:
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
    def _open(self, path: str, field: str) -> Iterator[Any]:
        parquet = library("pyarrow.parquet", f"{path}: reading Parquet")
        # With a buffer a column is read in parts; without one a whole row group of it is loaded.
        with (
            opened(path) as store,
            library_errors(path),  # inside, since the library raises OSErrors without a number
            parquet.ParquetFile(store.stream(), buffer_size=_BUFFER, pre_buffer=False) as file,
        ):
            check_column(file.schema_arrow, field, path)
            yield file


def _decoded(value: bytes | None, where: str, options: ReadOptions) -> str:
    if value is None:
        raise FormatError(
            f"{where}: column {options.text_field!r} must be a string, found null; remove the row, or pass "
            "on_error='skip'"
        )
    try:
        return value.decode("utf-8", options.decode_errors)
    except UnicodeDecodeError as error:
        raise invalid_utf8(f"{where}, byte {error.start} of the text", error) from None


def values(column: Any) -> Iterator[bytes | None]:
    """The strings of a column as bytes."""
    pa = library("pyarrow", "a table")
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
    """Strings as bytes, with validated offsets; the library does not report where strings are not UTF-8."""
    column = column.view(_bytes_types()[column.type])
    column.validate(full=True)
    return column


def check_column(schema: Any, field: str, path: str) -> None:
    """Raise unless the table has a column of strings with this name."""
    if field not in schema.names:
        raise FormatError(
            f"{path}: has no column {field!r}, found {brief(schema.names)}; pass the column that contains "
            "the text (text_field)"
        )
    dtype = schema.field(field).type
    if library("pyarrow", path).types.is_dictionary(dtype):
        dtype = dtype.value_type
    if dtype not in _bytes_types():
        raise FormatError(
            f"{path}: column {field!r} must contain strings, found {dtype}; pass another (text_field)"
        )


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
