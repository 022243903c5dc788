"""Names in an index file: none leads out of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._tokens.formats import index
from lowtide._tokens.formats.index import Inside, in_order, read_json, token_dtype
from lowtide.errors import ArgumentError, FormatError, LowtideError, NotAFileError, NotFoundError
from tests.support.examples import examples
from tests.support.formats import refused, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    write(folder / "index.json", b"{}")
    write(folder / "a.bin", b"12345")
    write(folder / "sub/b.bin", b"123")
    write(tmp_path / "secret.bin", b"1")
    return folder


def stat(folder: Path, name: object) -> tuple[str, int]:
    path, identity = Inside(str(folder / "index.json")).stat(name, "shards[0]")
    return path, identity.size


def test_names_in_folder_and_subfolder_are_resolved(folder: Path) -> None:
    assert stat(folder, "a.bin") == (str(folder / "a.bin"), 5)
    assert stat(folder, "sub/b.bin") == (str(folder / "sub/b.bin"), 3)
    write(folder / "größe 1.bin", b"12")
    assert stat(folder, "größe 1.bin")[1] == 2


@pytest.mark.parametrize(
    "name",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "/etc/passwd",
        "..",
        ".",
        "sub/",
        "/",
        "sub//b.bin",
        "./a.bin",
        "a\\b",
    ],
)
def test_names_outside_the_folder_raise(folder: Path, name: str) -> None:
    with refused(FormatError, folder / "index.json", "shards[0]", "leads outside its folder", repr(name)):
        stat(folder, name)


@pytest.mark.parametrize("name", ["", None, 7, ["a.bin"], "a\0b"])
def test_invalid_names_raise(folder: Path, name: object) -> None:
    with refused(FormatError, folder / "index.json", "shards[0] is invalid", "expected a file name"):
        stat(folder, name)


def test_links_outside_the_folder_raise(folder: Path) -> None:
    (folder / "link.bin").symlink_to("../secret.bin")
    (folder / "out").symlink_to("..")
    (folder / "inner.bin").symlink_to("sub/b.bin")
    for name in ("link.bin", "out/secret.bin"):
        with refused(FormatError, "leads outside", name):
            stat(folder, name)
    assert stat(folder, "inner.bin") == (str(folder / "inner.bin"), 3)


def test_folder_with_the_same_prefix_is_outside(folder: Path) -> None:
    other = folder.parent / "corpus-2"
    other.mkdir()
    write(other / "c.bin", b"1")
    (folder / "c.bin").symlink_to(other / "c.bin")
    with refused(FormatError, "leads outside"):
        stat(folder, "c.bin")


def test_links_into_blob_folder_of_hub_cache_are_allowed(tmp_path: Path) -> None:
    """As a model hub's client leaves a snapshot: the index and the shards are links to blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name, blob in [("index.json", "0a1b"), ("a.bin", "2c3d")]:
        write(blobs / blob, b"1234")
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    assert stat(snapshot, "a.bin") == (str(snapshot / "a.bin"), 4)


def test_missing_files_and_folders_raise(folder: Path) -> None:
    with refused(NotFoundError, folder / "gone.bin", "shards[0]", "restore"):
        stat(folder, "gone.bin")
    with refused(NotAFileError, folder / "sub"):
        stat(folder, "sub")
    (folder / "dangling").symlink_to("nowhere.bin")
    with refused(NotFoundError, folder / "dangling"):
        stat(folder, "dangling")
    with pytest.raises(LowtideError):
        stat(folder, "a.bin/b")
    with pytest.raises(LowtideError):
        stat(folder, "x" * 5000)


@examples(6, deadline=2000)
@given(name=st.text(alphabet="ab./\\\0\ud800 ~:é", max_size=8))
def test_any_accepted_name_stays_inside_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz-inside"
    for inner in (folder, folder / "a"):
        inner.mkdir(exist_ok=True)
        for file in ("b", "a.b", "index.json"):
            write(inner / file, b"")
    try:
        path, _ = stat(folder, name)
    except LowtideError:
        return
    assert os.path.realpath(path).startswith(f"{os.path.realpath(folder)}{os.sep}")


def test_numbers_sort_by_value() -> None:
    assert in_order(["b10", "b9", "a", "b09", "10", "9"]) == ["9", "10", "a", "b09", "b9", "b10"]


def test_file_listed_twice_raises(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", b"")
    inside = Inside(str(tmp_path / "index.json"))
    inside.stat("a.bin", "shards[0]")
    with refused(FormatError, tmp_path / "index.json", "shards[1]", "'a.bin'", "listed before"):
        inside.stat("a.bin", "shards[1]")


def test_message_about_long_name_is_short(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        Inside(str(tmp_path / "index.json")).stat("x" * 10**6, "shards[0]")
    assert len(str(caught.value)) < 1000


def test_index_over_size_limit_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_INDEX", 10)
    with refused(FormatError, "11 bytes", "at most 10"):
        read_json(str(write(tmp_path / "index.json", b'{"a": 1234}')))


@pytest.mark.parametrize(
    "data", [b"", b"[" * 100_000, b'{"a": 9' + b"9" * 5000 + b"}", b"\xff{}", b'{"a":1} x']
)
def test_invalid_json_raises(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "index.json", data)
    with refused(FormatError, path, "invalid JSON"):
        read_json(str(path))


def test_message_about_a_long_dtype_is_short() -> None:
    """An index of a stranger may have anything as its dtype."""
    with pytest.raises(ArgumentError, match="not understood by NumPy") as caught:
        token_dtype("a" * 100_000, "corpus.json")
    assert len(str(caught.value)) < 1000
