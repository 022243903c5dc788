"""llm.c's and modded-nanogpt's shards, from the bytes that their write_datafile documents."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._tokens.formats import find
from lowtide._tokens.formats.llmc import make_header
from lowtide.errors import ArgumentError, FormatError, LowtideError, TruncatedFileError
from tests.support.examples import examples
from tests.support.formats import damaged, refused, write
from tests.support.token_files import assert_honest_corpus, put, read_tokens


def shard(ids: list[int], magic: int = 20240520, version: int = 1, count: int | None = None) -> bytes:
    header = struct.pack("<256i", magic, version, len(ids) if count is None else count, *[0] * 253)
    return header + np.array(ids, "<u2" if magic == 20240520 else "<u4").tobytes()


def test_gpt2_shards_are_read(tmp_path: Path) -> None:
    files = {
        "fineweb_val_000000.bin": shard([50256, 9]),
        "fineweb_train_000001.bin": shard([50256, 1, 2]),
        "fineweb_train_000002.bin": shard([3, 50256]),
    }
    tokens = find(put(tmp_path, files))
    assert (tokens.format, str(tokens.dtype), tokens.usual_eos, tokens.marks) == (
        "llm.c",
        "uint16",
        50256,
        "start",
    )
    assert (tokens.documents, tokens.vocab_size, tokens.metadata) == (None, None, {"model": "gpt-2"})
    assert [(segment.offset, segment.count) for segment in tokens.segments] == [(1024, 3), (1024, 2)]
    assert read_tokens(tokens).tolist() == [50256, 1, 2, 3, 50256]


def test_llama3_shards_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "data.bin", shard([128000, 5], 20240801, 7))
    tokens = find(path)
    assert (str(tokens.dtype), tokens.usual_eos, tokens.metadata) == ("uint32", 128000, {"model": "llama-3"})
    assert read_tokens(tokens).tolist() == [128000, 5]


def test_dtype_that_contradicts_header_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "data.bin", shard([1]))
    assert find(path, dtype="<u2").count == 1
    with refused(ArgumentError, path, "uint16", "got dtype='uint32'", "leave dtype out"):
        find(path, dtype="uint32")


def test_written_header_matches_llmc() -> None:
    assert make_header("uint16", 7) == shard([], count=7)
    assert make_header("uint32", 7) == shard([], 20240801, 7, count=7)
    for dtype, count in [("int32", 1), ("uint16", 2**31), ("uint16", -1)]:
        with refused(ArgumentError, "llm.c"):
            make_header(dtype, count)


def test_empty_shard_is_read(tmp_path: Path) -> None:
    tokens = find(put(tmp_path, {"a.bin": shard([]), "b.bin": shard([4])}))
    assert [segment.count for segment in tokens.segments] == [0, 1]


def test_shards_of_two_models_raise(tmp_path: Path) -> None:
    put(tmp_path, {"a.bin": shard([1]), "b.bin": shard([1], 20240801, 7)})
    with refused(ArgumentError, tmp_path / "b.bin", "<u4 of llama-3", tmp_path / "a.bin", "<u2 of gpt-2"):
        find(tmp_path)


LIES: dict[str, tuple[bytes, type[LowtideError], tuple[object, ...]]] = {
    "short": (shard([1, 2, 3])[:-1], TruncatedFileError, ("3 tokens", "expected 1030", "1029 bytes")),
    "long": (shard([1, 2, 3]) + b"\0", FormatError, ("3 tokens", "expected 1030", "1031 bytes")),
    "count": (shard([1], count=-1), FormatError, ("token count -1",)),
    "version": (shard([1], version=2), FormatError, ("version 2", "expected 1")),
    "header": (shard([1])[:1000], TruncatedFileError, ("expected 1026", "1000 bytes")),
    "magic-only": (shard([1])[:6], TruncatedFileError, ("expected 1024", "6 bytes")),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_header_raises(tmp_path: Path, name: str) -> None:
    data, kind, says = LIES[name]
    path = write(tmp_path / "x_train_1.bin", data)
    for asked in (path, tmp_path):
        with refused(kind, path, *says):
            find(asked)


@examples(4, deadline=2000)
@given(
    data=damaged([shard([1, 2, 3]), shard([1], 20240801, 7)], head=14),
    split=st.sampled_from(["train", "val"]),
)
def test_damaged_shard_raises_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, split: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz-llmc"
    assert_honest_corpus(put(folder, {"a_train_1.bin": shard([7]), "a_train_2.bin": data}), split=split)


def test_eos_of_another_tokenizer_can_be_passed(tmp_path: Path) -> None:
    path = write(tmp_path / "train_000.bin", shard([5, 7, 0, 9, 0, 4, 4, 0]))
    with lowtide.corpus(path) as corpus:
        assert (corpus.eos, corpus.has_documents) == (None, False)
    with lowtide.corpus(path, eos=0) as corpus:
        assert [corpus.document(n).tolist() for n in range(corpus.documents.count)] == [
            [5, 7, 0],
            [9, 0],
            [4, 4, 0],
        ]


def test_marks_start_documents_if_first_shard_starts_with_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "train_000.bin", shard([50256, 1, 2, 50256, 3]))
    with lowtide.corpus(path) as corpus:
        assert (corpus.eos, corpus.documents.count) == (50256, 2)
        assert corpus.document(1).tolist() == [50256, 3]
    later = write(tmp_path / "train_001.bin", shard([1, 2, 50256, 3]))
    with lowtide.corpus(later) as corpus:
        assert corpus.document(0).tolist() == [1, 2]
