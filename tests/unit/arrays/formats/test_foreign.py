"""Files of other kinds, as the libraries that people have write them: named, with the next step."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

import lowtide
from lowtide.errors import ArgumentError, FormatError, LowtideError
from tests.support.formats import refused, write

TABLE = pyarrow.table({"text": ["low tide"], "x": [1.5]})


def _stream(path: Path) -> None:
    with pyarrow.ipc.new_stream(path, TABLE.schema) as out:
        out.write_table(TABLE)


def _sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table t (x)")
    database.close()


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("000.txt"), io.BytesIO())


def _torch(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data/0", bytes(8))


def _bytes(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


KINDS: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "a.txt": (
        _bytes("größer als der Speicher\n".encode() * 30),
        "text",
        "np.loadtxt",
        "prepare",
    ),
    "a.csv": (_bytes(b"x,y\n1,2\n"), "text (CSV)", "delimiter=','", "JSON lines"),
    "a.jsonl": (_bytes(b'{"text": "low tide"}\n'), "text (JSON lines)", "np.save", "prepare"),
    "a.parquet": (lambda path: pyarrow.parquet.write_table(TABLE, path), "Parquet", "np.save", "prepare"),
    "a.feather": (lambda path: pyarrow.feather.write_feather(TABLE, path), "Arrow", "np.save", "prepare"),
    "a.arrow": (_stream, "Arrow", "np.save", "prepare"),
    "a.png": (_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50)), "PNG", "PIL.Image", "extract its text"),
    "a.jpg": (_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(50)), "JPEG", "PIL.Image", "extract its text"),
    "a.pkl": (_bytes(pickle.dumps({"x": np.arange(3)})), "pickle", "np.save", "np.save"),
    "b.pkl": (_bytes(pickle.dumps([1, 2, 3], 2)), "pickle", "np.save", "np.save"),
    "old.pt": (
        _bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),
        "torch.save",
        "weights_only",
        "weights_only",
    ),
    "a.mat": (_bytes(b"MATLAB 5.0 MAT-file Platform: posix".ljust(128)), "MATLAB 5", "loadmat", "loadmat"),
    "a.gz": (_bytes(gzip.compress(b"x")), "compressed (gzip)", "decompress", "prepare"),
    "a.xz": (_bytes(lzma.compress(b"x")), "compressed (xz)", "decompress", "decompress"),
    "a.bz2": (_bytes(bz2.compress(b"x")), "compressed (bzip2)", "decompress", "decompress"),
    "a.zst": (_bytes(b"\x28\xb5\x2f\xfd" + bytes(9)), "compressed (zstd)", "decompress", "prepare"),
    "a.pdf": (_bytes(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"), "a PDF", "np.save", "extract its text"),
    "a.db": (_sqlite, "SQLite", "lowtide.create", "JSON lines"),
    "a.tar": (_tar, "tar", "tar -xf", "tar -xf"),
}


@pytest.mark.parametrize("name", KINDS)
def test_unsupported_file_kind_error_has_remedy(tmp_path: Path, name: str) -> None:
    make, kind, numbers, tokens = KINDS[name]
    make(tmp_path / name)
    with refused(FormatError, tmp_path / name, kind, numbers):
        lowtide.open(tmp_path / name)
    with refused(FormatError, tmp_path / name, kind, tokens):
        lowtide.corpus(tmp_path / name)
    with refused(FormatError, tmp_path / name, kind, tokens):
        lowtide.corpus(tmp_path / name, dtype="uint8")


def test_torch_checkpoint_is_not_read_as_npz(tmp_path: Path) -> None:
    _torch(tmp_path / "model.pt")
    with refused(LowtideError, tmp_path / "model.pt", "torch.save", "safetensors.torch.save_file"):
        lowtide.open(tmp_path / "model.pt")
    with refused(FormatError, tmp_path / "model.pt", "a file of torch.save", "np.save"):
        lowtide.corpus(tmp_path / "model.pt")


def test_zip_without_arrays_raises(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "low tide")
    with refused(LowtideError, tmp_path / "a.zip", "a zip of 1 files without an NPY array", "extract it"):
        lowtide.open(tmp_path / "a.zip")


def test_folder_of_text_error_suggests_prepare(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("low tide")
    with refused(FormatError, f"`lowtide prepare {tmp_path} -o OUT`"):
        lowtide.corpus(tmp_path)


@pytest.mark.parametrize("head", [b"PK\x03\x04", b"\x1f\x8b", b"text", b"\x80\x04\x95" + bytes(8)], ids=repr)
def test_bin_file_with_foreign_magic_is_read_as_tokens(tmp_path: Path, head: bytes) -> None:
    path = write(tmp_path / "train.bin", head + bytes(10 - len(head) % 2))
    assert lowtide.corpus(path, dtype="uint8")[:2].tobytes() == head[:2]


@pytest.mark.parametrize("format", ["npy", "npz", "safetensors", "h5"])
def test_dtype_without_offset_for_file_with_header_raises(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"x.{format}"
    if format == "npy":
        np.save(path, np.arange(5))
    elif format == "npz":
        np.savez(path, x=np.arange(5))
    elif format == "h5":
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(5)
    else:
        header = b'{"x":{"dtype":"I64","shape":[5],"data_offsets":[0,40]}}'
        write(path, len(header).to_bytes(8, "little") + header + np.arange(5).tobytes())
    with refused(ArgumentError, path, "its header as data", "leave dtype out", "offset="):
        lowtide.open(path, "uint8")
    offset = lowtide.open(path)._layout.offset
    assert lowtide.open(path, "int64", 5, offset)[:].tolist() == [0, 1, 2, 3, 4]
    assert lowtide.open(path, "uint8", offset=0)[:].tobytes() == path.read_bytes()
