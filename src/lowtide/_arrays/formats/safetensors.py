"""safetensors: a length, a JSON header, the tensors one behind the other.

The rules are those of the reference implementation: tensors lie in the order of their offsets, without a
hole or an overlap, and end where the file ends. So no byte is hidden and none is read twice.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from lowtide._arrays.formats.layout import Layout, checked_shape, raw_call
from lowtide._io import jsonfiles
from lowtide._io.store import Store
from lowtide._printable import brief
from lowtide.errors import FormatError, TruncatedFileError, UnsupportedError

MAX_HEADER = 16 * 2**20
"""Bytes of the largest header that is read, some 130,000 tensors. The safetensors package takes 100 MB, which
would need a gigabyte of memory and half a minute; the headers of the largest models have a few megabytes."""

DTYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
# Bits of the types that NumPy does not have.
_OTHER_BITS = {
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Tensors:
    """The tensors of one safetensors file.

    >>> import tempfile
    >>> from lowtide._io.store import opened
    >>> header = b'{"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}'
    >>> with tempfile.NamedTemporaryFile() as f:
    ...     _ = f.write(len(header).to_bytes(8, "little") + header + bytes(24)); f.flush()
    ...     with opened(f.name) as store:
    ...         tensors = Tensors(store)
    >>> tensors.names(), tensors.locate("w").shape, tensors.locate("w").offset
    (['w'], (2, 3), 73)
    """

    format = "safetensors"

    def __init__(self, store: Store) -> None:
        self._path = store.path
        self._size = store.size
        header, self._data = _read_header(store)
        self._tensors = {
            name: _tensor(self._where(name), entry)
            for name, entry in header.items()
            if name != "__metadata__"
        }
        self._check_cover()

    def names(self) -> list[str]:
        """The tensors, in the order of the header."""
        return list(self._tensors)

    def canonical(self, name: str) -> str | None:
        """``name``, or None if there is no such tensor."""
        return name if name in self._tensors else None

    def empty(self) -> str:
        """The message for a file without tensors."""
        return f"{self._path}: the safetensors file holds no array, and 1 or more were expected"

    def locate(self, name: str) -> Layout:
        """Where the tensor ``name`` lies."""
        tensor = self._tensors[name]
        offset = self._data + tensor.begin
        if tensor.dtype not in DTYPES:
            raise UnsupportedError(self._no_numpy_dtype(name, tensor, offset))
        dtype: np.dtype[np.generic] = np.dtype(DTYPES[tensor.dtype])
        return Layout(self._path, self.format, offset, dtype, tensor.shape, file_size=self._size, name=name)

    def _where(self, name: str) -> str:
        return f"{self._path}[{brief(name)}]"

    def _check_cover(self) -> None:
        position = 0
        for name, tensor in sorted(self._tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
            if tensor.begin != position:
                problem = "overlaps the one before" if tensor.begin < position else "leaves a hole before it"
                raise FormatError(
                    f"{self._where(name)}: data_offsets begin at {tensor.begin} and {position} was expected, "
                    f"so the tensor {problem}: damaged; write the file again"
                )
            position = tensor.end
        found = self._size - self._data
        if position != found:
            kind = TruncatedFileError if position > found else FormatError
            raise kind(
                f"{self._path}: the safetensors header promises {position} bytes of tensors from byte "
                f"{self._data}, and the file has {found}: cut short, damaged or still being written; copy or "
                "write it again"
            )

    def _no_numpy_dtype(self, name: str, tensor: _Tensor, offset: int) -> str:
        bits = _OTHER_BITS.get(tensor.dtype)
        if bits in (8, 16):
            raw, shape, content = f"uint{bits}", tensor.shape, "its bits"
        else:  # types smaller than a byte, and those that came after this was written
            raw, shape, content = "uint8", (tensor.end - tensor.begin,), "its bytes"
        return (
            f"{self._where(name)}: NumPy has no dtype for {brief(tensor.dtype)} (lowtide reads "
            f"{', '.join(DTYPES)}); open {content} as raw: {raw_call(self._path, raw, shape, offset)}"
        )


def _read_header(store: Store) -> tuple[dict[str, object], int]:
    """The JSON object, and the byte at which the data begins."""
    length: int = struct.unpack("<Q", store.read(0, 8, "safetensors header's length"))[0]
    if length > MAX_HEADER:
        raise FormatError(
            f"{store.path}: the safetensors header is too large ({length} bytes, expected at most "
            f"{MAX_HEADER}): damaged, or not a safetensors file; split it into files of fewer tensors, or "
            "pass dtype= and offset=0 if it is raw"
        )
    # The first byte tells before megabytes are read.
    if length < 2 or store.read(8, 1, "safetensors header") != b"{":
        found = store.read(8, min(length, store.size - 8, 8), "safetensors header")
        raise FormatError(
            f"{store.path}: a safetensors header begins with b'{{' at byte 8, found {found!r} in a header "
            f"of {length} bytes: damaged, or not a safetensors file; if it is raw, pass dtype= and "
            "offset=0"
        )
    text = store.read(8, length, "safetensors header")
    header = jsonfiles.parse(text, store.path, "safetensors header")
    assert isinstance(header, dict)  # it begins with { and is valid
    return header, 8 + length


def _tensor(where: str, entry: object) -> _Tensor:
    """One entry of the header, checked on its own."""
    keys = ("dtype", "shape", "data_offsets")
    if not isinstance(entry, dict) or not all(key in entry for key in keys):
        raise FormatError(f"{where}: a tensor needs {', '.join(keys)} in the header, found {brief(entry)}")
    dtype, shape, offsets = (entry[key] for key in keys)
    if not isinstance(dtype, str):
        raise FormatError(f"{where}: dtype must be a string such as 'F32', found {brief(dtype)}")
    if not isinstance(shape, list):
        raise FormatError(f"{where}: shape must be a list of integers, found {brief(shape)}")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(offset) is int for offset in offsets)
        or not 0 <= offsets[0] <= offsets[1]
    ):
        raise FormatError(
            f"{where}: data_offsets must be two integers, 0 <= begin <= end, found {brief(offsets)}"
        )
    begin, end = offsets
    bits = np.dtype(DTYPES[dtype]).itemsize * 8 if dtype in DTYPES else _OTHER_BITS.get(dtype)
    checked = checked_shape(shape, max((bits or 8) // 8, 1), f"{where}: shape")
    # A type that is not known here cannot be measured; it is refused when it is asked for.
    if bits is not None and (total := math.prod(checked) * bits) != (end - begin) * 8:
        raise FormatError(
            f"{where}: shape {brief(checked)} of {dtype} takes {total / 8 if total % 8 else total // 8} "
            f"bytes, and data_offsets [{brief(begin)}, {brief(end)}] hold {brief(end - begin)}: damaged; "
            "write the file again"
        )
    return _Tensor(dtype, checked, begin, end)
