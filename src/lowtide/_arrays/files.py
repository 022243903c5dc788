"""Many files as one array: concatenated along the rows, and opened when their rows are read."""

from __future__ import annotations

import math
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._arrays import formats
from lowtide._arrays.formats.layout import Layout, shown
from lowtide._arrays.formats.npy import MAGIC, make_header
from lowtide._arrays.stored import StoredArray
from lowtide._arrays.views import ByRows
from lowtide._io import store
from lowtide._io.extents import AHEAD, LONGEST, Extents, Ints
from lowtide._io.gather import gather
from lowtide._io.identity import Identity
from lowtide._io.pending import Outcome, Pending, combined
from lowtide._io.reader import Cache, ReaderName
from lowtide.errors import ArgumentError, FormatError

_OPEN = 4096  # arrays of single files that are kept
_TOGETHER = 64  # files that are read by one call, and whose descriptors are in use at once
_SHAPE = re.compile(rb"'shape': \((\d+)")
_NO_ROWS = rb"'shape': (0"


class Part(NamedTuple):
    """Where the rows of one file are."""

    path: str
    format: str
    offset: int
    rows: int
    end: int
    name: str | None
    identity: tuple[Any, ...]


def paths_of(path: Any) -> list[str] | None:
    """The files that a list, a glob or a folder stands for, and None for the path of one file."""
    if isinstance(path, list | tuple):
        return [store.absolute(each) for each in path]
    if isinstance(path, Iterator | np.ndarray) and not hasattr(path, "read"):
        raise ArgumentError(
            f"path must be a path or a list of paths, got {type(path).__name__}; pass a list, as in "
            f"sorted(folder.glob('*.npy'))"
        )
    if not isinstance(path, str | os.PathLike):
        return None
    name = store.absolute(path)
    if store.is_pattern(name) and not store.exists(name):
        paths = sorted(store.glob(name))
        # If there are none it is the path of a file, which does not exist.
        return [store.absolute(each) for each in paths] or None
    if store.is_folder(name):
        files = sorted(each for each in store.list_folder(name).files if each.endswith(".npy"))
        return [os.path.join(name, each) for each in files] or None
    return None


def concatenated(
    paths: Sequence[str], title: str, reader: ReaderName, cache: Cache, arguments: dict[str, Any]
) -> Concatenation:
    """The array of many files; every header is read, and no row."""
    if not paths:
        raise ArgumentError("a list of files must have at least one file")
    headers: dict[bytes, tuple[int, int, int] | None] = {}
    plain = all(value is None or value == "C" for value in arguments.values())
    first: Layout | None = None
    parts = []
    peeks = _Peeks(paths)
    for path in paths:
        if first is not None and plain and first.format == "npy":
            peek = peeks[path]
            if peek.head not in headers:
                headers[peek.head] = _rows_in(peek.head, first)
            header = headers[peek.head]
            if header is not None and header[2] == peek.identity.size:
                rows, offset, end = header
                parts.append(Part(path, "npy", offset, rows, end, None, tuple(peek.identity)))
                continue
        layout = formats.inspect(path, **arguments)  # raises if the file is damaged
        if not layout.shape:
            raise ArgumentError(f"{path}: an array with no dimensions has no rows to concatenate")
        first = first or layout
        if (layout.dtype, layout.shape[1:]) != (first.dtype, first.shape[1:]):
            raise FormatError(
                f"{path}: does not continue {first.path} (rows of shape {layout.shape[1:]} and dtype "
                f"{shown(layout.dtype)}, expected {first.shape[1:]} and {shown(first.dtype)}); "
                f"open files of equal rows together"
            )
        if layout.fortran and len(layout.shape) > 1:
            raise FormatError(
                f"{path}: is in Fortran order, and its rows are not in one piece; save it in C order to "
                f"read it together with others"
            )
        identity = () if layout.identity is None else tuple(layout.identity.lasting())
        rows, end = layout.shape[0], layout.file_size
        parts.append(Part(path, layout.format, layout.offset, rows, end, layout.name, identity))
    assert first is not None
    return Concatenation(parts, first.shape[1:], first.dtype, title, reader, cache)


def _rows_in(head: bytes, like: Layout) -> tuple[int, int, int] | None:
    """Rows, offset and size of an NPY file whose header is that of ``like`` but for the rows, else None."""
    length = int.from_bytes(head[8:10], "little")
    shape = _SHAPE.search(head)
    if head[:8] != MAGIC + b"\1\0" or 10 + length != like.offset or like.offset > len(head) or not shape:
        return None
    width = math.prod(like.shape[1:]) * like.dtype.itemsize
    expected = make_header(like.dtype, like.shape)[10:]
    if _SHAPE.sub(_NO_ROWS, head[10 : like.offset]).split() != _SHAPE.sub(_NO_ROWS, expected).split():
        return None  # it is read in full, and may be right
    rows = int(shape[1])
    return rows, like.offset, like.offset + rows * width


class _Peeks(dict[str, store.Peek]):
    """First bytes and identities of files, several at a time: for objects in a bucket each is a request."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)

    def __missing__(self, path: str) -> store.Peek:
        first = self._paths.index(path)
        some = self._paths[first : first + _TOGETHER]
        self.clear()
        self.update((peek.path, peek) for peek in store.peek_all(some))
        return self[path]


class Concatenation(ByRows):
    """The rows of many files, one file after another."""

    def __init__(
        self,
        parts: Sequence[Part],
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        title: str,
        reader: ReaderName,
        cache: Cache,
    ) -> None:
        self._parts = parts
        self._title = title
        self._settings = (reader, cache)
        self._borders = np.cumsum([0, *(part.rows for part in parts)], dtype=np.int64)
        self._offsets = np.array([part.offset for part in parts], np.int64)
        self._describe((int(self._borders[-1]), *row_shape), dtype)
        self._arrays: OrderedDict[int, StoredArray] = OrderedDict()
        self._by_runs = True
        self._parallel = self._array(0)._parallel
        self._drops = self._array(0)._drops
        self._overlaps = self._array(0)._overlaps

    @property
    def path(self) -> str:
        return self._title

    @property
    def reader(self) -> str:
        return self._array(0).reader

    def close(self) -> None:
        """Release the descriptors of all files; idempotent."""
        self._closed = True
        while self._arrays:
            self._arrays.popitem()[1].close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return Concatenation, (self._parts, self._shape[1:], self._dtype, self._title, *self._settings)

    @property
    def _shown(self) -> str:
        return f"{len(self._parts)} files"

    def _check_file(self) -> None:
        self._check_open()
        for array in list(self._arrays.values()):  # others are compared when they are opened
            array._check_file()

    def _inodes(self) -> set[tuple[int, int]]:
        return {(part.identity[0], part.identity[1]) for part in self._parts if part.identity}

    def _array(self, number: int) -> StoredArray:
        """One file, opened if it is not open; the oldest ones are dropped if there are too many."""
        array = self._arrays.get(number)
        if array is None:
            part = self._parts[number]
            identity = Identity(*part.identity) if part.identity else None
            shape = (part.rows, *self._shape[1:])
            layout = Layout(
                part.path, part.format, part.offset, self._dtype, shape, False, part.end, part.name, identity
            )
            array = self._arrays[number] = StoredArray(layout, *self._settings)
            while len(self._arrays) > _OPEN:
                self._arrays.popitem(last=False)
        return array

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """The files of consecutive rows: number, first and last row in it, and rows before them."""
        number, at = int(np.searchsorted(self._borders, start, side="right")) - 1, start
        while at < stop:
            end = min(stop, int(self._borders[number + 1]))
            if end > at:
                before = int(self._borders[number])
                yield number, at - before, end - before, at - start
            number, at = number + 1, end

    def _submit_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        self._check_open()
        pieces = list(self._pieces(start, stop))
        if len(pieces) == 1:
            number, first, last, _ = pieces[0]
            return self._array(number)._submit_rows(first, last, out)
        return Pending(self._read_pieces, pieces, out)

    def _read_pieces(self, pieces: list[tuple[int, int, int, int]], out: npt.NDArray[Any]) -> Outcome:
        for number, first, last, at in pieces:
            self._array(number)._read_rows(first, last, out[at : at + last - first])
        return Outcome(1, 1)

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        self._check_open()
        if not len(starts) or not out.nbytes:
            return Outcome()
        targets = np.arange(len(starts), dtype=np.int64) * run
        return self._read_spans(starts, targets, np.full(len(starts), run, np.int64), out, ahead)

    def _submit_runs(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any]
    ) -> Pending[Outcome]:
        self._check_open()
        return Pending(self._read_spans, starts, targets, rows, out, AHEAD)

    def _read_spans(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any], ahead: int
    ) -> Outcome:
        """Read ``rows[i]`` rows from ``starts[i]`` on to ``targets[i]`` of ``out``, a few files at a time."""
        which, extents = self._located(starts, targets, rows)
        order = np.lexsort((extents.offsets, which))
        which, extents = which[order], extents[order]
        numbers, firsts = np.unique(which, return_index=True)
        borders = [*firsts.tolist(), len(which)]
        view = out.reshape(-1).view(np.uint8)
        long = int(extents.lengths.max()) > LONGEST
        step = 1 if long else _TOGETHER
        outcomes = []
        for i in range(0, len(numbers), step):
            some = slice(borders[i], borders[min(len(numbers), i + step)])
            readers = {int(number): self._array(int(number))._reader for number in numbers[i : i + step]}
            part = extents[some].cut() if long else extents[some]
            files = np.full(len(part), which[some][0]) if long else which[some]
            outcomes.append(gather(readers, files, part, view, ahead).wait())
        return combined(outcomes)

    def _located(self, starts: Ints, targets: Ints, rows: Ints) -> tuple[Ints, Extents]:
        """The file of each part of each span, and the parts: a span may cross from file to file."""
        width = self._row_nbytes
        pieces: list[tuple[Ints, Ints, Ints, Ints]] = []
        while len(starts):
            which = np.searchsorted(self._borders, starts, side="right") - 1
            taken = np.minimum(rows, self._borders[which + 1] - starts)
            offsets = self._offsets[which] + (starts - self._borders[which]) * width
            pieces.append((which, offsets, targets * width, taken * width))
            rest = rows > taken
            starts, targets, rows = (starts + taken)[rest], (targets + taken)[rest], (rows - taken)[rest]
        which, offsets, places, lengths = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return which, Extents(offsets, places, lengths)
