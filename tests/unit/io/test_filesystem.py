"""A kind of storage that is registered is listed, searched and inspected like local files."""

from __future__ import annotations

import errno
import fnmatch
import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from lowtide._arrays.formats import inspect, members
from lowtide._io import store
from lowtide._io.filesystem import HEAD, Entry, Filesystem, Listing, Peek, Store
from lowtide._io.identity import Identity
from lowtide._tokens.formats import find
from lowtide.errors import NotFoundError, TruncatedFileError, UnsupportedError, WriteError
from tests.support.formats import refused


class Object(Store):
    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(path, Identity(0, 0, len(data), 0))
        self._data = data

    def read_some(self, offset: int, count: int) -> bytes:
        return self._data[offset : offset + count]


class Bucket(Filesystem):
    """Objects by their keys; a folder is a prefix."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = {f"mem://{key}": data for key, data in objects.items()}

    def recognises(self, path: str) -> bool:
        return path.startswith("mem://")

    def absolute(self, path: str) -> str:
        return path

    def real(self, path: str) -> str:
        return path

    @contextmanager
    def open(self, path: str) -> Iterator[Store]:
        yield self._store(path)

    def peek(self, path: str) -> Peek:
        opened = self._store(path)
        return Peek(path, opened.read_some(0, HEAD), False, opened.identity)

    def entry(self, path: str, follow: bool) -> Entry | None:
        if path in self._objects:
            return Entry("file", self._store(path).identity)
        is_prefix = any(key.startswith(path.rstrip("/") + "/") for key in self._objects)
        return Entry("folder", Identity(0, 0, 0, 0)) if is_prefix else None

    def list_folder(self, path: str) -> Listing:
        prefix = path.rstrip("/") + "/"
        names = [key.removeprefix(prefix) for key in self._objects if key.startswith(prefix)]
        return Listing([name for name in names if "/" not in name], [])

    def glob(self, pattern: str) -> list[str]:
        return fnmatch.filter(self._objects, pattern)

    def make_folder(self, path: str) -> None:
        raise WriteError(errno.EROFS, "read-only", path)

    def _store(self, path: str) -> Object:
        if path not in self._objects:
            raise NotFoundError(errno.ENOENT, "no such object", path)
        return Object(path, self._objects[path])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    array = io.BytesIO()
    np.save(array, np.zeros((3, 4), "<f4"))
    tokens = np.arange(5, dtype="<u2").tobytes()
    objects = {
        "b/x.npy": array.getvalue(),
        "owt/train.bin": tokens,
        "owt/val.bin": tokens[:4],
        "b/empty": b"",
    }
    monkeypatch.setattr(store, "FILESYSTEMS", [Bucket(objects), *store.FILESYSTEMS])


@pytest.mark.usefixtures("bucket")
def test_arrays_of_a_registered_filesystem_are_inspected() -> None:
    layout = inspect("mem://b/x.npy")
    assert (layout.path, layout.offset, layout.shape) == ("mem://b/x.npy", 128, (3, 4))
    assert [member.layout for member in members("mem://b/x.npy")] == [layout]
    with refused(NotFoundError, "mem://b/y.npy"):
        inspect("mem://b/y.npy")
    with refused(TruncatedFileError, "mem://b/empty"):
        inspect("mem://b/empty")


@pytest.mark.usefixtures("bucket")
def test_corpora_of_a_registered_filesystem_are_found() -> None:
    tokens = find("mem://owt")
    assert (tokens.format, tokens.count, tokens.segments[0].path) == ("nanogpt", 5, "mem://owt/train.bin")
    assert find("mem://owt", split="val").count == 2
    assert find("mem://owt/*.bin", split="val").count == 2
    with refused(UnsupportedError, "mem://b/x.npy", "one axis"):
        find("mem://b/x.npy")


@pytest.mark.usefixtures("bucket")
def test_path_queries_use_registered_filesystem() -> None:
    assert store.is_folder("mem://owt")
    assert store.is_file("mem://owt/val.bin")
    assert not store.exists("mem://owt/test.bin")
    assert store.glob("mem://b/*") == ["mem://b/x.npy", "mem://b/empty"]
    with pytest.raises(WriteError) as caught:
        store.make_folder("mem://new")
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, "mem://new")


def test_stream_reads_and_seeks() -> None:
    stream = Object("x", b"one\ntwo\n").stream()
    assert (stream.readline(), stream.read(), stream.read()) == (b"one\n", b"two\n", b"")
    assert (stream.seek(-4, 2), stream.read(3)) == (4, b"two")
    with pytest.raises(OSError, match="before the start") as caught:
        stream.seek(-1)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "x")
