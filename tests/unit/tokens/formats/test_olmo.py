"""Files called .npy: NumPy's own, and OLMo's raw ones with their tables of documents."""

from __future__ import annotations

import gzip
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from lowtide._tokens.formats import find
from lowtide.errors import ArgumentError, FormatError, LowtideError, TruncatedFileError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import damaged, refused
from tests.support.token_files import assert_honest_corpus, put, read_tokens

RAW = np.arange(7, dtype="<u2").tobytes()
TABLE = gzip.compress(b'0,3,id-1,s3://a/b.jsonl.gz,1\n3,3,"x,y",,2\n3,7,id-3\n')


def test_np_save_shards_are_read(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"edufineweb_train_{i:06}.npy", np.arange(i, i + 2 + i, dtype="u2"))
    np.save(tmp_path / "edufineweb_val_000000.npy", np.array([9], "u2"))
    tokens = find(tmp_path)
    assert (tokens.format, str(tokens.dtype)) == ("npy", "uint16")
    assert read_tokens(tokens).tolist() == [0, 1, 1, 2, 3, 2, 3, 4, 5]
    assert read_tokens(find(tmp_path, split="val")).tolist() == [9]


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "i8", "u8"])
def test_every_integer_dtype_is_read(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "x.npy", np.array([1, 2], dtype))
    assert find(tmp_path / "x.npy", dtype=dtype).dtype == np.dtype(dtype)


def test_npy_file_that_is_not_tokens_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 3), "u2"))
    with refused(UnsupportedError, path, "(2, 3)", "reshape(-1)"):
        find(path)
    np.save(path, np.zeros(3, "f4"))
    with refused(FormatError, path, "float32", "integers"):
        find(path)
    np.save(path, np.zeros(3, ">u2"))
    with refused(UnsupportedError, path, "'>u2'", "byte order"):
        find(path)
    np.save(path, np.zeros(3, "u2"))
    with refused(ArgumentError, path, "uint16", "got dtype='int32'"):
        find(path, dtype="int32")
    np.save(tmp_path / "y.npy", np.zeros(3, "u4"))
    with refused(ArgumentError, tmp_path / "y.npy", "uint32", path, "uint16"):
        find(tmp_path)


def test_same_header_with_other_file_size_raises(tmp_path: Path) -> None:
    """Headers are parsed once; sizes are compared for every file."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.zeros(3, "u2"))
    with open(tmp_path / "b.npy", "ab") as file:
        file.truncate(133)
    with refused(TruncatedFileError, tmp_path / "b.npy", "134", "133"):
        find(tmp_path)


def test_raw_olmo_file_needs_dtype(tmp_path: Path) -> None:
    path = put(tmp_path, {"part-0-00000.npy": RAW}) / "part-0-00000.npy"
    with refused(ArgumentError, path, "not a NumPy file despite its name", "OLMo", "dtype='uint16'"):
        find(path)
    tokens = find(path, dtype="uint16")
    assert (tokens.format, tokens.documents, tokens.index, tokens.eos) == ("olmo", None, None, None)
    assert read_tokens(tokens).tolist() == list(range(7))
    with refused(FormatError, path, "14 bytes", "token's 4", "2 left over"):
        find(path, dtype="uint32")


def test_documents_are_streamed_from_csv_tables(tmp_path: Path) -> None:
    put(tmp_path, {"a.npy": RAW, "a.csv.gz": TABLE, "b.npy": RAW, "b.csv.gz": gzip.compress(b"0,7\n\n")})
    tokens = find(tmp_path, dtype="uint16")
    assert tokens.documents is None
    assert tokens.index is not None
    assert np.concatenate(list(tokens.index())).tolist() == [3, 3, 7, 14]
    again = pickle.loads(pickle.dumps(tokens))
    assert np.concatenate(list(again.index())).tolist() == [3, 3, 7, 14]


def test_large_document_table_is_not_held_in_memory(tmp_path: Path) -> None:
    count = 40_000
    table = b"".join(b"%d,%d,some-id,some/path.jsonl.gz,%d\n" % (i, i + 1, i) for i in range(count))
    put(tmp_path, {"a.npy": bytes(2 * count), "a.csv.gz": gzip.compress(table, 1)})
    index = find(tmp_path, dtype="uint16").index
    assert index is not None
    tracemalloc.start()
    assert sum(len(block) for block in index()) == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * 2**20  # a list of all lines takes 3.2


LIES: dict[str, tuple[bytes, type[LowtideError], tuple[str, ...]]] = {
    "hole": (gzip.compress(b"0,3\n4,7\n"), FormatError, ("line 2", "from 4 to 7", "one from 3")),
    "back": (gzip.compress(b"0,3\n3,2\n"), FormatError, ("line 2", "from 3 to 2")),
    "beyond": (gzip.compress(b"0,8\n"), FormatError, ("line 1", "at most 7")),
    "short": (gzip.compress(b"0,3\n"), TruncatedFileError, ("ends at token 3", "expected 7")),
    "empty": (gzip.compress(b""), TruncatedFileError, ("ends at token 0", "expected 7")),
    "words": (gzip.compress(b"start,end\n0,7\n"), FormatError, ("line 1", "start,end")),
    "one": (gzip.compress(b"7\n"), FormatError, ("line 1",)),
    "huge": (gzip.compress(b"0," + b"9" * 5000), FormatError, ("line 1",)),
    "line": (gzip.compress(b"0,7," + b"x" * 2**21), FormatError, ("more than 65536",)),
    "blank": (gzip.compress(b"\n" * 10**6), FormatError, ("more than 1007 lines", "7 tokens")),
    "nothing": (gzip.compress(b"0,0\n" * 10**6), FormatError, ("more than 1007 lines", "7 tokens")),
    "no-gzip": (b"0,7\n", FormatError, ("gzip",)),
    "cut": (TABLE[:-9], TruncatedFileError, ("has no end",)),
    "checksum": (TABLE[:-8] + bytes(8), FormatError, ("gzip",)),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_table_raises_when_read(tmp_path: Path, name: str) -> None:
    data, kind, says = LIES[name]
    index = find(put(tmp_path, {"a.npy": RAW, "a.csv.gz": data}), dtype="uint16").index
    assert index is not None
    with refused(kind, tmp_path / "a.csv.gz", *says):
        list(index())


def test_missing_table_raises(tmp_path: Path) -> None:
    put(tmp_path, {"a.npy": RAW, "a.csv.gz": TABLE, "b.npy": RAW})
    with refused(FormatError, tmp_path / "b.csv.gz", "not there", tmp_path / "a.csv.gz"):
        find(tmp_path, dtype="uint16")


@examples(4, deadline=2000)
@given(data=damaged([TABLE], head=80))
def test_damaged_table_raises_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = put(tmp_path_factory.getbasetemp() / "fuzz-olmo", {"a.npy": RAW, "a.csv.gz": data})
    assert_honest_corpus(folder, dtype="uint16")
