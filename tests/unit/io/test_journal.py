"""The journal of an append decides how much of a file may be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide._io.journal import journal_size, published_size
from lowtide.errors import AccessError, FormatError, TruncatedFileError
from tests.support.formats import refused, write


def test_file_without_journal_is_fully_published(tmp_path: Path) -> None:
    assert published_size(str(tmp_path / "a.bin"), 100) == 100


@pytest.mark.parametrize("size", [0, 99, 100])
def test_journal_limits_published_size(tmp_path: Path, size: int) -> None:
    write(tmp_path / "a.bin.appending", b'{"size": %d}' % size)
    assert published_size(str(tmp_path / "a.bin"), 100) == size


def test_file_shorter_than_its_journal_raises(tmp_path: Path) -> None:
    path = str(tmp_path / "a.bin")
    write(tmp_path / "a.bin.appending", b'{"size": 101}')
    with refused(TruncatedFileError, path, 101, 100, "truncated", "copy"):
        published_size(path, 100)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"{",
        b"12",
        b'{"size": -1}',
        b'{"size": 1.5}',
        b'{"size": true}',
        b"[" * 4000,
        b"\xff",
        b"9" * 4096,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_invalid_journal_raises(tmp_path: Path, content: bytes) -> None:
    journal = write(tmp_path / "a.bin.appending", content)
    with refused(FormatError, journal, '{"size": N}', repr(content[:12])[:-1], "delete this journal"):
        journal_size(str(tmp_path / "a.bin"))


def test_link_uses_journal_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "a.bin", bytes(100))
    write(tmp_path / "real" / "a.bin.appending", b'{"size": 60}')
    (tmp_path / "link.bin").symlink_to(tmp_path / "real" / "a.bin")
    assert published_size(str(tmp_path / "link.bin"), 100) == 60


def test_pipe_as_journal_is_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.bin.appending")
    assert journal_size(str(tmp_path / "a.bin")) is None


def test_unreadable_journal_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = write(tmp_path / "a.bin.appending", b'{"size": 60}')

    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", denied)
    with refused(AccessError, journal, "permission denied"):
        journal_size(str(tmp_path / "a.bin"))
