"""The file formats of arrays that lowtide reads in place.

``inspect`` turns a path into a ``Layout``, ``members`` lists what a file holds. A file is recognised by its
content and not by its name: OLMo's raw token files are called ``.npy``, and a model hub's cache drops every
suffix. A file that comes with a dtype is raw, as for np.memmap.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy.typing as npt

from lowtide._arrays.formats import foreign
from lowtide._arrays.formats.format import Format
from lowtide._arrays.formats.hdf5 import HDF5
from lowtide._arrays.formats.layout import Layout, Member
from lowtide._arrays.formats.npy import NPY
from lowtide._arrays.formats.npz import NPZ
from lowtide._arrays.formats.raw import Raw
from lowtide._arrays.formats.safetensors import Safetensors
from lowtide._io.identity import SAMPLE, sample
from lowtide._io.store import Store, opened
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError

if TYPE_CHECKING:
    from lowtide._arrays.formats.raw import Order, Shape

__all__ = ["FORMATS", "Format", "Layout", "Member", "inspect", "members"]

FORMATS: list[Format] = [NPY(), NPZ(), Safetensors(), HDF5()]
"""The formats that are known by their content; the first that recognises a file gets it."""


def inspect(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    shape: Shape = None,
    offset: int | None = None,
    *,
    order: Order = "C",
    name: str | None = None,
) -> Layout:
    """Where the array of a file is: its offset, dtype, shape and order.

    A file with a ``dtype`` is raw, and ``shape``, ``offset`` and ``order`` are those of np.memmap. One of a
    known format is not taken as raw unless ``offset`` is given: its header is not data.

    >>> np.savez(tmp / "a.npz", x=np.zeros((3, 4), "f4"), y=np.arange(5))
    >>> layout = inspect(tmp / "a.npz", name="x")
    >>> layout.format, layout.dtype, layout.shape
    ('npz', dtype('float32'), (3, 4))
    """
    with opened(path) as store:
        if dtype is not None:
            if name is not None:
                raise ArgumentError(
                    f"{store.path}: name {name!r} was given together with dtype, and a raw file has no "
                    "members; leave out one of them"
                )
            if offset is None:
                _refuse_header(store)
            raw = Raw(dtype, shape, 0 if offset is None else offset, order)
            return _identified(store, raw, raw.inspect(store))
        if shape is not None or offset not in (None, 0) or order != "C":
            raise ArgumentError(
                f"{store.path}: shape, offset and order describe a raw file (got shape={shape!r}, "
                f"offset={offset!r}, order={order!r} without dtype); pass dtype too: "
                f"lowtide.open({store.path!r}, dtype=..., shape=..., offset=...)"
            )
        format = detect(store)
        return _identified(store, format, format.inspect(store, name))


def members(path: str | os.PathLike[str]) -> list[Member]:
    """Every array that a file lists, with its layout or with the reason why it cannot be read in place.

    >>> np.savez_compressed(tmp / "a.npz", x=np.zeros(3))
    >>> [member] = members(tmp / "a.npz")
    >>> member.name, member.layout, "np.savez instead" in member.reason
    ('x', None, True)
    """
    with opened(path) as store:
        format = detect(store)
        return [
            member
            if member.layout is None
            else replace(member, layout=_identified(store, format, member.layout))
            for member in format.members(store)
        ]


def detect(store: Store) -> Format:
    """The format of a file; a ``FormatError`` that says what else it is if it has none."""
    if store.size == 0:
        raise TruncatedFileError(
            f"{store.path}: empty or not yet written (0 bytes, expected 10 or more); write it again"
        )
    for format in FORMATS:
        if format.recognises(store):
            return format
    kind = foreign.identify(store)
    raise FormatError(_unknown(store) if kind is None else kind.message(store.path, tokens=False))


def _identified(store: Store, format: Format, layout: Layout) -> Layout:
    """The layout with the identity of its file, and with samples of its data where the format can grow."""
    identity = store.identity
    if format.grows and not identity.is_remote:
        length = min(SAMPLE, layout.nbytes)
        places = {layout.offset, layout.offset + layout.nbytes - length}
        samples = (sample(place, store.read(place, length)) for place in sorted(places))
        identity = identity._replace(samples=tuple(samples))
    return replace(layout, identity=identity)


def _refuse_header(store: Store) -> None:
    """Raise for a file of a known format, whose header would be read as raw data."""
    for format in FORMATS:
        if format.starts(store.head, store.size):
            raise ArgumentError(
                f"{store.path}: is {format.title} file (it starts with {store.head[:9]!r}), and dtype= alone "
                "would read its header as data; leave dtype out, or pass offset= too: the first byte of the "
                "data, or 0 for all bytes"
            )


def _unknown(store: Store) -> str:
    hint = ""
    if store.path.lower().endswith(".npy"):
        hint = " (OLMo and Dolma call raw token files .npy: theirs is 'uint16' or 'uint32')"
    signatures = ", ".join(format.signature for format in FORMATS)
    return (
        f"{store.path}: not a known format (starts with {store.head[:8]!r}, expected {signatures}); for a "
        f"raw file pass its dtype{hint}: lowtide.open({store.path!r}, dtype='uint16')"
    )
