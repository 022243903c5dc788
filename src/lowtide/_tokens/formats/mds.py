"""MosaicML Streaming (MDS): ``index.json`` and shards of samples, uncompressed.

A sample is the u32 sizes of its columns of variable size, then its columns in the order of their names. The
column of tokens is ``ndarray:DTYPE:SHAPE`` (its values), ``ndarray:DTYPE`` (ndim * 4 + width code, the shape
in integers of 2**code bytes, the values), ``ndarray`` (a dtype code before that), or ``bytes`` (values of a
dtype that is stored nowhere).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy.typing as npt

from lowtide._arrays.formats.layout import size_error
from lowtide._io.jsonfiles import invalid
from lowtide._io.store import Store, opened
from lowtide._printable import brief
from lowtide._tokens.formats.index import Inside, TokenDtype, agree, token_dtype, whole
from lowtide._tokens.formats.records import Gatherer, SampleFile
from lowtide._tokens.formats.tokens import Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError, UnsupportedError

CODES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    32: "uint32",
    33: "int32",
    64: "uint64",
    65: "int64",
}
"""The integers among the dtype codes of a column ``ndarray``, which each sample has."""
NAMES = ("tokens", "input_ids")
"""Columns that hold tokens where several could."""

_MAX_SHAPE = 10  # bytes of a dtype code, and of the shape of an array with one axis
_NDARRAY = re.compile(r"ndarray(?::([a-z]+\d+))?(?::(\d+(?:,\d+)*))?")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the tokens of a sample are, by the columns of a shard."""

    encoding: str
    sizes: tuple[int | None, ...]
    which: int
    """The column of tokens among them."""
    itemsize: int = 1
    code: int | None = None
    """The dtype code that each sample must have."""

    @property
    def fixed(self) -> bool:
        """Whether the tokens have the same place in all samples of one size."""
        before = self.sizes[: self.which]
        others = (*before, *self.sizes[self.which + 1 :])
        return None not in (before if self.sizes[self.which] is not None else others)

    def place(self, store: Store, start: int, stop: int) -> tuple[int, int]:
        """The first byte of a sample's tokens, and how many bytes they are."""
        open_sizes = [i for i, size in enumerate(self.sizes) if size is None]
        data = store.read(start, 4 * len(open_sizes), "sizes of a sample's columns")
        sizes = list(self.sizes)
        for n, i in enumerate(open_sizes):
            sizes[i] = int.from_bytes(data[4 * n : 4 * n + 4], "little")
        known = [size or 0 for size in sizes]
        if len(data) + sum(known) != stop - start:
            raise FormatError(
                f"{store.path}: the columns of a sample from byte {start} to {stop} take {known} bytes: "
                "damaged; write it again"
            )
        at, nbytes = start + len(data) + sum(known[: self.which]), known[self.which]
        if self.sizes[self.which] is None and self.encoding != "bytes":
            skip = self._shape(store, at, nbytes)
            at, nbytes = at + skip, nbytes - skip
        return at, nbytes

    def _shape(self, store: Store, at: int, nbytes: int) -> int:
        """Bytes before the values of an array that has its shape, and maybe its dtype, before them."""
        where = f"{store.path}: the array at byte {at}"
        data = store.read(at, min(nbytes, _MAX_SHAPE), "shape of a sample")
        code = b"" if self.code is None else bytes([self.code])
        if not data.startswith(code):
            raise invalid(f"{where}, its dtype code", data[:1], f"{code!r} as in the first")
        skip = len(code) + 1
        kind = int.from_bytes(data[len(code) : skip], "little")
        if kind >> 2 != 1:
            raise UnsupportedError(f"{where} has {kind >> 2} axes, and tokens have one; write flat arrays")
        width = 1 << (kind & 3)
        length = int.from_bytes(data[skip : skip + width], "little")
        skip += width
        if skip + length * self.itemsize != nbytes:
            raise FormatError(
                f"{where} is damaged ({length} values of {self.itemsize} bytes in {nbytes - skip} bytes); "
                "write it again"
            )
        return skip


class MDS(TokenFormat):
    """The shards that ``index.json`` lists, in its order."""

    name = "mds"
    index = "index.json"
    signature = "'shards' of MosaicML Streaming"
    key = "shards"

    def find(self, selection: Selection) -> Tokens:
        index = selection.index
        path, shards = index.path, index.content.get("shards")
        if index.content.get("version") != 2 or not isinstance(shards, list) or not shards:
            values = [index.content.get("version"), shards]
            expected = "'version' 2 and 'shards', a list that is not empty"
            raise invalid(f"{path}: the index of MDS", values, expected)
        inside = Inside(path)
        files = [_entry(inside, i, shard) for i, shard in enumerate(shards)]
        names, columns, dtype = _columns(path, shards[0], files, selection.dtype)
        dtype = agree(dtype, selection.dtype, path)
        for i, shard in enumerate(shards):
            described = [shard.get(key) for key in _DESCRIBE]
            if described != [shards[0].get(key) for key in _DESCRIBE]:
                raise invalid(f"{path}: shards[{i}]", described, "the columns of shards[0]")
        gatherer = Gatherer(sum(count for _, count in files), dtype.itemsize)
        for name, count in files:
            if not count:
                continue
            with opened(name) as store:
                gatherer.add(store, SampleFile.of(store, count), columns.place, columns.fixed)
        if not gatherer.segments:
            raise FormatError(
                f"{path}: holds no samples (found 0 in {len(shards)} shards, expected 1 or more); write it "
                "to the end"
            )
        metadata = {"column": names[columns.which], "columns": tuple(names)}
        return Tokens(self.name, dtype, tuple(gatherer.segments), gatherer.documents(), metadata=metadata)


_DESCRIBE = ("column_names", "column_encodings", "column_sizes")


def _entry(inside: Inside, i: int, shard: object) -> tuple[str, int]:
    """Path and samples of one shard."""
    where = f"{inside.index}: shards[{i}]"
    raw = shard.get("raw_data") if isinstance(shard, dict) else None
    if not isinstance(shard, dict) or not isinstance(raw, dict):
        raise invalid(where, shard, "an object with an object raw_data")
    if shard.get("format") != "mds" or shard.get("version") != 2:
        raise UnsupportedError(
            f"{where} has format {brief(shard.get('format'))} and version {brief(shard.get('version'))}, and "
            "lowtide reads 'mds' 2; write the data with MDSWriter"
        )
    count = whole(shard.get("samples"), f"{where}.samples", most=2**32 - 2)
    promised = whole(raw.get("bytes"), f"{where}.raw_data.bytes")
    try:
        name, (_, _, size, *_) = inside.stat(raw.get("basename"), f"shards[{i}].raw_data.basename")
    except FileNotFoundError:
        if shard.get("compression") is None:
            raise
        raise UnsupportedError(
            f"{where} is compressed ({brief(shard['compression'])}), and shards can only be read in place "
            "without; decompress them beside the index (StreamingDataset does with keep_zip), or write them "
            "without"
        ) from None
    if size != promised:
        raise size_error(name, size, promised, f"shards[{i}].raw_data.bytes of {inside.index}")
    return name, count


def _columns(
    path: str, shard: dict[str, object], files: list[tuple[str, int]], dtype: npt.DTypeLike | None
) -> tuple[list[str], Columns, TokenDtype]:
    """The columns of all shards, which of them holds tokens, and the dtype of these."""
    names, encodings, sizes = (shard.get(key) for key in _DESCRIBE)
    if (
        not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list))
        or not len(names) == len(encodings) == len(sizes)
        or not all(isinstance(text, str) for text in (*names, *encodings))
        or names != sorted(set(names))
    ):
        expected = "column_names in order, column_encodings and column_sizes, one of each per column"
        raise invalid(f"{path}: shards[0]", [names, encodings, sizes], expected)
    checked = [
        None if size is None else whole(size, f"{path}: shards[0].column_sizes", most=2**32 - 1)
        for size in sizes
    ]
    arrays = [i for i, text in enumerate(encodings) if text.startswith("ndarray")]
    which = _pick(
        arrays or [i for i, text in enumerate(encodings) if text == "bytes"], names, encodings, path
    )
    encoding = encodings[which]
    where = f"{path}: column {brief(names[which])} ({brief(encoding)[1:-1]})"
    code = None
    if encoding == "bytes":
        if dtype is None:
            raise ArgumentError(
                f"{where} holds bytes, and the dtype of the tokens in them is unknown; pass dtype, as in "
                f"lowtide.corpus({path!r}, dtype='int64'), which is what LLM Foundry wrote"
            )
        declared: TokenDtype = token_dtype(dtype, where)
    else:
        match = _NDARRAY.fullmatch(encoding)
        if match is None:
            raise invalid(where, encoding, "ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE")
        if match[1] is None:
            code = _code(next((file for file in files if file[1]), None), checked, which, where)
        name = CODES[code] if code is not None else match[1]
        if name not in CODES.values():
            raise FormatError(f"{where} must hold integers to be tokens; pass another data set")
        declared = token_dtype(name, where)
        _check_shape(match[2], checked[which], declared.itemsize, where)
    return names, Columns(encoding, tuple(checked), which, declared.itemsize, code), declared


def _pick(candidates: list[int], names: list[str], encodings: list[str], path: str) -> int:
    if len(candidates) == 1:
        return candidates[0]
    named = [i for i in candidates if names[i] in NAMES]
    if len(named) == 1:
        return named[0]
    there = ", ".join(f"{name} ({encoding})" for name, encoding in zip(names, encodings, strict=True))
    raise UnsupportedError(
        f"{path}: tokens are a column ndarray or bytes, the only one or called {' or '.join(NAMES)}, found "
        f"{brief(there)}; write a data set with one such column"
    )


def _check_shape(shape: str | None, size: int | None, itemsize: int, where: str) -> None:
    """Raise unless a fixed shape and a fixed size are the same."""
    lengths = [int(length) for length in shape.split(",")] if shape and len(shape) < 200 else []
    if len(lengths) > 1:
        raise UnsupportedError(f"{where} has {len(lengths)} axes, and tokens have one; write flat arrays")
    expected = lengths[0] * itemsize if lengths else None
    if size != expected:
        raise invalid(f"{where}, its column_sizes", size, str(expected))


def _code(file: tuple[str, int] | None, sizes: list[int | None], which: int, where: str) -> int:
    """The dtype code of the first array."""
    if file is None:
        raise FormatError(f"{where}: no shard holds a sample, so the dtype is unknown")
    with opened(file[0]) as store:
        samples = SampleFile.of(store, file[1])
        stop = int(samples.offsets(store, 1, 2)[0])
        at, _ = Columns("bytes", tuple(sizes), which).place(store, samples.first, stop)
        code = store.read(at, 1, "dtype of a sample")[0]
    if code not in CODES:
        raise invalid(f"{where}, its dtype code in {file[0]}", code, "one of integers, as tokens are")
    return code
