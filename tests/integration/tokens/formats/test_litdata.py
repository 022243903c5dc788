"""LitData's chunks: from its own optimize(), from the bytes of its format, and damaged."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._tokens.formats import find, records
from lowtide.errors import (
    ArgumentError,
    FormatError,
    LowtideError,
    NotFoundError,
    TruncatedFileError,
    UnsupportedError,
)
from tests.support.examples import examples
from tests.support.formats import damaged, refused
from tests.support.token_files import (
    Files,
    assert_honest_corpus,
    document_bounds,
    put,
    read_tokens,
    written_by,
)


def chunk(items: list[list[int]], dtype: str = "<u2", sized: bool = False) -> bytes:
    """u32 n, u32 offsets[n + 1], items; each with its size first unless TokensLoader was named."""
    blobs = [np.array(item, dtype).tobytes() for item in items]
    if sized:
        blobs = [struct.pack("<I", len(blob)) + blob for blob in blobs]
    first = 4 + 4 * (len(items) + 1)
    offsets = [first + sum(map(len, blobs[:i])) for i in range(len(items) + 1)]
    return struct.pack(f"<{len(items) + 2}I", len(items), *offsets) + b"".join(blobs)


def build(
    chunks: list[list[list[int]]], dtype: str = "<u2", code: str = "no_header_tensor:20", sized: bool = False
) -> Files:
    files, entries = {}, []
    for i, items in enumerate(chunks):
        name = f"chunk-0-{i}.bin"
        files[name] = chunk(items, dtype, sized)
        dim = None if sized else sum(map(len, items))
        entries.append(
            {"chunk_bytes": len(files[name]), "chunk_size": len(items), "dim": dim, "filename": name}
        )
    config = {
        "chunk_bytes": 64000000,
        "compression": None,
        "data_format": [code],
        "encryption": None,
        "item_loader": "PyTreeLoader" if sized else "TokensLoader",
    }
    files["index.json"] = json.dumps({"chunks": entries, "config": config, "updated_at": "1.0"}).encode()
    return files


def changed(files: Files, **changes: Any) -> Files:
    """``files`` with fields of the first chunk's entry, or of the config, changed."""
    index = json.loads(files["index.json"])
    for key, value in changes.items():
        (index["config"] if key in index["config"] and key != "chunk_bytes" else index["chunks"][0])[key] = (
            value
        )
    return {**files, "index.json": json.dumps(index).encode()}


WRITER = """
import sys, numpy, torch
from litdata import optimize
from litdata.streaming import TokensLoader

def i32(i): yield torch.arange(i * 100, i * 100 + 10 + i, dtype=torch.int32)
def u16(i): yield torch.arange(i * 100, i * 100 + 10 + i).to(torch.uint16)
def numpy_u16(i): yield numpy.arange(i * 100, i * 100 + 10 + i, dtype=numpy.uint16)
def even(i): yield torch.arange(i * 100, i * 100 + 10)
def pair(i): return {"tokens": torch.arange(5), "n": i}

if __name__ == "__main__":
    tokens = {"item_loader": TokensLoader()}
    plain = {"chunk_bytes": 4000}
    flat = [(i32, {**tokens, **plain}), (u16, {**tokens, "chunk_bytes": 70})]
    for make, more in [*flat, (numpy_u16, plain), (even, plain), (pair, plain)]:
        folder = f"{sys.argv[1]}/{make.__name__}"
        optimize(make, list(range(7)), folder, num_workers=1, verbose=False, start_method="fork", **more)
"""
ITEMS = [list(range(i * 100, i * 100 + 10 + i)) for i in range(7)]
EVEN = [list(range(i * 100, i * 100 + 10)) for i in range(7)]


def test_files_of_litdata_optimize_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = written_by("litdata", WRITER, tmp_path_factory.mktemp("litdata"))
    ends = np.cumsum([len(item) for item in ITEMS]).tolist()
    for name, dtype in [("i32", "int32"), ("u16", "uint16"), ("numpy_u16", "uint16")]:
        tokens = find(folder / name)
        assert (tokens.format, str(tokens.dtype)) == ("litdata", dtype)
        assert read_tokens(tokens).tolist() == [one for item in ITEMS for one in item]
        assert [bound[1] for bound in document_bounds(tokens)] == ends
        assert tokens.documents is not None
        tokens.documents.verify()
    assert len(find(folder / "i32").segments) == 1
    assert len(find(folder / "u16").segments) == 3  # chunks
    assert len(find(folder / "numpy_u16").segments) == 7  # samples, for each has its size before it
    [segment] = find(folder / "even").segments
    assert (segment.record, segment.stride) == (10, 84)
    assert read_tokens(find(folder / "even")).tolist() == [one for item in EVEN for one in item]
    with refused(UnsupportedError, "single arrays", "'no_header_tensor:18', 'int'"):
        find(folder / "pair")
    # and the bytes that the other tests are made of are the same
    assert (folder / "i32/chunk-0-0.bin").read_bytes() == chunk(ITEMS, "<i4")
    assert (folder / "numpy_u16/chunk-0-0.bin").read_bytes() == chunk(ITEMS, "<u2", sized=True)
    index = json.loads((folder / "i32/index.json").read_text())
    ours = json.loads(build([ITEMS], "<i4", "no_header_tensor:16")["index.json"])
    assert index["chunks"] == ours["chunks"]
    assert {key: index["config"][key] for key in ours["config"] if key != "chunk_bytes"} == {
        key: value for key, value in ours["config"].items() if key != "chunk_bytes"
    }


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("no_header_tensor:11", "u1"),
        ("no_header_tensor:14", "<i2"),
        ("no_header_tensor:15", "<i4"),
        ("no_header_tensor:18", "<i8"),
        ("no_header_tensor:20", "<u2"),
        ("no_header_numpy:2", "<i4"),
        ("no_header_numpy:5", "<u2"),
        ("no_header_numpy:6", "<u4"),
    ],
)
@pytest.mark.parametrize("sized", [False, True])
def test_every_integer_dtype_is_read(tmp_path: Path, code: str, dtype: str, sized: bool) -> None:
    tokens = find(put(tmp_path, build([[[1, 2], [3]], [[4]]], dtype, code, sized)))
    assert tokens.dtype == np.dtype(dtype)
    assert read_tokens(tokens).tolist() == [1, 2, 3, 4]
    assert document_bounds(tokens) == [[0, 2], [2, 3], [3, 4]]
    assert document_bounds(pickle.loads(pickle.dumps(tokens))) == [[0, 2], [2, 3], [3, 4]]


def test_equal_size_samples_are_one_segment_per_chunk(tmp_path: Path) -> None:
    tokens = find(put(tmp_path, build([[[1, 2], [3, 4]], [[5], [6], [7]]], sized=True)))
    assert [(s.offset, s.count, s.record, s.stride) for s in tokens.segments] == [
        (20, 4, 2, 8),
        (24, 3, 1, 6),
    ]
    assert read_tokens(tokens).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_too_many_sample_sizes_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, build([[[1, 2], [3]], [[4], [5, 6]]], sized=True))
    monkeypatch.setattr(records, "MAX_SEGMENTS", 4)
    assert len(find(tmp_path).segments) == 4
    monkeypatch.setattr(records, "MAX_SEGMENTS", 3)
    with refused(UnsupportedError, "chunk-0-1.bin", "at most 3", "one size", "train.bin"):
        find(tmp_path)


def test_large_corpus_is_sampled_and_verified_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "EXACT", 100)
    files = build([[[7]] * 1000], sized=True)
    data = bytearray(files["chunk-0-0.bin"])
    struct.pack_into("<I", data, 4 + 4 * 300, struct.unpack_from("<I", data, 4 + 4 * 300)[0] + 1)
    tokens = find(put(tmp_path, {**files, "chunk-0-0.bin": bytes(data)}))
    assert tokens.documents is not None
    with refused(FormatError, tmp_path / "chunk-0-0.bin", "offsets differ"):
        tokens.documents.verify()


FLAT = build([[[1, 2], [3]]])
SIZED = build([[[1, 2], [3]]], sized=True)
Lie = tuple[Files, type[LowtideError], tuple[object, ...]]


def bytes_of(*numbers: int, rest: bytes = b"") -> Files:
    data = struct.pack(f"<{len(numbers)}I", *numbers) + rest
    return changed({**FLAT, "chunk-0-0.bin": data}, chunk_size=2)


LIES: dict[str, Lie] = {
    "compression": (changed(FLAT, compression="zstd"), UnsupportedError, ("'zstd'", "compression=None")),
    "encryption": (changed(FLAT, encryption={"algorithm": "fernet"}), UnsupportedError, ("fernet",)),
    "two-arrays": (
        changed(FLAT, data_format=["no_header_tensor:20"] * 2),
        UnsupportedError,
        ("single arrays",),
    ),
    "float": (changed(FLAT, data_format=["no_header_tensor:1"]), FormatError, ("integers",)),
    "tensor": (changed(FLAT, data_format=["tensor"]), UnsupportedError, ("single arrays",)),
    "format": (changed(FLAT, data_format=7), UnsupportedError, ("found 7",)),
    "config": ({**FLAT, "index.json": b'{"chunks": [], "config": {}}'}, FormatError, ("not empty",)),
    "chunk": ({**FLAT, "index.json": b'{"chunks": [7], "config": {}}'}, UnsupportedError, ("None",)),
    "size": (changed(FLAT, chunk_size="2"), FormatError, ("chunks[0].chunk_size", "'2'")),
    "size-0": (changed(FLAT, chunk_size=0), FormatError, ("chunks[0].chunk_size", "from 1")),
    "size-more": (changed(FLAT, chunk_size=3), FormatError, ("2 samples", "expected 3")),
    "bytes": (changed(FLAT, chunk_bytes=23), TruncatedFileError, ("22 bytes", "expected 23")),
    "bytes-less": (changed(FLAT, chunk_bytes=21), FormatError, ("22 bytes", "expected 21")),
    "dim": (changed(FLAT, dim=4), FormatError, ("dim is 4", "6 bytes")),
    "dim-negative": (changed(FLAT, dim=-1), FormatError, ("chunks[0].dim", "-1")),
    "gone": (changed(FLAT, filename="chunk-0-9.bin"), NotFoundError, ("chunk-0-9.bin", "chunks[0].filename")),
    "outside": (changed(FLAT, filename="../x/chunk-0-0.bin"), FormatError, ("leads outside", "../x")),
    "absolute": (changed(FLAT, filename="/etc/passwd"), FormatError, ("leads outside", "/etc/passwd")),
    "name": (changed(FLAT, filename=None), FormatError, ("found None, expected a file name",)),
    "offset-first": (bytes_of(2, 12, 20, 22, rest=bytes(6)), FormatError, ("byte 12", "from byte 16 on")),
    "offset-last": (bytes_of(2, 16, 20, 24, rest=bytes(6)), TruncatedFileError, ("22 bytes", "expected 24")),
    "item-size": (
        {**SIZED, "chunk-0-0.bin": SIZED["chunk-0-0.bin"].replace(b"\x04\0\0\0\1", b"\x05\0\0\0\1")},
        FormatError,
        ("says that it has 5 bytes",),
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_index_raises(tmp_path: Path, name: str) -> None:
    files, kind, says = LIES[name]
    put(tmp_path, files)
    with refused(kind, tmp_path, *says):
        find(tmp_path)


def test_invalid_offsets_raise_when_documents_are_read(tmp_path: Path) -> None:
    for middle, says in [(19, "multiples of 2 bytes"), (40, "found 3 after 12"), (2, "found -7")]:
        tokens = find(put(tmp_path, bytes_of(2, 16, middle, 22, rest=bytes(6))))
        assert tokens.documents is not None
        with refused(FormatError, tmp_path / "chunk-0-0.bin", says):
            tokens.documents.bounds(0, 2)


def test_contradicting_dtype_raises(tmp_path: Path) -> None:
    put(tmp_path, FLAT)
    assert find(tmp_path, dtype="uint16").count == 3
    with refused(ArgumentError, tmp_path / "index.json", "uint16", "got dtype='int32'"):
        find(tmp_path, dtype="int32")


@examples(6, deadline=2000)
@given(data=st.data(), original=st.sampled_from([FLAT, SIZED]), name=st.sampled_from(sorted(FLAT)))
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, original: Files, name: str
) -> None:
    files = {**original, name: data.draw(damaged([original[name]], head=300 if name == "index.json" else 30))}
    assert_honest_corpus(put(tmp_path_factory.getbasetemp() / "fuzz-litdata", files))


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4) | st.just([]) | st.just({})
)


@examples(4, deadline=2000)
@given(
    key=st.sampled_from(["chunk_bytes", "chunk_size", "dim", "filename", "data_format", "compression"]),
    value=VALUES | st.sampled_from([".", "..", "a/../b", "chunk-0-0.bin/", "\ud800"]),
)
def test_arbitrary_index_values_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz-litdata"
    assert_honest_corpus(put(folder, changed(FLAT, **{key: value})))
