"""Local files behind the store's questions."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lowtide._io import pagecache, store
from lowtide.errors import NotAFileError, ReadError, WriteError
from tests.support.formats import write


def test_peek_follows_links(tmp_path: Path) -> None:
    write(tmp_path / "x.bin", b"x" * 1000)
    (tmp_path / "link.bin").symlink_to("x.bin")
    peek, link = (store.peek(str(tmp_path / name)) for name in ("x.bin", "link.bin"))
    assert (peek.size, len(peek.head), peek.link, link.link) == (1000, store.HEAD, False, True)
    assert peek.identity == link.identity
    with pytest.raises(NotAFileError) as caught:
        store.peek(str(tmp_path))
    assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, str(tmp_path))


def test_reading_a_header_caches_the_header_only(tmp_path: Path) -> None:
    """Read-ahead behind a header would stay, and start more of it under the random reads that follow."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(2**23))
    pagecache.drop(path)
    before = pagecache.resident(path)
    if before is None or before[0]:
        pytest.skip("this file system does not show, or does not empty, its page cache")
    store.peek(str(path))
    with store.opened(str(path)) as file:
        file.read(0, 2**16)
    cached = pagecache.resident(path)
    assert cached is not None
    assert cached[0] <= 2**17
    with store.opened(str(path)) as file:  # who reads on gets the kernel's read-ahead
        for offset in range(0, 2**22, 2**16):
            file.read(offset, 2**16)
    cached = pagecache.resident(path)
    assert cached is not None
    assert cached[0] > 2**22


def test_entry_distinguishes_files_folders_links_and_pipes(tmp_path: Path) -> None:
    write(tmp_path / "file", b"1234")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    kinds = {}
    for name in ("file", "pipe", "link", "dangling", "."):
        entry = store.entry(str(tmp_path / name), follow=False)
        kinds[name] = entry.kind if entry else None
    assert kinds == {"file": "file", "pipe": "other", "link": "link", "dangling": "link", ".": "folder"}
    assert store.entry(str(tmp_path / "dangling")) is None
    assert store.exists(str(tmp_path / "dangling"))
    assert store.is_file(str(tmp_path / "link"))
    assert not store.is_file(str(tmp_path / "pipe"))
    assert not store.exists(str(tmp_path / "file" / "below"))


def test_list_folder_and_glob_find_entries(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", b"")
    (tmp_path / "folder.bin").mkdir()
    listing = store.list_folder(str(tmp_path))
    assert (listing.files, listing.folders) == (["a.bin"], ["folder.bin"])
    assert store.glob(str(tmp_path / "*.bin")) == [str(tmp_path / "a.bin")]
    with pytest.raises(ReadError) as caught:
        store.list_folder(str(tmp_path / "missing"))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))


def test_creating_folder_below_file_raises(tmp_path: Path) -> None:
    store.make_folder(str(tmp_path / "a" / "b"))
    store.make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    write(tmp_path / "file", b"")
    with pytest.raises(WriteError) as caught:
        store.make_folder(str(tmp_path / "file" / "b"))
    assert caught.value.filename == str(tmp_path / "file" / "b")


def test_neighbours_list_a_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "7.idx", b"")
    calls: list[str] = []
    real = store.list_folder

    def counted(path: str) -> store.Listing:
        calls.append(path)
        return real(path)

    monkeypatch.setattr(store, "list_folder", counted)
    beside = store.Neighbours()
    there = [number for number in range(200) if beside.has(str(tmp_path / f"{number}.idx"))]
    assert (there, calls) == ([7], [str(tmp_path)])
