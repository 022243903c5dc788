"""Megatron-LM's .bin and .idx: from its own builder, from the bytes of its format, and damaged."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from lowtide._tokens.formats import find, megatron
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
from tests.support.token_files import assert_honest_corpus, document_bounds, put, read_tokens, written_by

HEADER = b"MMIDIDX\0\0"


def index(
    lengths: list[int],
    documents: list[int],
    *,
    itemsize: int = 2,
    code: int = 8,
    version: int = 1,
    magic: bytes = HEADER,
    offsets: list[int] | None = None,
    sequences: int | None = None,
    modes: bytes = b"",
) -> bytes:
    if offsets is None:
        offsets = [itemsize * sum(lengths[:i]) for i in range(len(lengths))]
    count = len(lengths) if sequences is None else sequences
    head = magic + struct.pack("<QBQQ", version, code, count, len(documents))
    arrays = (np.array(lengths, "<i4"), np.array(offsets, "<i8"), np.array(documents, "<i8"))
    return head + b"".join(array.tobytes() for array in arrays) + modes


def data(count: int, dtype: str = "<u2") -> bytes:
    return np.arange(count).astype(dtype).tobytes()


WRITER = """
import sys, numpy, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
folder = sys.argv[1]
for name, dtype in [("u16", numpy.uint16), ("i32", numpy.int32), ("u8", numpy.uint8), ("i64", numpy.int64)]:
    builder = IndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=dtype)
    builder.add_item(torch.tensor([1, 2, 3]))
    builder.end_document()
    builder.add_document(torch.tensor([4, 5, 6, 7]), [1, 3])
    builder.end_document()
    builder.add_document(torch.tensor([8]), [1])
    builder.finalize(f"{folder}/{name}.idx")
both = IndexedDatasetBuilder(f"{folder}/both.bin", dtype=numpy.uint16)
both.add_index(f"{folder}/u16")
both.add_index(f"{folder}/u16")
both.finalize(f"{folder}/both.idx")
modes = IndexedDatasetBuilder(f"{folder}/modes.bin", dtype=numpy.uint16, multimodal=True)
modes.add_item(torch.tensor([1, 2]), 1)
modes.end_document()
modes.finalize(f"{folder}/modes.idx")
never = IndexedDatasetBuilder(f"{folder}/never.bin", dtype=numpy.uint16)
never.add_item(torch.tensor([1, 2]))
never.finalize(f"{folder}/never.idx")
"""


def test_files_of_megatron_builder_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = written_by("megatron", WRITER, tmp_path_factory.mktemp("megatron"))
    expected = {"u16": "uint16", "i32": "int32", "u8": "uint8", "i64": "int64"}
    for name, dtype in expected.items():
        layout = find(folder / name)  # by what .bin and .idx have in common
        assert (layout.format, str(layout.dtype), layout.metadata) == ("megatron", dtype, {"sequences": 4})
        assert read_tokens(layout).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
        assert document_bounds(layout) == [[0, 3], [3, 7], [7, 7], [7, 8]]
        assert layout.documents is not None
        layout.documents.verify()
    assert document_bounds(find(folder / "both.bin"))[4:] == [[8, 11], [11, 15], [15, 15], [15, 16]]
    assert document_bounds(find(folder / "modes.idx")) == [[0, 2]]
    assert find(folder / "never").documents is None
    # and the bytes that the other tests are made of are the same
    assert (folder / "u16.idx").read_bytes() == index([3, 1, 3, 1], [0, 1, 3, 3, 4])
    assert (folder / "modes.idx").read_bytes() == index([2], [0, 1], modes=b"\x01")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(tmp_path / "my", {"x.bin": data(6), "x.idx": index([3, 0, 2, 1], [0, 2, 4])})


def test_corpus_opens_by_folder_prefix_file_and_glob(folder: Path) -> None:
    for path in (
        folder,
        folder / "x",
        folder / "x.bin",
        folder / "x.idx",
        [folder / "x.bin"],
        folder / "x.*",
    ):
        layout = find(path)
        assert read_tokens(layout).tolist() == [0, 1, 2, 3, 4, 5]
        assert document_bounds(layout) == [[0, 3], [3, 6]]
    [segment] = find(folder).segments
    assert (segment.path, segment.offset, segment.file_size) == (str(folder / "x.bin"), 0, 12)


def test_layout_survives_pickle(folder: Path) -> None:
    layout = find(folder)
    assert layout.documents is not None
    assert layout.documents.at(4) == 1
    assert document_bounds(pickle.loads(pickle.dumps(layout))) == [[0, 3], [3, 6]]


def test_two_data_sets_in_folder_raise(folder: Path) -> None:
    put_more = {"y.bin": data(2), "y.idx": index([2], [0, 1])}
    for name, content in put_more.items():
        (folder / name).write_bytes(content)
    with refused(ArgumentError, folder, "2 data sets", "x.bin", "y.bin", "a list"):
        find(folder)
    layout = find([folder / "x", folder / "y.idx"])
    assert document_bounds(layout) == [[0, 3], [3, 6], [6, 8]]
    (folder / "y.idx").write_bytes(index([1], [0, 1], itemsize=4, code=4))
    with refused(ArgumentError, folder / "y.idx", "int32", folder / "x.idx", "uint16"):
        find([folder / "x.bin", folder / "y.bin"])


def test_missing_bin_file_raises(folder: Path) -> None:
    (folder / "x.bin").unlink()
    with refused(NotFoundError, folder / "x.bin"):
        find(folder / "x.idx")


Lie = tuple[dict[str, bytes], type[LowtideError], tuple[object, ...]]


def lie(idx: bytes, kind: type[LowtideError], *says: object, tokens: bytes = data(6)) -> Lie:
    return {"x.bin": tokens, "x.idx": idx}, kind, says


LIES: dict[str, Lie] = {
    "magic": lie(index([6], [0, 1], magic=b"TNTIDX\0\0\0"), FormatError, "x.idx", "MMIDIDX", "TNTIDX"),
    "version": lie(index([6], [0, 1], version=2), FormatError, "found 2, expected 1"),
    "code": lie(index([6], [0, 1], code=9), FormatError, "1 to 8", "found 9"),
    "float": lie(index([6], [0, 1], code=7), UnsupportedError, "float32", "integers"),
    "header": lie(index([6], [0, 1])[:20], TruncatedFileError, "34 bytes", "ends at byte 20"),
    "cut": lie(index([6], [0, 1])[:-1], TruncatedFileError, "expected 62", "61 bytes"),
    "long": lie(index([6], [0, 1]) + b"12", FormatError, "expected 62", "or 63 with modes", "64 bytes"),
    "sequences": lie(index([6], [0, 1], sequences=2**63), TruncatedFileError, 2**63),
    "no-documents": lie(index([6], []), FormatError, "expected 1 or more"),
    "bin-short": lie(
        index([6], [0, 1]), TruncatedFileError, "x.bin", "10 bytes", "expected 12", tokens=data(5)
    ),
    "bin-long": lie(index([6], [0, 1]), FormatError, "x.bin", "14 bytes", "expected 12", tokens=data(7)),
    "bin-odd": lie(index([6], [0, 1]), FormatError, "11 bytes", "token's 2", tokens=bytes(11)),
    "empty": lie(index([], [0]), FormatError, "0 sequences", "12 bytes"),
    "order": lie(
        index([2, 2, 2], [0, 3], offsets=[4, 0, 8]), UnsupportedError, "sequence 0", "byte 4", "add_index"
    ),
    "hole": lie(
        index([2, 2, 1], [0, 3], offsets=[0, 4, 10]), UnsupportedError, "sequence 2", "byte 10", "expected 8"
    ),
    "negative": lie(index([4, -2, 4], [0, 3]), UnsupportedError, "sequence 1", "length -2"),
    "first": lie(index([3, 3], [1, 2]), FormatError, "from 0 to the 2 sequences", "[1, 2]"),
    "last": lie(index([3, 3], [0, 1]), FormatError, "from 0 to the 2 sequences", "[0, 1]"),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_index_raises(tmp_path: Path, name: str) -> None:
    files, kind, says = LIES[name]
    put(tmp_path, files)
    with refused(kind, tmp_path, *says):
        find(tmp_path)


@pytest.mark.parametrize(
    ("documents", "says"), [([0, 3, 1, 3], "found 3 after 6"), ([0, 9, 3], "from 0 to 3")]
)
def test_invalid_documents_raise_when_read(tmp_path: Path, documents: list[int], says: str) -> None:
    put(tmp_path, {"x.bin": data(6), "x.idx": index([3, 1, 2], documents)})
    layout = find(tmp_path).documents
    assert layout is not None
    with refused(FormatError, tmp_path / "x.idx", says):
        layout.bounds(0, layout.count)


def test_large_index_is_sampled_and_verified_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron, "EXACT", 1000)
    count = 200_000
    offsets = (np.arange(count, dtype="<i8") * 2).tolist()
    offsets[1500], offsets[1501] = offsets[1501], offsets[1500]  # not where the looks fall
    put(tmp_path, {"x.bin": bytes(2 * count), "x.idx": b""})
    (tmp_path / "x.idx").write_bytes(index([1] * count, [0, count], offsets=offsets))
    layout = find(tmp_path)
    assert layout.count == count
    assert layout.documents is not None
    with refused(UnsupportedError, "sequence 1500"):
        layout.documents.verify()
    offsets[-2] += 2
    (tmp_path / "x.idx").write_bytes(index([1] * count, [0, count], offsets=offsets))
    with refused(UnsupportedError, f"sequence {count - 2}"):
        find(tmp_path)


def test_documents_are_located_among_many_sequences(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, 30_000)
    cuts = np.unique(np.concatenate(([0, 30_000], rng.integers(0, 30_000, 9_000))))
    total = int(lengths.sum())
    put(tmp_path, {"x.bin": bytes(2 * total), "x.idx": index(lengths.tolist(), cuts.tolist())})
    documents = find(tmp_path).documents
    assert documents is not None
    ends = np.cumsum(lengths)[cuts[1:] - 1]
    assert documents.bounds(0, documents.count)[:, 1].tolist() == ends.tolist()
    for token in rng.integers(0, total, 100).tolist():
        assert documents.at(token) == int(np.searchsorted(ends, token, "right"))


ORIGINALS = [index([3, 1, 2], [0, 2, 3]), index([6], [0, 1], modes=b"\0")]


@examples(6, deadline=2000)
@given(idx=damaged(ORIGINALS, head=90))
def test_damaged_indexes_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, idx: bytes
) -> None:
    folder: Any = put(tmp_path_factory.getbasetemp() / "fuzz-megatron", {"x.bin": data(6), "x.idx": idx})
    assert_honest_corpus(folder / "x")
