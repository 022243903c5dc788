"""Paths that are no readable regular file give lowtide's own errors, and nothing waits."""

from __future__ import annotations

import errno
import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lowtide._arrays.formats import inspect, members
from lowtide._io import store
from lowtide._io.store import opened
from lowtide.errors import (
    AccessError,
    ArgumentError,
    NotAFileError,
    NotFoundError,
    ReadError,
    TruncatedFileError,
    UnsupportedError,
)
from tests.support.formats import refused, write

BOTH = pytest.mark.parametrize("arguments", [{}, {"dtype": "u1"}], ids=["detected", "raw"])


@BOTH
def test_missing_file_raises(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with refused(NotFoundError, tmp_path / "no.npy", "no such file", "check the path"):
        inspect(tmp_path / "no.npy", **arguments)
    with refused(NotFoundError, "''", "the path is empty; pass the path"):
        inspect("", **arguments)


@BOTH
def test_folder_is_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with refused(NotAFileError, tmp_path, "is a folder", "pass a file inside it"):
        inspect(tmp_path, **arguments)


@BOTH
def test_path_through_file_raises(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = write(tmp_path / "a", b"x") / "b.npy"
    with refused(ReadError, path, "is a file, not a folder"):
        inspect(path, **arguments)


@BOTH
@pytest.mark.timeout(20)
def test_pipe_raises_without_blocking(tmp_path: Path, arguments: dict[str, Any]) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with refused(UnsupportedError, tmp_path / "pipe.npy", "a named pipe", "regular file", "copy its bytes"):
        inspect(tmp_path / "pipe.npy", **arguments)


@pytest.mark.timeout(20)
def test_file_replaced_by_pipe_raises_without_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = os.stat(write(tmp_path / "regular", b"x"))
    os.mkfifo(tmp_path / "pipe.npy")
    monkeypatch.setattr(os, "stat", lambda *_: regular)
    with refused(UnsupportedError, tmp_path / "pipe.npy", "a named pipe"):
        inspect(tmp_path / "pipe.npy")


def test_device_is_refused() -> None:
    with refused(UnsupportedError, "/dev/zero", "a character device", "regular file"):
        inspect("/dev/zero", dtype="u1")


def test_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket has room for some hundred characters
    with socket.socket(socket.AF_UNIX) as build:
        build.bind("s.npy")
        with refused(UnsupportedError, tmp_path / "s.npy", "a socket", "regular file"):
            inspect("s.npy")


@contextmanager
def nobody() -> Iterator[None]:
    """Without root's privileges, which know no permissions."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@BOTH
def test_unreadable_file_raises(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = write(tmp_path / "a.npy", b"x")
    path.chmod(0)
    importlib.import_module("lowtide._arrays.formats.raw")  # now, for nobody may not be allowed to
    with nobody(), refused(AccessError, path, "permission denied", "mode and owner"):
        inspect(path, **arguments)


@pytest.mark.parametrize("path", [b"a.npy", 3, None, 1.5, ["a.npy"]], ids=repr)
def test_invalid_path_types_raise(path: Any) -> None:
    with refused(ArgumentError, repr(path), "str or os.PathLike", "os.fsdecode"):
        inspect(path)


@pytest.mark.parametrize("path", ["a\0b.npy", "\ud800.npy"], ids=repr)
def test_impossible_file_name_raises(path: str) -> None:
    with refused(ArgumentError, repr(path), "file name"):
        inspect(path)


@pytest.mark.parametrize("path", ["ftp://host/x.npy", "file:///data/x.npy", "s3a://bucket/x", "hf+x://a"])
def test_unknown_address_scheme_raises(path: str) -> None:
    with refused(UnsupportedError, path.partition("//")[0] + "// is not an address", "pass s3://"):
        store.absolute(path)


def test_local_path_that_looks_like_address_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:").mkdir()
    (tmp_path / "odd:" / "x").touch()
    assert store.absolute("odd://x") == str(tmp_path / "odd:" / "x")


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.bin", bytes(4))
    monkeypatch.chdir(tmp_path)
    assert inspect("a.bin", "u1").path == str(tmp_path / "a.bin")
    assert inspect(Path("./a.bin"), "u1").path == str(tmp_path / "a.bin")


def test_empty_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npy", b"")
    for look in (inspect, members):
        with refused(TruncatedFileError, path, "empty or not yet written (0 bytes", "not yet written"):
            look(path)


def test_device_error_raises_read_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npy", b"x")
    with refused(ReadError, path, "I/O error", "check the disk"), opened(path):
        raise OSError(errno.EIO, "Input/output error")


def test_truncation_while_reading_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npy", bytes(100))
    with opened(path) as store:
        os.truncate(path, 60)
        assert len(store.read(0, 60)) == 60
        with refused(TruncatedFileError, path, "100 bytes", "got 60", "truncated while"):
            store.read(0, 100)
        with refused(TruncatedFileError, path, "101 bytes", "byte 100"):
            store.read(0, 101)
