"""safetensors: a length, a JSON header, the tensors one after another.

The rules are those of the reference implementation: tensors are in the order of their offsets, without a
hole or an overlap, and end where the file ends. So no byte is hidden and none is read twice.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from lowtide._arrays.formats.format import Arrays, Container
from lowtide._arrays.formats.layout import Layout, checked_shape, raw_call, size_error
from lowtide._io import jsonfiles
from lowtide._io.store import Store
from lowtide._printable import brief
from lowtide.errors import FormatError, UnsupportedError

MAX_RECOGNISED = 100_000_000
"""Bytes of the longest header by which a file is recognised: the limit of the reference implementation."""
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
    start: int
    stop: int


class Tensors(Arrays):
    """The tensors of one safetensors file."""

    def __init__(self, store: Store) -> None:
        self.store = store
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

    def locate(self, name: str) -> Layout:
        """Where the tensor ``name`` is."""
        tensor = self._tensors[name]
        offset = self._data + tensor.start
        if tensor.dtype not in DTYPES:
            raise UnsupportedError(self._no_numpy_dtype(name, tensor, offset))
        dtype: np.dtype[np.generic] = np.dtype(DTYPES[tensor.dtype])
        path, size = self.store.path, self.store.size
        return Layout(path, Safetensors.name, offset, dtype, tensor.shape, file_size=size, name=name)

    def _where(self, name: str) -> str:
        return f"{self.store.path}[{brief(name)}]"

    def _check_cover(self) -> None:
        position = 0
        for name, tensor in sorted(self._tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
            if tensor.start != position:
                problem = "overlaps the one before" if tensor.start < position else "leaves a hole before it"
                raise FormatError(
                    f"{self._where(name)}: the tensor {problem} (data_offsets start at {tensor.start}, "
                    f"expected {position}); write the file again"
                )
            position = tensor.stop
        if position != (size := self.store.size - self._data):
            what = f"the tensors of the safetensors header from byte {self._data}"
            raise size_error(self.store.path, size, position, what)

    def _no_numpy_dtype(self, name: str, tensor: _Tensor, offset: int) -> str:
        bits = _OTHER_BITS.get(tensor.dtype)
        if bits in (8, 16):
            raw, shape, content = f"uint{bits}", tensor.shape, "its bits"
        else:  # types smaller than a byte, and those that came after this was written
            raw, shape, content = "uint8", (tensor.stop - tensor.start,), "its bytes"
        return (
            f"{self._where(name)}: NumPy has no dtype for {brief(tensor.dtype)} (lowtide reads "
            f"{', '.join(DTYPES)}); open {content} as raw: {raw_call(self.store.path, raw, shape, offset)}"
        )


def _read_header(store: Store) -> tuple[dict[str, object], int]:
    """The JSON object, and the byte at which the data starts."""
    length: int = struct.unpack("<Q", store.read(0, 8, "safetensors header's length"))[0]
    if length > MAX_HEADER:
        raise FormatError(
            f"{store.path}: the safetensors header is too large ({length} bytes, expected at most "
            f"{MAX_HEADER}): damaged, or not a safetensors file; split it into files of fewer tensors, or "
            "pass dtype= and offset=0 if it is raw"
        )
    # The first byte tells before megabytes are read.
    if length < 2 or store.read(8, 1, "safetensors header") != b"{":
        start = store.read(8, min(length, store.size - 8, 8), "safetensors header")
        raise FormatError(
            f"{store.path}: not a safetensors header, or damaged ({start!r} in a header of {length} bytes, "
            "expected b'{' at byte 8); if the file is raw, pass dtype= and offset=0"
        )
    text = store.read(8, length, "safetensors header")
    header = jsonfiles.parse(text, store.path, "safetensors header")
    assert isinstance(header, dict)  # it starts with { and is valid
    return header, 8 + length


def _tensor(where: str, entry: object) -> _Tensor:
    """One entry of the header, checked on its own."""
    keys = ("dtype", "shape", "data_offsets")
    if not isinstance(entry, dict) or not all(key in entry for key in keys):
        raise jsonfiles.invalid(where, entry, f"an object with {', '.join(keys)}")
    dtype, shape, offsets = (entry[key] for key in keys)
    if not isinstance(dtype, str):
        raise jsonfiles.invalid(f"{where}: dtype", dtype, "a string such as 'F32'")
    if not isinstance(shape, list):
        raise jsonfiles.invalid(f"{where}: shape", shape, "a list of integers")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(offset) is int for offset in offsets)
        or not 0 <= offsets[0] <= offsets[1]
    ):
        raise jsonfiles.invalid(f"{where}: data_offsets", offsets, "two integers, 0 <= start <= stop")
    start, stop = offsets
    bits = np.dtype(DTYPES[dtype]).itemsize * 8 if dtype in DTYPES else _OTHER_BITS.get(dtype)
    checked = checked_shape(shape, max((bits or 8) // 8, 1), f"{where}: shape")
    # A type that is not known here cannot be measured; it is refused when it is asked for.
    if bits is not None and (total := math.prod(checked) * bits) != (stop - start) * 8:
        raise FormatError(
            f"{where}: shape {brief(checked)} of {dtype} takes {total / 8 if total % 8 else total // 8} "
            f"bytes, and data_offsets [{brief(start)}, {brief(stop)}] hold {brief(stop - start)}: damaged; "
            "write the file again"
        )
    return _Tensor(dtype, checked, start, stop)


class Safetensors(Container):
    """A file of the safetensors library."""

    name = "safetensors"
    title = "a safetensors"
    signature = "safetensors' 8 bytes of length and b'{'"

    def starts(self, head: bytes, size: int) -> bool:
        length = int.from_bytes(head[:8], "little")
        return head[8:9] == b"{" and 2 <= length <= min(MAX_RECOGNISED, size - 8)

    def recognises(self, store: Store) -> bool:
        # The suffix alone will do: the error is then about safetensors, which is what the file was meant to
        # be.
        return store.path.lower().endswith(".safetensors") or super().recognises(store)

    def open(self, store: Store) -> Arrays:
        return Tensors(store)
