"""MosaicML Streaming (MDS): ``index.json`` and shards of samples, uncompressed.

A sample is the u32 sizes of its columns of variable size, then its columns in the order of their names. The
column of tokens is ``ndarray:DTYPE:SHAPE`` (its values), ``ndarray:DTYPE`` (ndim * 4 + width code, the shape
in integers of 2**code bytes, the values), ``ndarray`` (a dtype code before that), or ``bytes`` (values of a
dtype that nothing tells).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide._io.store import Store, opened
from lowtide._printable import brief
from lowtide._tokens.formats.index import Inside, TokenDtype, agree, token_dtype, whole
from lowtide._tokens.formats.records import Gatherer, head
from lowtide._tokens.formats.tokens import Tokens
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

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
"""The integers among the dtypes that a column ``ndarray`` may name in each sample."""
NAMES = ("tokens", "input_ids")
"""Columns that hold tokens where several could."""

_NDARRAY = re.compile(r"ndarray(?::([a-z]+\d+))?(?::(\d+(?:,\d+)*))?")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the tokens of a sample lie, as the columns of a shard say."""

    encoding: str
    sizes: tuple[int | None, ...]
    which: int
    """The column of tokens among them."""
    itemsize: int = 1
    code: int | None = None
    """The dtype that each sample must name."""

    @property
    def fixed(self) -> bool:
        """Whether the tokens lie alike in all samples of one size."""
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
        """Bytes before the values of an array that tells its own shape, and maybe its dtype."""
        skip = 0
        where = f"{store.path}: the array at byte {at}"
        if self.code is not None:
            found = store.read(at, min(1, nbytes), "dtype of a sample")
            if found != bytes([self.code]):
                raise FormatError(
                    f"{where} must have the dtype code {self.code} as the first, found {found!r}"
                )
            skip = 1
        kind = int.from_bytes(store.read(at + skip, min(1, nbytes - skip), "shape of a sample"), "little")
        if kind >> 2 != 1:
            raise UnsupportedError(
                f"{where} has {kind >> 2} axes, and tokens lie along one; write flat arrays"
            )
        width = 1 << (kind & 3)
        skip += 1
        length = int.from_bytes(
            store.read(at + skip, min(width, nbytes - skip), "shape of a sample"), "little"
        )
        skip += width
        if skip + length * self.itemsize != nbytes:
            raise FormatError(
                f"{where} says that it has {length} values of {self.itemsize} bytes, and {nbytes - skip} are "
                "there: damaged; write it again"
            )
        return skip


def find(path: str, content: dict[str, object], dtype: npt.DTypeLike | None) -> Tokens:
    """The shards that ``index.json`` lists, in its order.

    >>> import json, struct
    >>> entry = {
    ...     "column_encodings": ["ndarray:uint16:2"], "column_names": ["tokens"], "column_sizes": [4],
    ...     "compression": None, "format": "mds", "samples": 2, "version": 2, "zip_data": None,
    ...     "raw_data": {"basename": "shard.00000.mds", "bytes": 26},
    ... }
    >>> shard = struct.pack("<4I", 2, 18, 22, 26) + b"{}" + struct.pack("<4H", 1, 2, 3, 4)
    >>> _ = (tmp / "shard.00000.mds").write_bytes(shard)
    >>> found = find(str(tmp / "index.json"), {"version": 2, "shards": [entry]}, None)
    >>> found.segments[0].offset, found.count, found.documents.count
    (18, 4, 2)
    """
    shards = content.get("shards")
    if content.get("version") != 2 or not isinstance(shards, list) or not shards:
        raise FormatError(
            f"{path}: an index of MDS has version 2 and a list 'shards' that is not empty, found version "
            f"{brief(content.get('version'))} and {brief(shards)}"
        )
    inside = Inside(path)
    files = [_entry(inside, i, shard) for i, shard in enumerate(shards)]
    names, columns, found = _columns(path, shards[0], files, dtype)
    made = agree(found, dtype, path)
    for i, shard in enumerate(shards):
        described = [shard.get(key) for key in _DESCRIBE]
        if described != [shards[0].get(key) for key in _DESCRIBE]:
            raise FormatError(
                f"{path}: shards[{i}] has other columns than shards[0], found {brief(described)}"
            )
    gatherer = Gatherer(sum(count for _, _, count in files), made.itemsize)
    for name, size, count in files:
        if not count:
            continue
        with opened(name) as store:
            if store.size != size:
                raise TruncatedFileError(
                    f"{name}: had {size} bytes a moment ago and has {store.size}; open it again"
                )
            gatherer.add(store, head(store, count, "samples"), columns.place, columns.fixed)
    if not gatherer.segments:
        raise FormatError(
            f"{path}: its {len(shards)} shards hold no samples; was the data written to the end?"
        )
    metadata = {"column": names[columns.which], "columns": tuple(names)}
    return Tokens("mds", made, tuple(gatherer.segments), gatherer.documents(), metadata=metadata)


_DESCRIBE = ("column_names", "column_encodings", "column_sizes")


def _entry(inside: Inside, i: int, shard: object) -> tuple[str, int, int]:
    """Path, size and samples of one shard."""
    where = f"{inside.index}: shards[{i}]"
    raw = shard.get("raw_data") if isinstance(shard, dict) else None
    if not isinstance(shard, dict) or not isinstance(raw, dict):
        raise FormatError(f"{where} must be an object with an object raw_data, found {brief(shard)}")
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
        wrong = TruncatedFileError if size < promised else FormatError
        raise wrong(
            f"{name}: has {size} bytes, and {inside.index} promises {promised} (shards[{i}].raw_data.bytes): "
            "cut short, or of another index; copy or write both again"
        )
    return name, size, count


def _columns(
    path: str, shard: dict[str, object], files: list[tuple[str, int, int]], dtype: npt.DTypeLike | None
) -> tuple[list[str], Columns, TokenDtype]:
    """The columns of all shards, which of them holds tokens, and the dtype of these."""
    names, encodings, sizes = (shard.get(key) for key in _DESCRIBE)
    if (
        not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list))
        or not len(names) == len(encodings) == len(sizes)
        or not all(isinstance(text, str) for text in (*names, *encodings))
        or names != sorted(set(names))
    ):
        raise FormatError(
            f"{path}: shards[0] must have column_names in order, column_encodings and column_sizes, one of "
            f"each a column, found {brief([names, encodings, sizes])}"
        )
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
                f"{where} holds bytes, and nothing tells the dtype of the tokens in them; pass dtype, as in "
                f"lowtide.corpus({path!r}, dtype='int64'), which is what LLM Foundry wrote"
            )
        found: TokenDtype = token_dtype(dtype, where)
    else:
        match = _NDARRAY.fullmatch(encoding)
        if match is None:
            raise FormatError(f"{where} must be ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE")
        if match[1] is None:
            code = _code(next((file for file in files if file[2]), None), checked, which, where)
        name = CODES[code] if code is not None else match[1]
        if name not in CODES.values():
            raise FormatError(f"{where} must hold integers to be tokens; name another data set")
        found = token_dtype(name, where)
        _check_shape(match[2], checked[which], found.itemsize, where)
    return names, Columns(encoding, tuple(checked), which, found.itemsize, code), found


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
    """A fixed shape and a fixed size are the same thing told twice."""
    lengths = [int(length) for length in shape.split(",")] if shape and len(shape) < 200 else []
    if len(lengths) > 1:
        raise UnsupportedError(
            f"{where} has {len(lengths)} axes, and tokens lie along one; write flat arrays"
        )
    expected = lengths[0] * itemsize if lengths else None
    if size != expected:
        raise FormatError(f"{where} must have column_sizes {expected}, found {size}: damaged; write it again")


def _code(file: tuple[str, int, int] | None, sizes: list[int | None], which: int, where: str) -> int:
    """The dtype code that the first array names."""
    if file is None:
        raise FormatError(f"{where}: no shard holds a sample, so nothing tells the dtype")
    with opened(file[0]) as store:
        seen = head(store, file[2], "samples")
        stop = int(seen.offsets(store, 1, 2)[0])
        at, _ = Columns("bytes", tuple(sizes), which).place(store, seen.first, stop)
        code = store.read(at, 1, "dtype of a sample")[0]
    if code not in CODES:
        raise FormatError(
            f"{where} must hold integers to be tokens, found the dtype code {code} in {file[0]}"
        )
    return code
