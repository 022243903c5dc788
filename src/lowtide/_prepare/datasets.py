"""Data sets of the Hugging Face library, as the Arrow files that it keeps them in."""

from __future__ import annotations

import os
from typing import Any, cast

from lowtide._printable import brief
from lowtide._tokens.formats.index import read_json
from lowtide.errors import ArgumentError, FormatError, MissingExtraError, NotFoundError, UnsupportedError


def saved(folder: str) -> list[str] | None:
    """The files of a folder that ``save_to_disk`` made; None for any other folder."""
    if os.path.isfile(splits := os.path.join(folder, "dataset_dict.json")):
        names = read_json(splits).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"{splits}: splits must be a list of names, found {brief(names)}")
        if len(names) != 1:
            raise ArgumentError(
                f"{folder}: holds the splits {', '.join(map(repr, names)) or 'none'}; name the folder of "
                f"one, such as {os.path.join(folder, 'train')}"
            )
        folder = os.path.join(folder, names[0])
    state = os.path.join(folder, "state.json")
    if not os.path.isfile(state) or not os.path.isfile(os.path.join(folder, "dataset_info.json")):
        return None
    content = read_json(state)
    if content.get("_indices_data_files"):
        raise UnsupportedError(
            f"{folder}: its rows are in an order of their own (_indices_data_files); save it again after "
            "flatten_indices()"
        )
    files = content.get("_data_files")
    try:
        listed = cast("list[dict[str, str]]", files)
        paths = [os.path.join(folder, os.path.basename(file["filename"])) for file in listed]
    except (TypeError, KeyError):
        raise FormatError(f"{state}: _data_files must list files, found {brief(files)}") from None
    if not paths:
        raise NotFoundError(f"{folder}: is a data set with no rows; name another")
    return paths


def by_name(name: str) -> list[str]:
    """The files of ``hf:NAME`` or ``hf:NAME:SPLIT``; what is not in the library's cache is downloaded."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            f"{name}: needs datasets, which cannot be imported ({error}): pip install 'lowtide[datasets]'"
        ) from error
    _, _, rest = name.partition(":")
    identifier, _, split = rest.partition(":")
    try:
        found = datasets.load_dataset(identifier, split=split or None)
    except Exception as error:  # whatever the library, the hub or the network have to say
        raise NotFoundError(
            f"{name}: could not be loaded ({type(error).__name__}: {error}); check the name and the network, "
            "or save it elsewhere with save_to_disk and name that folder"
        ) from error
    if isinstance(found, dict):
        if len(found) != 1:
            raise ArgumentError(
                f"{name}: holds the splits {', '.join(map(repr, found))}; name one, such as "
                f"hf:{identifier}:{next(iter(found), 'train')}"
            )
        found = next(iter(found.values()))
    return _files(name, found)


def _files(name: str, found: Any) -> list[str]:
    from lowtide._prepare import tables

    paths = [str(file["filename"]) for file in found.cache_files]
    rows = sum(tables.rows(path) for path in paths)
    if not paths or rows != len(found):
        raise UnsupportedError(
            f"{name}: has {len(found)} rows, and the files of the cache hold {rows}: it is a part of "
            "them, or lies in memory; save it with save_to_disk and name that folder"
        )
    return paths
