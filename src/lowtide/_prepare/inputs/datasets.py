"""Data sets of the Hugging Face library, read from the Arrow streams that it saves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

from lowtide._extras import library
from lowtide._io.jsonfiles import invalid
from lowtide._io.store import is_file, opened
from lowtide._prepare.inputs.kind import Head, ReadOptions, Unit
from lowtide._prepare.inputs.tables import Table, Value, check_column, library_errors, values
from lowtide._tokens.formats.index import read_json
from lowtide.errors import ArgumentError, UnsupportedError, missing

HUB = "hf:"


class DataSet(Table):
    """Arrow streams: files, folders of ``save_to_disk``, and ``hf:NAME``; a unit is a range of rows."""

    name = "dataset"

    def expand(self, name: str, /) -> list[str] | None:
        return _hub_files(name) if name.startswith(HUB) else _saved_files(name)

    def recognises(self, head: Head, /) -> bool:
        return head.has_magic(b"\xff\xff\xff\xff", ".arrow")

    def sizes(self, path: str, options: ReadOptions) -> Iterator[tuple[int, int]]:
        for batch in _batches(path, options):
            yield batch.num_rows, batch.column(options.field_of(batch.schema.names)).nbytes

    def rows(self, unit: Unit, options: ReadOptions) -> Iterator[tuple[int, Value]]:
        row = 0
        for batch in _batches(unit.path, options):
            field = options.field_of(batch.schema.names)
            stop = row + batch.num_rows
            if stop > unit.start:
                first = max(row, unit.start)
                column = batch.column(field).slice(first - row, min(stop, unit.stop) - first)
                yield from enumerate(values(column), first)
            if stop >= unit.stop:
                return
            row = stop


def _batches(path: str, options: ReadOptions | None = None) -> Iterator[Any]:
    pa, ipc = library("pyarrow", f"{path}: reading Arrow"), library("pyarrow.ipc", path)
    # Mapped, so that rows of other units are skipped without being read.
    with (
        opened(path) as store,
        library_errors(path),  # inside, since the library raises OSErrors without a number
        pa.memory_map(store.path) as file,
        ipc.open_stream(file) as reader,
    ):
        if options is not None:
            check_column(reader.schema, options, path)
        for batch in reader:
            batch.validate()  # otherwise the library crashes if a buffer is too short
            yield batch


def _saved_files(folder: str) -> list[str] | None:
    """The files of a folder that ``save_to_disk`` wrote; None for any other folder."""
    if is_file(splits := os.path.join(folder, "dataset_dict.json")):
        names = read_json(splits).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise invalid(f"{splits}: splits", names, "a list of names", "save it again")
        if len(names) != 1:
            raise ArgumentError(
                f"{folder}: contains the splits {', '.join(map(repr, names)) or 'none'}; pass the folder of "
                f"one, such as {os.path.join(folder, 'train')}, and that of validation data as val"
            )
        folder = os.path.join(folder, names[0])
    state = os.path.join(folder, "state.json")
    if not is_file(state) or not is_file(os.path.join(folder, "dataset_info.json")):
        return None
    content = read_json(state)
    if content.get("_indices_data_files"):
        raise UnsupportedError(
            f"{folder}: the order of its rows is in a separate file (_indices_data_files); save it again "
            "after flatten_indices()"
        )
    files = content.get("_data_files")
    try:
        entries = cast("list[dict[str, str]]", files)
        paths = [os.path.join(folder, os.path.basename(entry["filename"])) for entry in entries]
    except (TypeError, KeyError):
        raise invalid(f"{state}: _data_files", files, "a list of files", "save it again") from None
    if not paths:
        raise missing(folder, "is a data set without rows; pass another")
    return paths


def _hub_files(name: str) -> list[str]:
    """The files of ``hf:NAME`` or ``hf:NAME:SPLIT``, downloaded unless they are in the library's cache."""
    datasets = library("datasets", f"{name}: loading a data set", "datasets")
    identifier, _, split = name.removeprefix(HUB).partition(":")
    try:
        dataset = datasets.load_dataset(identifier, split=split or None)
    except Exception as error:  # of the library, the hub or the network
        raise missing(
            name,
            f"could not be loaded ({type(error).__name__}: {error}); check the name and the network, or save "
            "it elsewhere with save_to_disk and pass that folder",
        ) from error
    if isinstance(dataset, dict):
        if len(dataset) != 1:
            raise ArgumentError(
                f"{name}: contains the splits {', '.join(map(repr, dataset))}; pass one, such as "
                f"hf:{identifier}:{next(iter(dataset), 'train')}"
            )
        dataset = next(iter(dataset.values()))
    paths = [str(file["filename"]) for file in dataset.cache_files]
    rows = 0
    for path in paths:
        with library_errors(path):
            rows += sum(batch.num_rows for batch in _batches(path))
    if not paths or rows != len(dataset):
        raise UnsupportedError(
            f"{name}: is not what its files in the cache contain ({len(dataset)} rows, expected {rows}): it "
            "is a part of them, or in memory; save it with save_to_disk and pass that folder"
        )
    return paths
