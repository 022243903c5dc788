"""NPY: a magic, a version, a header in Python syntax, the data.

Versions 1.0 and 2.0 differ in the width of the header's length, 3.0 in its encoding. The format is
described in NEP 1 and in ``numpy.lib.format``.
"""

from __future__ import annotations

import ast
import re
import struct
import warnings
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.format import Format
from lowtide._arrays.formats.layout import Layout, checked_shape, differs, raw_call, shown, size_error
from lowtide._io.journal import journal_size
from lowtide._io.jsonfiles import invalid
from lowtide._io.store import Store
from lowtide._printable import brief
from lowtide.errors import FormatError, MemberError, TruncatedFileError, UnsupportedError

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
"""np.load's own limit: Python's parser is not made for longer texts from strangers."""
GROWTH_DIGITS = 21
"""Digits that the number of rows may grow to in place: those of 2**64 and one more, as NumPy leaves."""

_ALIGNMENT = 64
_LENGTHS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}
_KEYS = {"descr", "fortran_order", "shape"}
# What a type string may look like. NumPy's own parser takes far more ("(2,)f8,O", "\0"), and none of it is
# ever written by np.save.
_TYPE = re.compile(r"[<>|=]?(\?|[A-Za-z][A-Za-z0-9_]*)(\[[0-9A-Za-z/]+\])?")
# Python 2 wrote long integers as 3L. Strings match first so that a field named "3L" is left alone. What has
# no closing quote or no L matches too: so each character is looked at once, and not once per start.
_PYTHON2_LONG = re.compile(r"('(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?)|(\d+)(?:L\b)?")


class NPY(Format):
    """A file of ``np.save``."""

    name = "npy"
    title = "an NPY"
    signature = f"NPY's {MAGIC!r}"
    magics = (MAGIC,)
    grows = True

    def inspect(self, store: Store, name: str | None = None) -> Layout:
        if name is not None:
            raise MemberError(
                f"{store.path}: is a single NPY array without members, got name={name!r}; leave it out"
            )
        layout = read_header(store)
        end = layout.offset + layout.nbytes
        if store.size < end:
            what = f"shape {layout.shape} of {shown(layout.dtype)} from byte {layout.offset}"
            raise size_error(store.path, store.size, end, what)
        # Rows that the header does not count are not a fault while the writer is adding them: it counts last.
        if store.size > end and journal_size(store.path) is None:
            shape = layout.shape[::-1] if layout.fortran else layout.shape
            order = ", its axes reversed since it is in Fortran order" if layout.fortran else ""
            raise FormatError(
                f"{store.path}: still being written, or several arrays in one file ({store.size} bytes, "
                f"{store.size - end} bytes more than the {end} of its header); to read the first array as it "
                f"is{order}: {raw_call(store.path, layout.dtype, shape, layout.offset)}"
            )
        return replace(layout, file_size=end)


def read_header(store: Store, base: int = 0, end: int | None = None, where: str | None = None) -> Layout:
    """The array whose NPY header starts at byte ``base`` and ends before ``end``.

    ``where`` is the array in errors, by default the path.
    """
    where = store.path if where is None else where
    end = store.size if end is None else end
    start = _take(store, base, 8, end, where)
    if start[:6] != MAGIC:
        raise FormatError(
            f"{where}: not an NPY array (starts with {start[:6]!r}, expected {MAGIC!r}); save it with np.save"
        )
    version = (start[6], start[7])
    if version not in _LENGTHS:
        raise FormatError(
            f"{where}: unknown NPY version ({version[0]}.{version[1]}, expected 1.0, 2.0 or 3.0); save it "
            "again with a current np.save"
        )
    width = struct.calcsize(_LENGTHS[version])
    length: int = struct.unpack(_LENGTHS[version], _take(store, base + 8, width, end, where))[0]
    text = base + 8 + width  # its first byte
    if length > MAX_HEADER:
        raise FormatError(
            f"{where}: the NPY header is too long ({length} bytes, expected at most {MAX_HEADER} as in "
            "np.load, since a longer one may be an attack); if you trust the file, open its data as raw: "
            f"lowtide.open({store.path!r}, dtype=..., offset={text + length})"
        )
    raw = _take(store, text, length, end, where)
    descr, fortran, shape = _parse(raw, version, where)
    dtype = _dtype(descr, where)
    checked = checked_shape(shape, dtype.itemsize, f"{where}: the NPY header's shape")
    fortran = fortran and differs(checked)
    return Layout(store.path, NPY.name, text + length, dtype, checked, fortran, store.size)


def make_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """The header of a C-ordered NPY file, which has the same length for any number of rows.

    So a writer can replace the header of a shorter array by that of a longer one and leave the data alone.

    >>> header = make_header("<f4", (0, 256))
    >>> len(header), len(make_header("<f4", (10**15, 256)))
    (128, 128)
    """
    dtype = np.dtype(dtype)
    _refuse_objects(dtype, "the array to write")
    if dtype.itemsize == 0:
        raise UnsupportedError(
            f"dtype {dtype} has elements of 0 bytes, and an array of them has no data to write"
        )
    shape = checked_shape(shape, dtype.itemsize, "the shape to write")
    descr = _descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if shape:
        text += " " * (GROWTH_DIGITS - len(repr(shape[0])))
    try:
        version, encoded = (1, 0), text.encode("latin1")
    except UnicodeEncodeError:
        version, encoded = (3, 0), text.encode("utf8")
    prefix = len(MAGIC) + 2 + struct.calcsize(_LENGTHS[version])
    encoded += b" " * (-(prefix + len(encoded) + 1) % _ALIGNMENT) + b"\n"
    if len(encoded) > MAX_HEADER:
        raise UnsupportedError(
            f"the NPY header of a dtype with {len(dtype.names or ())} fields would be {len(encoded)} bytes "
            f"long, and np.load reads at most {MAX_HEADER}; use fewer or shorter field names"
        )
    return MAGIC + bytes(version) + struct.pack(_LENGTHS[version], len(encoded)) + encoded


def _take(store: Store, offset: int, count: int, end: int, where: str) -> bytes:
    if offset + count > end:
        raise TruncatedFileError(
            f"{where}: truncated or still being written (the NPY header needs bytes {offset} to "
            f"{offset + count}, the data ends at byte {end}); copy or write it again"
        )
    return store.read(offset, count, "NPY header")


def _parse(raw: bytes, version: tuple[int, int], where: str) -> tuple[object, bool, tuple[object, ...]]:
    try:
        text = raw.decode("utf8" if version == (3, 0) else "latin1")
        header = _literal(text, python2=version != (3, 0))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, Warning) as error:
        # The parser says MemoryError for what is nested too deep, with plenty of memory left.
        raise FormatError(
            f"{where}: the NPY header is not a Python literal ({type(error).__name__}: {brief(raw)}, "
            "expected {'descr': ..., 'fortran_order': ..., 'shape': ...}); copy or write it again"
        ) from None
    if not isinstance(header, dict) or header.keys() != _KEYS:
        content = list(header) if isinstance(header, dict) else header
        raise invalid(f"{where}: the NPY header", content, f"a dict with the keys {sorted(_KEYS)}")
    fortran, shape = header["fortran_order"], header["shape"]
    if not isinstance(fortran, bool):
        raise invalid(f"{where}: fortran_order in the NPY header", fortran, "True or False")
    if not isinstance(shape, tuple):
        raise invalid(f"{where}: shape in the NPY header", shape, "a tuple of integers")
    return header["descr"], fortran, shape


def _literal(text: str, python2: bool) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # np.save writes nothing that Python warns of
        try:
            return ast.literal_eval(text)
        except SyntaxError:
            if not python2:
                raise
        return ast.literal_eval(_PYTHON2_LONG.sub(lambda match: match[1] or match[2], text))


def _dtype(descr: object, where: str) -> np.dtype[np.generic]:
    try:
        _check_descr(descr)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dtype = np.lib.format.descr_to_dtype(descr)  # type: ignore[arg-type]
    except (ValueError, TypeError, SyntaxError, RecursionError, OverflowError, MemoryError, Warning) as error:
        raise FormatError(
            f"{where}: descr in the NPY header is not a dtype that np.save writes, found {brief(descr)} "
            f"({brief(str(error))}); expected one such as '<f4' or [('x', '<f4'), ('y', '<i8')]"
        ) from None
    _refuse_objects(dtype, where)
    if dtype.itemsize == 0:
        raise UnsupportedError(
            f"{where}: dtype {shown(dtype)} has elements of 0 bytes, so that there is nothing to read; use "
            "np.load"
        )
    return dtype


def _check_descr(descr: object, nested: bool = False) -> None:
    """Refuse what ``descr_to_dtype`` was never meant to see: it would make a dtype of a dict's keys."""
    if isinstance(descr, str):
        if not _TYPE.fullmatch(descr):
            raise ValueError(f"{descr!r} is not a type string")
    elif isinstance(descr, list):
        for field in descr:
            if not isinstance(field, tuple) or len(field) not in (2, 3):
                raise ValueError("a field is (name, type) or (name, type, shape)")
            title = field[0] if isinstance(field[0], tuple) else ("", field[0])
            if len(title) != 2 or not all(isinstance(part, str) for part in title):
                raise ValueError("a field's name is a string or (title, name)")
            _check_descr(field[1], nested=True)
    elif nested and isinstance(descr, tuple) and len(descr) == 2 and isinstance(descr[1], tuple):
        # A subarray of subarrays. At the top it cannot be: the shape of an array takes it in.
        _check_descr(descr[0], nested=True)
    else:
        raise ValueError("a type is a string or a list of fields")


def _refuse_objects(dtype: np.dtype[np.generic], where: str) -> None:
    if dtype.hasobject:
        raise UnsupportedError(
            f"{where}: dtype {shown(dtype)} holds Python objects, which NumPy stores as a pickle, and a "
            "pickle from a stranger's file may run any code, so lowtide never reads one; if you trust the "
            "file, load it with np.load(..., allow_pickle=True) and save it again with a numeric or "
            "fixed-width dtype"
        )


def _descr(dtype: np.dtype[np.generic]) -> object:
    """The description of ``dtype`` for the header; an error if it would lose something."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # metadata is not saved; it does not change a byte either
            descr = np.lib.format.dtype_to_descr(dtype)
            same = np.lib.format.descr_to_dtype(descr) == dtype
    except (ValueError, TypeError):
        same = False
    if not same:
        raise UnsupportedError(
            f"dtype {dtype} cannot be written to an NPY header without loss; "
            f"write a view of it, such as array.view('u{dtype.itemsize}'), or put its fields in order"
        )
    return descr
