"""What is found under a name, and what each file is taken for."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest

from lowtide._prepare.inputs import find, spool
from lowtide.errors import ArgumentError, FileChangedError, FormatError, NotFoundError, WriteError
from tests.support.formats import refused
from tests.support.token_files import put

LINE = b'{"text": "a"}\n'


def names(folder: Path, glob: str | None = None) -> list[str]:
    return [os.path.relpath(source.path, folder) for source in find([str(folder)], glob=glob)]


def test_folder_is_listed_in_order_without_hidden_or_empty_files(tmp_path: Path) -> None:
    files = ["b.txt", "a/z.txt", "a/b/c.md", "c.py", ".hidden", ".git/x", "a/.x"]
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in files:
        (tmp_path / name).write_bytes(b"text")
    (tmp_path / "a/__init__.py").write_bytes(b"")
    assert names(tmp_path) == ["b.txt", "c.py", "a/z.txt", "a/b/c.md"]
    assert names(tmp_path, "*.txt") == ["b.txt", "a/z.txt"]
    assert names(tmp_path, "a/*") == ["a/z.txt", "a/b/c.md"]
    with refused(NotFoundError, tmp_path, "no file that matches '*.pdf'"):
        names(tmp_path, "*.pdf")
    with refused(NotFoundError, "matches '__init__.py' except 1 empty"):
        names(tmp_path, "__init__.py")


def test_missing_or_empty_source_raises(tmp_path: Path) -> None:
    with refused(NotFoundError, tmp_path / "x.txt"):
        find([str(tmp_path / "x.txt")])
    with refused(NotFoundError, tmp_path, "contains no file"):
        find([str(tmp_path)])
    (tmp_path / "x.txt").write_bytes(b"")
    with refused(FormatError, tmp_path / "x.txt", "is empty"):
        find([str(tmp_path / "x.txt")])
    with refused(ArgumentError, "sources is empty"):
        find([])


def test_file_listed_twice_raises(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": b"a", "b.txt": b"b"})
    with refused(ArgumentError, tmp_path / "a.txt", "occurs twice"):
        find([str(tmp_path), str(tmp_path / "a.txt")])
    both = find([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")])
    assert [Path(source.name).name for source in both] == ["b.txt", "a.txt"], "in the order of the names"


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("x.jsonl", LINE, "jsonl"),
        ("x.NDJSON", LINE, "jsonl"),
        ("x.json", LINE, "jsonl"),
        ("x", LINE, "jsonl"),
        ("x", b"\xef\xbb\xbf\n" + LINE, "jsonl"),
        ("x", b'{"text": "' + b"a" * 2**20, "jsonl"),  # a first line that is longer than the look at it
        ("x.txt", LINE, "text"),
        ("x.py", b"{1: 2}\n", "text"),
        ("x", b"{not json}\n", "text"),
        ("x", b"5\n", "text"),
        ("x.jsonl.gz", gzip.compress(LINE, mtime=0), "jsonl.gz"),
        ("x.gz", gzip.compress(LINE, mtime=0), "jsonl.gz"),
        ("x", gzip.compress(b"text", mtime=0), "text.gz"),
        ("x.txt.gz", gzip.compress(LINE, mtime=0), "text.gz"),
        ("x", b"PAR1....PAR1", "parquet"),
        ("x", b"\xff\xff\xff\xff....", "dataset"),
    ],
)
def test_kind_of_each_input_is_recognised(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(data)
    (source,) = find([str(tmp_path / name)])
    assert (source.label, source.size) == (kind, len(data))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.json", b'[\n{"text": "a"}]', "write one object per line"),
        ("x.parquet", b"text", "its name says parquet"),
        ("x.gz", b"text", "found 74 65 78 74 at the start"),
        ("x.parquet", gzip.compress(b"a", mtime=0), "its name says parquet"),
        ("x.bin", b"a\0b", "exclude it with a glob"),
        ("x.gz", gzip.compress(b"a\0b", mtime=0), "exclude it with a glob"),
    ],
)
def test_unrecognised_input_raises(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with refused(FormatError, tmp_path / name, words):
        find([str(tmp_path)])


def test_changed_source_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"low")
    (source,) = find([str(path)])
    source.check()
    path.write_bytes(b"tide")
    with refused(FileChangedError, path, "4 bytes, expected 3"):
        source.check()


def test_standard_input_is_spooled(tmp_path: Path) -> None:
    path = spool(io.BytesIO(LINE * 100_000), str(tmp_path))
    (source,) = find([path])
    assert (source.label, source.size) == ("jsonl", len(LINE) * 100_000)
    assert os.listdir(tmp_path) == ["stdin"]


def test_failed_spool_leaves_no_file(tmp_path: Path) -> None:
    class Broken(io.RawIOBase):
        def read(self, _: int = -1) -> bytes:
            raise OSError(5, "gone")

    with pytest.raises(WriteError):
        spool(Broken(), str(tmp_path))  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_path_with_zero_byte_raises(tmp_path: Path) -> None:
    with refused(ArgumentError, "zero byte"):
        find([str(tmp_path / "a\0b.txt")])
