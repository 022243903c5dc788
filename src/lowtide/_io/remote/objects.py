"""Objects as stores, and buckets as a file system: a prefix is a folder, an ETag an identity."""

from __future__ import annotations

import errno
import fnmatch
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lowtide import errors
from lowtide._io.filesystem import HEAD, Entry, Filesystem, Found, Listing, Peek, Store
from lowtide._io.identity import Identity
from lowtide._io.remote import address, client, pool, requests
from lowtide._io.remote.address import Options, options_for, parse
from lowtide._io.remote.requests import Listed, Meta

if TYPE_CHECKING:
    from lowtide._io.reader import Reader

_BLOCK = 2**16  # bytes that are read at least, of a header or an index
_BLOCKS = 32  # blocks that an open object keeps
_WILDCARD = re.compile(r"[*?\[]")


class RemoteObject(Store):
    """An open object. Blocks that are read are kept while it is open.

    Formats read headers in small pieces, each of which would be a request.
    """

    def __init__(self, path: str, identity: Identity, front: bytes) -> None:
        super().__init__(path, identity)
        self._blocks: OrderedDict[int, bytes] = OrderedDict({0: front})

    def read_some(self, offset: int, count: int) -> bytes:
        stop = min(self.size, offset + count)
        if stop <= offset:
            return b""
        first, last = offset // _BLOCK, (stop - 1) // _BLOCK
        if last - first >= _BLOCKS // 2:
            return self._get(offset, stop)
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if missing:
            start = missing[0] * _BLOCK
            data = self._get(start, min(self.size, (missing[-1] + 1) * _BLOCK))
            for number in range(missing[0], missing[-1] + 1):
                at = number * _BLOCK - start
                self._blocks[number] = data[at : at + _BLOCK]
        parts = [self._blocks[number] for number in range(first, last + 1)]
        while len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        return b"".join(parts)[offset - first * _BLOCK : stop - first * _BLOCK]

    def _get(self, start: int, stop: int) -> bytes:
        identity = self.identity
        assert identity.options is not None
        meta, data = client.request(
            requests.get, self.path, identity.options, start, stop, identity.etag, identity.mtime_ns
        )
        requests.check_same(self.path, meta, identity.etag, identity.mtime_ns)
        return bytes(data)


class RemoteFilesystem(Filesystem):
    """Buckets of S3, GCS and Azure, and web servers."""

    appends = False
    lists_at_once = True

    def recognises(self, path: str) -> bool:
        return address.recognises(path)

    def absolute(self, path: str) -> str:
        return str(parse(path))

    def real(self, path: str) -> str:
        return path

    def expected(self, path: str, size: int) -> Identity:
        """Asking now would be a request; the first answer is compared instead."""
        return _identity(path, Meta(size, None, 0))

    @contextmanager
    def open(self, path: str) -> Iterator[Store]:
        identity, front = _look(path, _BLOCK)
        yield RemoteObject(path, identity, front)

    def peek(self, path: str) -> Peek:
        identity, front = _look(path, HEAD)
        return Peek(path, front, False, identity)

    def peek_all(self, paths: Sequence[str]) -> list[Peek]:
        """``peek`` of each, several at once, since each is a request."""
        if len(paths) == 1:
            return [self.peek(paths[0])]
        options = [options_for(parse(path)) for path in paths]
        peeks: dict[str, Peek] = {}

        def look(path: str, own: Options, _: pool.Batch) -> None:
            identity, front = _look(path, HEAD, own, client.perform)
            peeks[path] = Peek(path, front, False, identity)

        tasks = [partial(look, path, own) for path, own in zip(paths, options, strict=True)]
        pool.Batch(tasks).wait(options[0].deadline, paths[0])
        return [peeks[path] for path in paths]

    def entry(self, path: str, follow: bool) -> Entry | None:
        place = parse(path)
        options = options_for(place)
        meta = client.request(requests.head, path, options)
        if meta is not None:
            return Entry("file", _identity(path, meta))
        try:
            listed = client.request(requests.list_prefix, path, options, True, 1)
        except errors.LowtideError:
            if place.is_web:
                return None
            raise
        return Entry("folder", Identity(-1, 0, 0, 0)) if listed.objects else None

    def has_file(self, path: str) -> bool:
        return client.request(requests.head, path, options_for(parse(path))) is not None

    def list_folder(self, path: str) -> Listing:
        listed = self._listed(path)
        return Listing([name for name in listed.objects if name], listed.prefixes)

    def files_below(self, path: str) -> list[Found]:
        listed = self._listed(path, deep=True).objects
        return [Found(name, meta.size, meta.modified_ns) for name, meta in listed.items() if name]

    def glob(self, pattern: str) -> list[str]:
        """List below the part without wildcards and match; ``*`` does not match a slash, ``**`` does."""
        folder = _WILDCARD.split(pattern, maxsplit=1)[0].rpartition("/")[0]
        rest = pattern[len(folder) + 1 :]
        expression = re.compile(_translated(rest))
        listed = self._listed(folder, deep="/" in rest or "**" in rest)
        return [f"{folder}/{name}" for name in listed.objects if expression.fullmatch(name)]

    def delete(self, path: str) -> None:
        client.request(requests.delete, path, options_for(parse(path)))

    def make_folder(self, path: str) -> None:
        """Do nothing: a prefix exists if an object has it."""

    def open_reader(self, path: str, size: int, identity: Identity | None) -> Reader:
        from lowtide._io.remote.reader import RemoteReader  # and NumPy

        return RemoteReader(path, size, identity)

    def _listed(self, path: str, deep: bool = False) -> Listed:
        place = parse(path)
        try:
            listed: Listed = client.request(requests.list_prefix, path, options_for(place), deep)
        except errors.LowtideError:
            if not place.is_web:
                raise
            listed = Listed({}, [])
        if not any(listed) and place.is_web:
            raise errors.UnsupportedError(
                f"{path}: a web server does not list its files; pass the addresses of the files, or the "
                "address of a corpus.json"
            )
        return listed


def _look(
    path: str, nbytes: int, options: Options | None = None, request: Callable[..., Any] = client.request
) -> tuple[Identity, bytes]:
    """Identity and first bytes in one request; an object without any bytes takes another."""
    place = parse(path)
    options = options or options_for(place)
    if not place.key:
        raise errors.NotAFileError(errno.EISDIR, "is a bucket; pass an object in it", path)
    try:
        meta, front = request(requests.get, path, options, 0, nbytes, None, 0)
        return _identity(path, meta, options), bytes(front)
    except errors.TruncatedFileError:  # no byte is in range
        meta = request(requests.head, path, options)
        if meta is None:
            raise errors.missing(path, "no such object; check the bucket and the key") from None
        return _identity(path, meta, options), b""


def _identity(path: str, meta: Meta, options: Options | None = None) -> Identity:
    import hashlib

    # A number that no device has, and one for the address, so that two objects are two files.
    number = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=7).digest(), "little")
    options = options or options_for(parse(path))
    return Identity(-1, number, meta.size, meta.modified_ns, etag=meta.etag, options=options)


def _translated(pattern: str) -> str:
    """A regular expression for a pattern in which ``*`` and ``?`` do not match a slash."""
    parts = []
    for piece in re.split(r"(\*\*/?|\*|\?)", pattern):
        if piece in ("*", "?"):
            parts.append("[^/]" + ("*" if piece == "*" else ""))
        elif piece.startswith("**"):
            parts.append("(?:.*/)?" if piece.endswith("/") else ".*")
        else:
            parts.append(re.sub(r"^\(\?s:|\)\\[zZ]$", "", fnmatch.translate(piece)))
    return "".join(parts)
