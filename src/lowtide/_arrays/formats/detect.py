"""Which format a file has, by its content.

The name is no guide: OLMo's raw token files are called ``.npy``, and a model hub's cache drops every suffix.
This module knows the first bytes of each format so that only the one that is needed is imported.
"""

from __future__ import annotations

import os

from lowtide._arrays.formats import foreign
from lowtide._io.store import Store
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
"""A zip with members, and one without."""
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
SAFETENSORS_MAX_HEADER = 100_000_000
"""Bytes of the longest header by which a file is recognised: the limit of the reference implementation."""


def detect(store: Store) -> str:
    """The format's name: ``npy``, ``npz``, ``safetensors`` or ``hdf5``.

    >>> import tempfile
    >>> from lowtide._io.store import opened
    >>> with tempfile.NamedTemporaryFile(suffix=".bin") as f:
    ...     _ = f.write(NPY_MAGIC); f.flush()
    ...     with opened(f.name) as store:
    ...         detect(store)
    'npy'
    """
    if store.size == 0:
        raise TruncatedFileError(
            f"{store.path}: the file is empty (0 bytes), and the smallest that lowtide knows has 10: "
            f"cut short or not yet written; write it again"
        )
    head = store.read(0, min(store.size, 16), "first bytes")
    if head.startswith(NPY_MAGIC):
        return "npy"
    if head.startswith(ZIP_MAGICS):
        return "npz"
    suffix = os.path.splitext(store.path)[1].lower()
    # The suffix alone will do: the error is then about safetensors, which is what the file was meant to be.
    if suffix == ".safetensors" or _plausible_safetensors(head, store.size):
        return "safetensors"
    if _is_hdf5(store, head):
        return "hdf5"
    kind = foreign.identify(store)
    raise FormatError(
        _unknown(store.path, head, suffix) if kind is None else kind.message(store.path, tokens=False)
    )


def refuse_header(store: Store) -> None:
    """Raise for a file that says itself what it is, where its header would be read as raw data."""
    if store.size == 0:
        return
    head = store.read(0, min(store.size, 16), "first bytes")
    found = {
        "an NPY": head.startswith(NPY_MAGIC),
        "a zip or NPZ": head.startswith(ZIP_MAGICS),
        "an HDF5": head.startswith(HDF5_MAGIC),
        "a safetensors": _plausible_safetensors(head, store.size),
    }
    for name, is_one in found.items():
        if is_one:
            raise ArgumentError(
                f"{store.path}: is {name} file (it starts with {head[:9]!r}), and dtype= alone would read "
                "its header as data; leave dtype out, or pass offset= too: the first byte of the data, or 0 "
                "for all bytes"
            )


def _plausible_safetensors(head: bytes, size: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length <= min(SAFETENSORS_MAX_HEADER, size - 8)


def _is_hdf5(store: Store, head: bytes) -> bool:
    # A user block may come first, and the signature at byte 512, 1024, 2048, ...; MATLAB's files have one.
    offset = 512
    found = head.startswith(HDF5_MAGIC)
    while not found and offset + len(HDF5_MAGIC) <= store.size:
        found = store.read(offset, len(HDF5_MAGIC), "HDF5 signature") == HDF5_MAGIC
        offset *= 2
    return found


def _unknown(path: str, head: bytes, suffix: str) -> str:
    hint = ""
    if suffix == ".npy":
        hint = " (OLMo and Dolma name raw token files .npy: theirs is 'uint16' or 'uint32')"
    return (
        f"{path}: begins with {head[:8]!r}, and lowtide knows NPY ({NPY_MAGIC!r}), NPZ ({ZIP_MAGICS[0]!r}), "
        f"HDF5 ({HDF5_MAGIC!r}) and safetensors (8 bytes of length, then b'{{'); for a raw file pass its "
        f"dtype{hint}: lowtide.open({path!r}, dtype='uint16')"
    )
