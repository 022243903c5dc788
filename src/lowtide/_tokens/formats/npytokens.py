"""True ``.npy`` files of token ids, one axis each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide._arrays.formats import npy
from lowtide._io.store import Peek, opened
from lowtide._tokens.formats.index import agree
from lowtide._tokens.formats.tokens import Segment, Tokens
from lowtide.errors import ArgumentError, FormatError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def find(seen: list[Peek], dtype: npt.DTypeLike | None) -> Tokens:
    """Arrays in their order, all of one dtype.

    >>> import numpy as np
    >>> from lowtide._io.store import peek
    >>> np.save(tmp / "ids.npy", np.arange(5, dtype="u2"))
    >>> find([peek(str(tmp / "ids.npy"))], None).segments[0].offset
    128
    """
    # Shards of one corpus mostly have the same header to the byte, and parsing it is what takes time.
    known: dict[bytes, tuple[np.dtype[np.generic], int, int]] = {}
    first: np.dtype[np.generic] | None = None
    segments = []
    for one in seen:
        entry = known.get(one.head)
        if entry is None or entry[1] + entry[2] * entry[0].itemsize != one.size:
            entry = _locate(one.path)
            if entry[1] == len(one.head):
                known[one.head] = entry
        found, offset, count = entry
        if first is None:
            first = found
        elif found != first:
            raise ArgumentError(
                f"{one.path}: has dtype {found}, and {seen[0].path} has {first}: one corpus has one dtype; "
                "name those that belong together"
            )
        grows = one.identity._replace(samples=())
        size = offset + count * found.itemsize
        segments.append(Segment(one.path, offset, count, file_size=size, identity=grows))
    assert first is not None
    return Tokens("npy", agree(first, dtype, seen[0].path), tuple(segments))


def _locate(path: str) -> tuple[np.dtype[np.generic], int, int]:
    with opened(path) as store:
        layout = npy.NPY().inspect(store)
    if len(layout.shape) != 1:
        raise UnsupportedError(
            f"{path}: tokens lie along one axis, and this array has the shape {layout.shape}; save "
            "array.reshape(-1) if its rows follow each other"
        )
    if layout.dtype.kind not in "iu":
        raise FormatError(
            f"{path}: tokens are integers, and this array has dtype {layout.dtype}; save it with one such as "
            "array.astype('uint16')"
        )
    return layout.dtype, layout.offset, layout.shape[0]
