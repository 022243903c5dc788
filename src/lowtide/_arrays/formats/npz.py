"""NPZ: a zip of NPY files. Members that are stored, as np.savez does, can be read in place.

``zipfile`` reads the directory at the archive's end. Where a member's bytes start is only in the local
header before them: its extra field differs from the directory's (np.savez adds a zip64 one there).
Checksums are not verified, since that would read the whole member.
"""

from __future__ import annotations

import bisect
import struct
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from lowtide._arrays.formats import npy
from lowtide._arrays.formats.foreign import in_zip
from lowtide._arrays.formats.format import Arrays, Container
from lowtide._arrays.formats.layout import Layout, shown, size_error
from lowtide._io.store import Store, Stream
from lowtide._printable import brief
from lowtide.errors import FormatError, TruncatedFileError, UnsupportedError

if TYPE_CHECKING:
    import zipfile

MAX_DIRECTORY = 4 * 2**20
"""Bytes of the largest directory that is read: some 60,000 members."""

_SIGNATURE = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s2xHH16xHH")  # signature, flags, method, length of the name, of the extra field
_Local = tuple[bytes, int, int, int, int]
_ENCRYPTED = 0x1 | 0x40  # bit 0, and bit 6 for strong encryption
_PATCHED = 0x20  # bit 5: the bytes are a patch to other bytes
_UTF8 = 0x800
_STORED = 0
_METHODS = {8: "deflate", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}


class Archive(Arrays):
    """The members of one NPZ file."""

    def __init__(self, store: Store) -> None:
        import zipfile  # which takes a while

        self.store = store
        try:
            archive = zipfile.ZipFile(_Directory(store))
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, OverflowError) as error:
            # The directory is the last thing that a zip's writer writes.
            raise FormatError(
                f"{store.path}: the zip's directory is truncated, damaged or still to be written ({error}, "
                f"expected at the end of {store.size} bytes); copy or write it again"
            ) from None
        self._directory_start: int = archive.start_dir
        # ZipInfo.is_dir would do, if it did not fail on an empty name.
        files = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
        self._entries = {entry.filename: entry for entry in files}
        self._starts = sorted({entry.header_offset for entry in archive.infolist()})
        self._copies = Counter(entry.filename for entry in files)

    def names(self) -> list[str]:
        """The arrays, by the names of np.load: without ``.npy``."""
        return [name.removesuffix(".npy") for name in self._entries if name.endswith(".npy")]

    def canonical(self, name: str) -> str | None:
        """``name`` as ``names`` has it, or None; a member that is not called ``.npy`` has its whole name."""
        if name + ".npy" in self._entries:
            return name
        return name.removesuffix(".npy") if name in self._entries else None

    def empty(self) -> str:
        """The message for a file without arrays: mostly it is another kind of zip."""
        if not self._entries:
            return super().empty()
        return in_zip(list(self._entries)).message(self.store.path, tokens=False)

    def locate(self, name: str) -> Layout:
        """Where the array ``name`` is."""
        entry = self._entries[name + ".npy" if name + ".npy" in self._entries else name]
        where = f"{self.store.path}[{brief(name)}]"
        self._require_stored(entry, where)
        start = self._data_start(entry, where)
        end = start + entry.file_size
        if end > self._directory_start:
            raise TruncatedFileError(
                f"{where}: damaged ({entry.file_size} bytes from byte {start} reach beyond the zip's "
                f"directory at byte {self._directory_start}); copy or write it again"
            )
        # Members that share bytes are a way to make a small file look huge.
        after = bisect.bisect_right(self._starts, entry.header_offset)
        if after < len(self._starts) and end > self._starts[after]:
            raise FormatError(
                f"{where}: {entry.file_size} bytes from byte {start} would overlap the member at byte "
                f"{self._starts[after]}: damaged; copy or write it again"
            )
        header = npy.read_header(self.store, start, end, where)
        expected = header.offset - start + header.nbytes
        if expected != entry.file_size:
            what = f"shape {header.shape} of {shown(header.dtype)}"
            raise size_error(where, entry.file_size, expected, what)
        return replace(header, format=NPZ.name, name=name)

    def _require_stored(self, entry: zipfile.ZipInfo, where: str) -> None:
        path = self.store.path
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
        if entry.compress_type != _STORED:
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

    def _data_start(self, entry: zipfile.ZipInfo, where: str) -> int:
        """The first byte behind the local header, if that header and the directory agree."""
        offset = entry.header_offset
        # zipfile adds what comes before the archive; a damaged directory may make the sum negative.
        if not 0 <= offset <= self._directory_start - _LOCAL.size:
            raise FormatError(
                f"{where}: its local header is at byte {offset} by the directory, expected between 0 and the "
                f"zip's directory at {self._directory_start}: damaged; copy or write it again"
            )
        local = self.store.read(offset, _LOCAL.size, "zip's local header")
        signature, flags, method, name_length, extra_length = cast("_Local", _LOCAL.unpack(local))
        name = self.store.read(offset + _LOCAL.size, name_length, "zip's local header")
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


class NPZ(Container):
    """A file of ``np.savez``."""

    name = "npz"
    title = "a zip or NPZ"
    signature = f"NPZ's {_SIGNATURE!r}"
    magics = (_SIGNATURE, b"PK\x05\x06")  # a zip with members, and one without

    def open(self, store: Store) -> Arrays:
        return Archive(store)
