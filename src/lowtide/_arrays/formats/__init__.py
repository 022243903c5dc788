"""The file formats that lowtide reads in place.

``inspect`` turns a path into a ``Layout``, ``members`` lists what a file holds. A file is known by its first
bytes and not by its name, and a file that comes with a dtype is raw, as for np.memmap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lowtide._arrays.formats.detect import detect, refuse_header
from lowtide._arrays.formats.layout import Layout, Member
from lowtide._io.identity import SAMPLE, sample
from lowtide._io.store import Store, opened
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, MemberError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._arrays.formats.raw import Order, Shape

__all__ = ["Layout", "Member", "inspect", "members"]

_LISTED = 20  # members that an error names


class _Container(Protocol):
    """A file of several arrays."""

    format: str

    def names(self) -> list[str]: ...

    def canonical(self, name: str) -> str | None: ...

    def locate(self, name: str) -> Layout: ...

    def empty(self) -> str:
        """The message for a file without arrays."""


def inspect(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    shape: Shape = None,
    offset: int | None = None,
    *,
    order: Order = "C",
    name: str | None = None,
) -> Layout:
    """Where the array of a file lies: its offset, dtype, shape and order.

    With ``dtype`` the file is raw; without, it says itself what it is. One that does so is not taken as raw
    unless ``offset`` is given: its header is not data. ``name`` picks a member of an NPZ, safetensors or HDF5
    file and may be left out when there is only one.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.NamedTemporaryFile() as f:
    ...     np.savez(f, x=np.zeros((3, 4), "f4"), y=np.arange(5)); f.flush()
    ...     layout = inspect(f.name, name="x")
    ...     layout.format, layout.dtype, layout.shape
    ('npz', dtype('float32'), (3, 4))
    """
    with opened(path) as store:
        if dtype is not None:
            from lowtide._arrays.formats import raw

            if name is not None:
                raise ArgumentError(
                    f"{store.path}: name {name!r} was given together with dtype, and a file that is read as "
                    "raw has no members; leave out the one or the other"
                )
            if offset is None:
                refuse_header(store)
            layout = raw.locate(store, dtype, shape, 0 if offset is None else offset, order)
            return _identified(store, layout)
        if shape is not None or offset not in (None, 0) or order != "C":
            raise ArgumentError(
                f"{store.path}: shape, offset and order (got shape={shape!r}, offset={offset!r}, "
                f"order={order!r}) describe a raw file, and that needs dtype too: "
                f"lowtide.open({store.path!r}, dtype=..., shape=..., offset=...); without dtype the file is "
                "asked what it holds"
            )
        format = detect(store)
        if format == "npy":
            from lowtide._arrays.formats import npy

            if name is not None:
                raise MemberError(
                    f"{store.path}: is a single NPY array without members, got name={name!r}; leave it out"
                )
            return _identified(store, npy.locate(store))
        with _container(store, format) as container:
            return _identified(store, container.locate(_pick(store.path, container, name)))


def _identified(store: Store, layout: Layout) -> Layout:
    """The layout with the identity of its file, and with samples of its data where the format can grow."""
    identity = store.identity
    if layout.format in ("npy", "raw"):
        length = min(SAMPLE, layout.nbytes)
        places = {layout.offset, layout.offset + layout.nbytes - length}
        samples = (sample(place, store.read(place, length)) for place in sorted(places))
        identity = identity._replace(samples=tuple(samples))
    return replace(layout, identity=identity)


def members(path: str | os.PathLike[str]) -> list[Member]:
    """Every array that a file lists, with its layout or with the reason why it cannot be read in place.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.NamedTemporaryFile() as f:
    ...     np.savez_compressed(f, x=np.zeros(3)); f.flush()
    ...     [member] = members(f.name)
    >>> member.name, member.layout, "np.savez instead" in member.reason
    ('x', None, True)
    """
    with opened(path) as store:
        format = detect(store)
        if format == "npy":
            from lowtide._arrays.formats import npy

            return [_member(store, None, format, partial(npy.locate, store))]
        with _container(store, format) as container:
            return [
                _member(store, name, format, partial(container.locate, name)) for name in container.names()
            ]


def _member(store: Store, name: str | None, format: str, locate: Callable[[], Layout]) -> Member:
    try:
        return Member(name, format, layout=_identified(store, locate()))
    except (FormatError, UnsupportedError) as error:
        return Member(name, format, error=error)


@contextmanager
def _container(store: Store, format: str) -> Iterator[_Container]:
    # Imported here so that nobody waits for zipfile, json or h5py who does not need them.
    if format == "npz":
        from lowtide._arrays.formats import npz

        yield npz.Archive(store)
    elif format == "safetensors":
        from lowtide._arrays.formats import safetensors

        yield safetensors.Tensors(store)
    else:
        from lowtide._arrays.formats import hdf5

        with hdf5.Datasets(store) as datasets:
            yield datasets


def _pick(path: str, container: _Container, name: str | None) -> str:
    """The one member that is meant."""
    if name is None:
        names = container.names()
        if len(names) == 1:
            return names[0]
        if not names:
            raise MemberError(container.empty())
        raise MemberError(
            f"{path}: the {container.format} file holds {len(names)} arrays, and none was named: "
            f"{_listing(names)}; pick one, as in lowtide.open({path!r}, name={names[0]!r})"
        )
    if not isinstance(name, str):
        raise ArgumentError(f"{path}: name must be a str, got {name!r}")
    found = container.canonical(name)
    if found is None:
        import difflib

        names = container.names()
        close = difflib.get_close_matches(name, names[:10_000], n=3)
        meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
        raise MemberError(
            f"{path}: the {container.format} file has no array {brief(name)}{meant} "
            f"It holds {len(names)}: {_listing(names)}"
        )
    return found


def _listing(names: list[str]) -> str:
    shown = ", ".join(brief(name) for name in names[:_LISTED])
    return shown + (f", … and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
