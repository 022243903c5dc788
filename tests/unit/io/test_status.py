"""Status: what os.fstat says, at a lower cost."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide._io import status
from lowtide._io.status import Stamp, Status, of_result


@pytest.fixture(params=["known", "unknown", "without the function"])
def one(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Status, Path]]:
    """A status of an open file, with and without a ``struct stat`` that is known here."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    if request.param == "without the function":
        monkeypatch.setattr(status, "_FSTAT", None)
    if request.param == "unknown":
        monkeypatch.setattr(status, "_fields_of", lambda buffer: (1, 2, 3))
    fd = os.open(path, os.O_RDONLY)
    yield Status(fd), path
    os.close(fd)


def test_stamp_is_what_stat_reports(one: tuple[Status, Path]) -> None:
    subject, path = one
    assert subject.stamp() == of_result(os.stat(path)) == subject.stamp()
    for times in [(1, 999_999_999), (5, 2**33 * 10**9 + 7), (0, 0)]:
        os.utime(path, ns=times)
        assert subject.stamp() == (100, *divmod(times[1], 10**9))


def test_stamp_notices_every_change(one: tuple[Status, Path]) -> None:
    subject, path = one
    before = subject.stamp()
    os.truncate(path, 99)
    assert subject.stamp()[0] == 99 != before[0]
    os.utime(path, ns=(0, 1))
    assert subject.stamp() == (99, 0, 1)


def test_closed_descriptor_raises(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    subject = Status(fd)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        subject.stamp()


def test_threads_do_not_share_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    with open(path, "rb") as file:
        subject = Status(file.fileno())
        expected = subject.stamp()
        wrong: list[Stamp] = []

        def ask() -> None:
            wrong.extend(stamp for stamp in (subject.stamp() for _ in range(300)) if stamp != expected)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(subject._idle) <= 5
