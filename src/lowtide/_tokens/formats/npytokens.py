"""True ``.npy`` files of token ids, one axis each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide._arrays.formats import npy
from lowtide._io.store import Neighbours, Peek, opened
from lowtide._tokens.formats.index import agree, check_same
from lowtide._tokens.formats.tokens import Segment, Selection, TokenFormat, Tokens
from lowtide.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np


class NPYTokens(TokenFormat):
    """Arrays in their order, all of one dtype."""

    name = "npy"
    suffixes = (".npy",)

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return file.head.startswith(npy.MAGIC)

    def find(self, selection: Selection) -> Tokens:
        # Shards of one corpus mostly have the same header to the byte, and parsing it is what takes time.
        known: dict[bytes, tuple[np.dtype[np.generic], int, int]] = {}
        first: np.dtype[np.generic] | None = None
        segments = []
        for file in selection.files:
            entry = known.get(file.head)
            if entry is None or entry[1] + entry[2] * entry[0].itemsize != file.size:
                entry = _locate(file.path)
                if entry[1] == len(file.head):
                    known[file.head] = entry
            dtype, offset, count = entry
            first = first or dtype
            check_same("dtype", file.path, dtype, selection.path, first)
            growing = file.identity._replace(samples=())
            size = offset + count * dtype.itemsize
            segments.append(Segment(file.path, offset, count, file_size=size, identity=growing))
        assert first is not None
        return Tokens(self.name, agree(first, selection.dtype, selection.path), tuple(segments))


def _locate(path: str) -> tuple[np.dtype[np.generic], int, int]:
    with opened(path) as store:
        layout = npy.NPY().inspect(store)
    if len(layout.shape) != 1:
        raise UnsupportedError(
            f"{path}: tokens have one axis, and this array has the shape {layout.shape}; save "
            "array.reshape(-1) if its rows follow each other"
        )
    if layout.dtype.kind not in "iu":
        raise FormatError(
            f"{path}: tokens are integers, and this array has dtype {layout.dtype}; save it with one such as "
            "array.astype('uint16')"
        )
    return layout.dtype, layout.offset, layout.shape[0]
