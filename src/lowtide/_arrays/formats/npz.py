"""NPZ: a zip of NPY files. Members that are stored, as np.savez does, can be read in place.

``zipfile`` reads the directory at the archive's end. Where a member's bytes begin stands only in the local
header in front of them: its extra field differs from the directory's (np.savez adds a zip64 one there).
Checksums are not verified, for that would read the whole member.
"""

from __future__ import annotations

import bisect
import struct
import zipfile
from collections import Counter

from lowtide._arrays.formats import npy
from lowtide._arrays.formats.foreign import in_zip
from lowtide._arrays.formats.layout import Layout, shown
from lowtide._io.store import Store, Stream
from lowtide._printable import brief
from lowtide.errors import FormatError, TruncatedFileError, UnsupportedError

MAX_DIRECTORY = 4 * 2**20
"""Bytes of the largest directory that is read: some 60,000 members."""

_SIGNATURE = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s2xHH16xHH")  # signature, flags, method, length of the name, of the extra field
_ENCRYPTED = 0x1 | 0x40  # bit 0, and bit 6 for strong encryption
_PATCHED = 0x20  # bit 5: the bytes are a patch to other bytes
_UTF8 = 0x800
_METHODS = {8: "deflate", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}


class Archive:
    """The members of one NPZ file.

    >>> import tempfile
    >>> import numpy as np
    >>> from lowtide._io.store import opened
    >>> with tempfile.NamedTemporaryFile(suffix=".npz") as f:
    ...     np.savez(f, x=np.zeros((3, 4)), y=np.arange(5)); f.flush()
    ...     with opened(f.name) as store:
    ...         archive = Archive(store)
    ...         archive.names(), archive.locate("x").shape
    (['x', 'y'], (3, 4))
    """

    format = "npz"

    def __init__(self, store: Store) -> None:
        self._store = store
        try:
            archive = zipfile.ZipFile(_Directory(store))
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, OverflowError) as error:
            # The directory is the last thing that a zip's writer writes.
            raise FormatError(
                f"{store.path}: the zip's directory, expected at the end of its {store.size} bytes, cannot "
                f"be read ({error}): cut short, damaged or still being written; copy or write it again"
            ) from None
        self._directory_start: int = archive.start_dir
        # ZipInfo.is_dir would do, if it did not fail on an empty name.
        files = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
        self._entries = {entry.filename: entry for entry in files}
        self._starts = sorted({entry.header_offset for entry in archive.infolist()})
        self._copies = Counter(entry.filename for entry in files)

    def names(self) -> list[str]:
        """The arrays, as np.load names them: without ``.npy``."""
        return [name.removesuffix(".npy") for name in self._entries if name.endswith(".npy")]

    def canonical(self, name: str) -> str | None:
        """``name`` as ``names`` has it, or None if not there; what is no ``.npy`` goes by its whole name."""
        if name + ".npy" in self._entries:
            return name
        return name.removesuffix(".npy") if name in self._entries else None

    def empty(self) -> str:
        """The message for a file without arrays: mostly it is another kind of zip."""
        if not self._entries:
            return f"{self._store.path}: the zip holds no array, and 1 or more were expected"
        return in_zip(list(self._entries)).message(self._store.path, tokens=False)

    def locate(self, name: str) -> Layout:
        """Where the array ``name`` lies."""
        entry = self._entries[name + ".npy" if name + ".npy" in self._entries else name]
        where = f"{self._store.path}[{brief(name)}]"
        self._require_stored(entry, where)
        begin = self._data_begin(entry, where)
        end = begin + entry.file_size
        if end > self._directory_start:
            raise TruncatedFileError(
                f"{where}: {entry.file_size} bytes from byte {begin} would reach beyond the zip's directory "
                f"at byte {self._directory_start}: damaged; copy or write it again"
            )
        # Members that share bytes are a way to make a small file look huge.
        after = bisect.bisect_right(self._starts, entry.header_offset)
        if after < len(self._starts) and end > self._starts[after]:
            raise FormatError(
                f"{where}: {entry.file_size} bytes from byte {begin} would overlap the member at byte "
                f"{self._starts[after]}: damaged; copy or write it again"
            )
        header = npy.read_header(self._store, begin, end, where)
        expected = header.data_offset - begin + header.nbytes
        if expected != entry.file_size:
            kind = TruncatedFileError if expected > entry.file_size else FormatError
            raise kind(
                f"{where}: the NPY header promises {expected} bytes (shape {header.shape} of "
                f"{shown(header.dtype)}), and the zip holds {entry.file_size} for it: damaged; copy or write "
                "it again"
            )
        return Layout(
            self._store.path,
            self.format,
            header.data_offset,
            header.dtype,
            header.shape,
            header.fortran,
            self._store.size,
            name,
        )

    def _require_stored(self, entry: zipfile.ZipInfo, where: str) -> None:
        path = self._store.path
        if self._copies[entry.filename] > 1:
            raise FormatError(
                f"{where}: the zip has {self._copies[entry.filename]} members of this name, and 1 was "
                "expected; write it again with np.savez"
            )
        if entry.flag_bits & (_ENCRYPTED | _PATCHED):
            raise UnsupportedError(
                f"{where}: the member is encrypted (zip flags {entry.flag_bits:#x}), so it cannot be read in "
                "place; decrypt the archive (7z x, unzip) and open the .npy inside"
            )
        if entry.compress_type != zipfile.ZIP_STORED:
            method = _METHODS.get(entry.compress_type, "unknown")
            raise UnsupportedError(
                f"{where}: the member is compressed (zip method {entry.compress_type}, {method}) and only "
                "stored ones (method 0) can be read in place; write it with np.savez instead of "
                f"np.savez_compressed, or load it whole with np.load({path!r})"
            )
        if entry.compress_size != entry.file_size:
            raise FormatError(
                f"{where}: a stored member has one size, found {entry.compress_size} and {entry.file_size} "
                "in the zip's directory: damaged; copy or write it again"
            )

    def _data_begin(self, entry: zipfile.ZipInfo, where: str) -> int:
        """The first byte behind the local header, if that header and the directory agree."""
        offset = entry.header_offset
        # zipfile adds what stands before the archive; a directory that lies may make the sum negative.
        if not 0 <= offset <= self._directory_start - _LOCAL.size:
            raise FormatError(
                f"{where}: its local header is said to be at byte {offset}, expected between 0 and the zip's "
                f"directory at {self._directory_start}: damaged; copy or write it again"
            )
        signature: bytes
        flags: int
        method: int
        name_length: int
        extra_length: int
        signature, flags, method, name_length, extra_length = _LOCAL.unpack(
            self._store.read(offset, _LOCAL.size, "zip's local header")
        )
        name = self._store.read(offset + _LOCAL.size, name_length, "zip's local header")
        encoding = "utf8" if entry.flag_bits & _UTF8 else "cp437"
        expected = (_SIGNATURE, entry.compress_type, entry.orig_filename.encode(encoding, "replace"))
        if (signature, method, name) != expected or flags & (_ENCRYPTED | _PATCHED):
            raise FormatError(
                f"{where}: the local header at byte {offset} does not match the zip's directory: found "
                f"signature, method and name {brief((signature, method, name))}, expected {brief(expected)}: "
                "damaged; copy or write it again"
            )
        return offset + _LOCAL.size + name_length + extra_length


class _Directory(Stream):
    """The file as ``zipfile`` reads it, with a limit to what one read may allocate.

    A record of 22 bytes can ask for a read of any size, and a sparse file of a terabyte can make it true.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(self._store.size - self.tell(), 0)
        count = rest if size is None or size < 0 else min(size, rest)
        if count > MAX_DIRECTORY:
            raise FormatError(
                f"{self._store.path}: the zip's directory is too large ({count} bytes, expected at most "
                f"{MAX_DIRECTORY}): damaged, or too many members; split the archive or extract the .npy files"
            )
        return super().read(count)
