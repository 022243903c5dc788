"""Hugging Face data sets of tokens: from the real library, from pyarrow, and damaged."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

import lowtide
from lowtide._tokens.formats import find
from lowtide.errors import ArgumentError, FormatError, LowtideError, TruncatedFileError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import damaged, refused
from tests.support.token_files import assert_honest_corpus, document_bounds, put, read_tokens

DOCUMENTS = [list(range(n, n + n % 7)) for n in range(2500)]
FIXED = [[n] * 8 for n in range(2500)]
FEATURES: dict[str, tuple[Any, list[list[int]]]] = {
    "list": (datasets.List(datasets.Value("int32")), DOCUMENTS),
    "large list": (datasets.LargeList(datasets.Value("uint16")), DOCUMENTS),
    "list of fixed size": (datasets.List(datasets.Value("int64"), length=8), FIXED),
}


def saved(folder: Path, rows: list[list[int]], feature: Any = None, **options: Any) -> Path:
    """What the library writes for rows, with a column of another type before theirs and one behind."""
    columns = {"name": [f"row {i}" for i in range(len(rows))], "input_ids": rows, "z": [1.5] * len(rows)}
    features = None
    if feature is not None:
        values = {"name": datasets.Value("string"), "input_ids": feature, "z": datasets.Value("float32")}
        features = datasets.Features(values)
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(folder, **options)
    return folder


@pytest.mark.parametrize("kind", FEATURES)
@pytest.mark.parametrize("shards", [1, 3])
def test_saved_data_set_is_read_in_place(tmp_path: Path, kind: str, shards: int) -> None:
    feature, rows = FEATURES[kind]
    folder = saved(tmp_path / "saved", rows, feature, num_shards=shards)
    layout = find(folder)
    assert layout.format == "arrow"
    assert str(layout.dtype) == (getattr(feature, "feature", None) or feature).dtype
    assert read_tokens(layout).tolist() == [token for row in rows for token in row]
    assert np.diff(document_bounds(layout), axis=1).ravel().tolist() == [len(row) for row in rows]
    with pickle.loads(pickle.dumps(lowtide.corpus(folder))) as corpus:
        assert len(corpus.paths) == shards
        picked = np.array([2499, 0, 1234, 1233])
        starts = np.cumsum([0, *map(len, rows)])
        assert corpus.documents.starts(picked).tolist() == starts[picked].tolist()
        assert corpus.document(-1).tolist() == rows[-1]
        corpus.documents.verify()
        x, y = corpus.batches(4, 16, order="packed")[3]
        assert (x[:, 1:] == y[:, :-1]).all()


def test_every_token_comes_once_per_epoch(tmp_path: Path) -> None:
    rows = [list(range(n, n + 9)) for n in range(0, 9 * 300, 9)]
    batches = lowtide.corpus(saved(tmp_path / "saved", rows, num_shards=4)).batches(5, 20)
    tokens = np.concatenate([batches[step][0].ravel() for step in range(batches.epoch_steps)])
    assert sorted(tokens.tolist()) == list(range(2700))


def test_dataset_dict_splits_are_selected(tmp_path: Path) -> None:
    rows = {"train": [[1, 2], [3]], "validation": [[4, 5, 6]]}
    splits = {name: datasets.Dataset.from_dict({"input_ids": value}) for name, value in rows.items()}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    for split, expected in (("train", [1, 2, 3]), ("val", [4, 5, 6]), ("validation", [4, 5, 6])):
        assert lowtide.corpus(tmp_path / "saved", split=split)[:].tolist() == expected
    assert lowtide.corpus(tmp_path / "saved" / "validation")[:].tolist() == [4, 5, 6]
    with refused(ArgumentError, "dataset_dict.json", "no split 'test'", "validation"):
        lowtide.corpus(tmp_path / "saved", split="test")
    with refused(ArgumentError, "is one data set and has no split 'val'"):
        lowtide.corpus(tmp_path / "saved" / "train", split="val")


def test_arrow_files_without_index_are_read(tmp_path: Path) -> None:
    """As in the library's cache, and as an IPC file of pyarrow."""
    for name, split in (("a-train-00000", "train"), ("a-train-00001", "train"), ("a-validation-0", "val")):
        (tmp_path / f"{name}.arrow").write_bytes(stream({"input_ids": [[1, 2], [3]]}))
        assert find(tmp_path, split=split).format == "arrow"
    assert lowtide.corpus(tmp_path)[:].tolist() == [1, 2, 3] * 2
    assert lowtide.corpus(tmp_path / "*validation*")[:].tolist() == [1, 2, 3]
    table = pa.table({"tokens": [[7, 8], [9]]})
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    corpus = lowtide.corpus(tmp_path / "file.arrow")
    assert (corpus[:].tolist(), corpus.documents.count) == ([7, 8, 9], 2)


def stream(columns: dict[str, Any], batch: int = 2, **options: Any) -> bytes:
    """An Arrow stream in record batches of so many rows."""
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)
    return sink.getvalue()


TYPES: list[Any] = [
    pa.null(),
    pa.bool_(),
    pa.float64(),
    pa.string(),
    pa.large_binary(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.struct([("a", pa.list_(pa.int32())), ("b", pa.string())]),
    pa.map_(pa.string(), pa.int64()),
    pa.list_(pa.list_(pa.int16())),
    pa.timestamp("s"),
    pa.decimal128(9, 2),
    pa.list_(pa.float32(), 3),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_columns_before_tokens_may_have_any_type(tmp_path: Path, kind: Any) -> None:
    other = pa.nulls(5, kind)
    rows = [[1], [], [2, 3, 4], [5], [6, 7]]
    (tmp_path / "x.arrow").write_bytes(stream({"other": other, "input_ids": rows}))
    corpus = lowtide.corpus(tmp_path / "x.arrow")
    assert corpus[:].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert [corpus.document(i).tolist() for i in range(5)] == rows


def test_list_offsets_may_start_above_zero(tmp_path: Path) -> None:
    """pyarrow moves them to zero, and other writers do not."""
    data = bytearray(stream({"input_ids": [[10, 11, 12], [13, 14]]}))
    at = data.find(np.array([0, 3, 5], "<i4").tobytes())
    data[at : at + 12] = np.array([1, 3, 5], "<i4").tobytes()
    (tmp_path / "x.arrow").write_bytes(data)
    corpus = lowtide.corpus(tmp_path / "x.arrow")
    assert [corpus.document(i).tolist() for i in range(2)] == [[11, 12], [13, 14]]


REFUSED: dict[str, tuple[dict[str, Any], type[LowtideError], tuple[str, ...]]] = {
    "text": ({"story": ["low", "tide"]}, FormatError, ("lowtide prepare", "--text-field story", "['story']")),
    "numbers": ({"x": [1.5, 2.5]}, FormatError, ("without a column 'input_ids' of integers",)),
    "several lists": ({"a": [[1]], "b": [[2]]}, FormatError, ("rename_column('a', 'input_ids')",)),
    "null rows": ({"input_ids": [[1], None]}, UnsupportedError, ("nulls (1 rows, 0 values)", "filter")),
    "null values": ({"input_ids": [[1, None]]}, UnsupportedError, ("nulls (0 rows, 1 values)",)),
    "no tokens": ({"input_ids": pa.array([[], []], pa.list_(pa.int32()))}, FormatError, ("holds no tokens",)),
    "views": (
        {"s": pa.array(["a", "b"], pa.string_view()), "input_ids": [[1], [2]]},
        UnsupportedError,
        ("'s'", "cannot be passed over"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_column_without_tokens_raises(tmp_path: Path, name: str) -> None:
    columns, kind, parts = REFUSED[name]
    (tmp_path / "x.arrow").write_bytes(stream(columns))
    with refused(kind, tmp_path / "x.arrow", *parts):
        lowtide.corpus(tmp_path / "x.arrow")


def test_compressed_and_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(stream({"input_ids": [list(range(100))] * 4}, compression="zstd"))
    with refused(UnsupportedError, path, "compressed", "save it uncompressed"):
        find(path)
    whole = stream({"input_ids": [list(range(100))] * 4})
    path.write_bytes(whole[:-100])
    with refused(TruncatedFileError, path, f"{len(whole) - 100} bytes"):
        find(path)


def test_state_json_with_path_outside_folder_raises(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", [[1, 2, 3]])
    state = json.loads((folder / "state.json").read_text())
    for name in ("../x.arrow", "/etc/passwd", 7):
        (folder / "state.json").write_text(json.dumps({**state, "_data_files": [{"filename": name}]}))
        with refused(FormatError, folder / "state.json", "_data_files[0].filename"):
            find(folder)
    (folder / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "i"}]}))
    with refused(UnsupportedError, "flatten_indices()"):
        find(folder)


def test_dtype_mismatch_raises(tmp_path: Path) -> None:
    for name, kind in (("a", pa.int32()), ("b", pa.int64())):
        (tmp_path / f"{name}.arrow").write_bytes(stream({"input_ids": pa.array([[1]], pa.list_(kind))}))
    with refused(ArgumentError, tmp_path / "b.arrow", "another dtype", "int64", "int32"):
        find([tmp_path / "a.arrow", tmp_path / "b.arrow"])
    with refused(ArgumentError, "uint16", "int32"):
        find(tmp_path / "a.arrow", dtype="uint16")


ORIGINALS = [
    stream({"name": ["a", "b", "c"], "input_ids": [[1, 2], [3], [4, 5]]}),
    stream({"input_ids": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.uint16(), 2))}),
]


@examples(6, deadline=2000)
@given(data=damaged(ORIGINALS, head=900))
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = put(tmp_path_factory.getbasetemp() / "fuzz-arrow", {"x.arrow": data})
    assert_honest_corpus(folder / "x.arrow")
