"""Tables: Parquet files by row groups, and the Arrow streams of saved data sets by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lowtide import errors
from lowtide._prepare.texts import document, invalid
from lowtide._prepare.units import Piece, Unit
from lowtide._printable import brief
from lowtide.errors import FormatError, MissingExtraError

if TYPE_CHECKING:
    from lowtide._prepare.reading import ReadOptions

try:
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq
except ImportError as missing:
    raise MissingExtraError(
        f"Parquet files and saved data sets need pyarrow, which cannot be imported ({missing}): "
        "pip install 'lowtide[prepare]'"
    ) from missing

_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_AT_ONCE = 4 * 2**20  # bytes of text that are decoded at a time, as far as whole rows allow
_BUFFER = 2**20


def ranges(path: str, kind: str, options: ReadOptions) -> Iterator[tuple[int, int]]:
    """Row groups of a Parquet file, rows of a data set: enough of them for a unit each time."""
    sizes = _row_group_sizes if kind == "parquet" else _batch_sizes
    start = stop = size = 0
    with _library_errors(path):
        for count, nbytes in sizes(path, options.text_field):
            stop += count
            size += nbytes
            if size >= options.unit_size:
                yield start, stop
                start, size = stop, 0
    if stop > start:
        yield start, stop


def rows(path: str) -> int:
    """Rows of an Arrow stream."""
    with _library_errors(path):
        return sum(batch.num_rows for batch in _batches(path))


def read(
    unit: Unit, options: ReadOptions, on_error: Callable[[Exception], None] | None = None
) -> Iterator[Piece]:
    """The documents of a unit."""
    reader = _parquet_rows if unit.kind == "parquet" else _dataset_rows
    with _library_errors(unit.path):
        for row, value in reader(unit, options.text_field):
            try:
                if value is None:
                    raise FormatError(
                        f"{unit.path}: row {row}: column {options.text_field!r} must be a string, found null"
                    )
                text = value.decode("utf-8", options.errors)
            except UnicodeDecodeError as error:
                wrong = invalid(f"{unit.path}: row {row}, byte {error.start} of the text", error)
            except FormatError as error:
                wrong = error
            else:
                yield from document(text, row, options.piece_size)
                continue
            if on_error is None:
                raise wrong
            on_error(wrong)


def _row_group_sizes(path: str, field: str) -> Iterator[tuple[int, int]]:
    with _parquet(path, field) as file:
        metadata = file.metadata
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            columns = map(row_group.column, range(row_group.num_columns))
            yield 1, sum(chunk.total_uncompressed_size for chunk in columns if chunk.path_in_schema == field)


def _parquet_rows(unit: Unit, field: str) -> Iterator[tuple[int, bytes | None]]:
    with _parquet(unit.path, field) as file:
        groups = [file.metadata.row_group(group) for group in range(unit.stop)]
        row = sum(group.num_rows for group in groups[: unit.start])
        count = sum(group.num_rows for group in groups[unit.start :])
        nbytes = sum(group.total_byte_size for group in groups[unit.start :])
        at_once = max(1, min(1024, _AT_ONCE * count // max(1, nbytes)))
        chosen = list(range(unit.start, unit.stop))
        for batch in file.iter_batches(at_once, row_groups=chosen, columns=[field], use_threads=False):
            for value in _values(batch.column(0)):
                yield row, value
                row += 1


@contextmanager
def _parquet(path: str, field: str) -> Iterator[Any]:
    # With a buffer a column is read piece by piece; without one a whole row group of it is held.
    with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
        _check(file.schema_arrow, field, path)
        yield file


def _batch_sizes(path: str, field: str) -> Iterator[tuple[int, int]]:
    for batch in _batches(path, field):
        yield batch.num_rows, batch.column(field).nbytes


def _dataset_rows(unit: Unit, field: str) -> Iterator[tuple[int, bytes | None]]:
    row = 0
    for batch in _batches(unit.path, field):
        stop = row + batch.num_rows
        if stop > unit.start:
            first = max(row, unit.start)
            column = batch.column(field).slice(first - row, min(stop, unit.stop) - first)
            yield from enumerate(_values(column), first)
        if stop >= unit.stop:
            return
        row = stop


def _batches(path: str, field: str | None = None) -> Iterator[Any]:
    # Mapped, so that rows of other units are passed over and not read.
    with pa.memory_map(path) as file, pyarrow.ipc.open_stream(file) as reader:
        if field is not None:
            _check(reader.schema, field, path)
        for batch in reader:
            batch.validate()  # else the library crashes where a buffer is too short
            yield batch


def _values(column: Any) -> Iterator[bytes | None]:
    if pa.types.is_dictionary(column.type):
        words = _as_bytes(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode()
    else:
        column = _as_bytes(column)
    for value in column:
        yield value.as_py()


def _as_bytes(column: Any) -> Any:
    """Strings as bytes, with offsets checked; the library's strings do not say where they are not UTF-8."""
    column = column.view(_BYTES[column.type])
    column.validate(full=True)
    return column


def _check(schema: Any, field: str, path: str) -> None:
    if field not in schema.names:
        raise FormatError(
            f"{path}: has no column {field!r}, found {brief(schema.names)}; name the column that holds the "
            "text (text_field)"
        )
    type_ = schema.field(field).type
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if type_ not in _BYTES:
        raise FormatError(
            f"{path}: column {field!r} must hold strings, found {type_}; name another (text_field)"
        )


@contextmanager
def _library_errors(path: str) -> Iterator[None]:
    try:
        yield
    except errors.LowtideError:
        raise
    except Exception as error:  # of a damaged file the library raises nearly anything
        if isinstance(error, OSError) and error.errno:
            raise errors.reading(path, error) from error
        raise FormatError(
            f"{path}: is not a valid file of Parquet or Arrow ({brief(str(error))}); copy it again"
        ) from error
