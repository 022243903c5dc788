"""Arrow's IPC streams: where the values of one column are, from the metadata of each record batch.

A stream is a sequence of messages: ``FFFFFFFF``, u32 size, a flatbuffer of that size, a body. The first is
the schema; each record batch lists the buffers of all columns in the order of the schema, depth first. An IPC
file is ``ARROW1``, two zero bytes, and such a stream. Nothing in a flatbuffer is believed: every offset is
checked, and so are the number of fields and their depth.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from lowtide._arrays.formats.layout import size_error
from lowtide._io.store import Store
from lowtide.errors import FormatError, UnsupportedError

CONTINUATION = b"\xff\xff\xff\xff"
FILE = b"ARROW1\0\0"
"""How an IPC file starts, before its stream."""
MAX_METADATA = 16 * 2**20
"""Bytes of the largest message without its body."""

_AHEAD = 1024  # bytes read with the size of a message: those of most record batches
_MAX_FIELDS = 10_000
_MAX_DEPTH = 32
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3

# Arrow's numbers for types, and the buffers that each has in a record batch. Views of strings and lists have
# a number of buffers that differs from batch to batch, and unions one that depends on the version.
INT, LIST, FIXED_LIST, LARGE_LIST = 2, 12, 16, 21
TEXT = (4, 5, 19, 20, 23, 24)
"""Binary and strings, also large ones and views."""
_BUFFERS = {1: 0, 2: 2, 3: 2, 4: 3, 5: 3, 6: 2, 7: 2, 8: 2, 9: 2, 10: 2, 11: 2, 12: 2, 13: 1, 15: 2, 16: 1}
_BUFFERS |= {17: 2, 18: 2, 19: 3, 20: 3, 21: 2}


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a part of one."""

    name: str
    kind: int
    """Arrow's number of the type."""
    width: int = 0
    """Bits of an integer, with a minus for a signed one; values in a list of fixed size."""
    encoded: bool = False
    """Whether a dictionary contains its values."""
    children: list[Field] = field(default_factory=list)

    def walk(self) -> Iterator[Field]:
        """The field and those in it, in the order in which a record batch has them."""
        yield self
        if not self.encoded:
            for child in self.children:
                yield from child.walk()


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch."""

    rows: int
    nodes: tuple[tuple[int, int], ...]
    """Length and nulls of each field, depth first."""
    buffers: tuple[tuple[int, int], ...]
    """First byte in the file and bytes of each buffer, in the same order."""
    compressed: bool


class Stream:
    """The schema and the record batches of a file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        start = len(FILE) if store.read(0, min(store.size, len(FILE)), "first bytes") == FILE else 0
        message = self._message(start)
        if message is None or message[0] != _SCHEMA:
            raise self._damaged("does not start with a schema")
        _, schema, _, self._next = message
        if schema.number(0, "<h"):
            raise UnsupportedError(f"{store.path}: is in big-endian order; write it on another machine")
        self._fields = 0
        self.fields = [self._field(table, 0) for table in schema.tables(1)]

    def __iter__(self) -> Iterator[Batch]:
        """The record batches in order. Those of dictionaries are passed over."""
        at = self._next
        while (message := self._message(at)) is not None:
            kind, table, body, at = message
            if kind == _BATCH:
                yield self._batch(table, body, at)
            elif kind != _DICTIONARY:
                raise self._damaged(f"has a message of kind {kind} among its batches")

    def place(self, column: Field) -> tuple[int, int]:
        """How many nodes and buffers are before those of a column."""
        nodes = buffers = 0
        for one in self.fields:
            if one is column:
                break
            for part in one.walk():
                if not part.encoded and part.kind not in _BUFFERS:
                    raise UnsupportedError(
                        f"{self._store.path}: the column {one.name!r} has a type (number {part.kind} of "
                        f"Arrow) that cannot be passed over; save it with the column {column.name!r} alone"
                    )
                nodes += 1
                buffers += 2 if part.encoded else _BUFFERS[part.kind]
        return nodes, buffers

    def _message(self, at: int) -> tuple[int, _Table, int, int] | None:
        """The kind, header, first byte of the body and end of the message at a byte; None at the end."""
        store = self._store
        if at == store.size:  # a writer may leave the end mark out
            return None
        prefix = store.read(at, min(_AHEAD, store.size - at), "message of Arrow")
        if prefix[:4] != CONTINUATION or len(prefix) < 8:
            raise self._damaged(f"has no message at byte {at}, found {prefix[:8]!r}")
        size = int.from_bytes(prefix[4:8], "little")
        if not size:
            return None
        if size > MAX_METADATA:
            raise self._damaged(
                f"has a message of {size} bytes at byte {at}, expected at most {MAX_METADATA}"
            )
        if at + 8 + size > store.size:
            raise self._too_short(at + 8 + size, at)
        data = prefix[8 : 8 + size]
        if len(data) < size:
            data = store.read(at + 8, size, "message of Arrow")
        message = _Table(data, f"{store.path}: the message at byte {at}")
        body = at + 8 + size
        nbytes = message.number(3, "<q")
        if nbytes < 0:
            raise self._damaged(f"has a message of {nbytes} bytes at byte {at}")
        if body + nbytes > store.size:
            raise self._too_short(body + nbytes, at)
        header = message.table(2)
        if header is None:
            raise self._damaged(f"has a message without a header at byte {at}")
        return message.number(1, "<B"), header, body, body + nbytes

    def _batch(self, table: _Table, body: int, end: int) -> Batch:
        buffers = tuple((body + first, nbytes) for first, nbytes in table.pairs(2))
        if any(first < body or nbytes < 0 or first + nbytes > end for first, nbytes in buffers):
            raise self._damaged(f"has buffers outside of the record batch from byte {body} to {end}")
        rows = table.number(0, "<q")
        if rows < 0:
            raise self._damaged(f"has a record batch of {rows} rows")
        return Batch(rows, tuple(table.pairs(1)), buffers, table.table(3) is not None)

    def _field(self, table: _Table, depth: int) -> Field:
        self._fields += 1
        if self._fields > _MAX_FIELDS or depth > _MAX_DEPTH:
            raise self._damaged(f"has more than {_MAX_FIELDS} fields or {_MAX_DEPTH} levels of them")
        kind, details = table.number(2, "<B"), table.table(3)
        width = 0
        if details is not None and kind in (INT, FIXED_LIST):
            width = details.number(0, "<i")
            if kind == INT and details.number(1, "<B"):
                width = -width
        children = [self._field(child, depth + 1) for child in table.tables(5)]
        return Field(table.text(0), kind, width, table.table(4) is not None, children)

    def _damaged(self, problem: str) -> FormatError:
        return FormatError(f"{self._store.path}: {problem}: damaged, or not of Arrow; write it again")

    def _too_short(self, expected: int, at: int) -> FormatError:
        store = self._store
        return size_error(store.path, store.size, expected, f"the message of Arrow at byte {at}")


class _Table:
    """A table in a flatbuffer; an offset that leads out of it raises."""

    def __init__(self, data: bytes, where: str, at: int | None = None) -> None:
        self._data, self._where = data, where
        self._at = self._get("<I", 0) if at is None else at  # by default the root
        self._slots = self._at - self._get("<i", self._at)
        self._size = self._get("<H", self._slots)

    def number(self, slot: int, kind: str) -> int:
        """A number; 0 where the writer left it out."""
        at = self._slot(slot)
        return self._get(kind, at) if at else 0

    def table(self, slot: int) -> _Table | None:
        at = self._slot(slot)
        return _Table(self._data, self._where, at + self._get("<I", at)) if at else None

    def text(self, slot: int) -> str:
        first, size = self._vector(slot, 1)
        return self._data[first : first + size].decode("utf8", "replace")

    def tables(self, slot: int) -> list[_Table]:
        first, count = self._vector(slot, 4)
        places = range(first, first + 4 * count, 4)
        return [_Table(self._data, self._where, at + self._get("<I", at)) for at in places]

    def pairs(self, slot: int) -> Iterator[tuple[int, int]]:
        """A vector of structures of two integers of 64 bits."""
        first, count = self._vector(slot, 16)
        return struct.iter_unpack("<qq", self._data[first : first + 16 * count])

    def _vector(self, slot: int, itemsize: int) -> tuple[int, int]:
        at = self._slot(slot)
        if not at:
            return 0, 0
        at += self._get("<I", at)
        count = self._get("<I", at)
        self._check(at + 4, count * itemsize)
        return at + 4, count

    def _slot(self, slot: int) -> int:
        """Where a field is; 0 where the writer left it out."""
        place = 4 + 2 * slot
        offset = self._get("<H", self._slots + place) if place + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def _get(self, kind: str, at: int) -> int:
        self._check(at, struct.calcsize(kind))
        value: int = struct.unpack_from(kind, self._data, at)[0]
        return value

    def _check(self, at: int, nbytes: int) -> None:
        if not 0 <= at <= at + nbytes <= len(self._data):
            raise FormatError(
                f"{self._where} is damaged (an offset leads to byte {at} of {len(self._data)}); write "
                "the file again"
            )
