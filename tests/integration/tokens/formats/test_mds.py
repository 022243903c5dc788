"""MosaicML Streaming's MDS shards: from the bytes that its MDSWriter writes, and damaged.

mosaicml-streaming 0.13.0 asks for numpy < 2.2 and transformers < 5, so it cannot be installed beside the
other writers. ``REAL`` has the digests of shards that it wrote, in a separate environment, from the same
samples that are written here from the format's description: the bytes are the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._io.identity import Identity
from lowtide._tokens.formats import find, records
from lowtide._tokens.formats.mds import CODES
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

SIZES = {"uint32": 4, "int": 8}
Columns = dict[str, str]
Sample = dict[str, Any]


def static_size(encoding: str) -> int | None:
    if encoding.startswith("ndarray:") and encoding.count(":") == 2:
        _, dtype, shape = encoding.split(":")
        return int(np.prod([int(length) for length in shape.split(",")])) * np.dtype(dtype).itemsize
    return SIZES.get(encoding)


def encode(encoding: str, value: Any) -> bytes:
    if encoding == "bytes":
        return bytes(value)
    if encoding == "str":
        return str(value).encode()
    if encoding == "uint32":
        return struct.pack("<I", value)
    array = np.asarray(value)
    head = b""
    if encoding == "ndarray":
        head += bytes([next(code for code, name in CODES.items() if name == array.dtype.name)])
    if encoding.count(":") < 2:
        code = 0 if max(array.shape) < 256 else 1
        head += bytes([array.ndim << 2 | code]) + np.array(array.shape, ["u1", "<u2"][code]).tobytes()
    return head + array.tobytes()


def shard(columns: Columns, samples: list[Sample], size_limit: int = 1 << 26) -> bytes:
    names = sorted(columns)
    config = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [static_size(columns[name]) for name in names],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": size_limit,
        "version": 2,
    }
    blobs = []
    for sample in samples:
        parts = {name: encode(columns[name], sample[name]) for name in names}
        sizes = [len(parts[name]) for name in names if static_size(columns[name]) is None]
        blobs.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts[name] for name in names))
    text = json.dumps(config, sort_keys=True).encode()
    first = 4 + 4 * (len(samples) + 1) + len(text)
    offsets = [first + sum(map(len, blobs[:i])) for i in range(len(samples) + 1)]
    return struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets) + text + b"".join(blobs)


def build(columns: Columns, *shards: list[Sample]) -> Files:
    files: Files = {}
    entries = []
    for i, samples in enumerate(shards):
        name = f"shard.{i:05}.mds"
        files[name] = shard(columns, samples)
        names = sorted(columns)
        entry = {
            "column_encodings": [columns[name] for name in names],
            "column_names": names,
            "column_sizes": [static_size(columns[name]) for name in names],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "raw_data": {"basename": name, "bytes": len(files[name]), "hashes": {}},
            "samples": len(samples),
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        entries.append(entry)
    files["index.json"] = json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode()
    return files


def changed(files: Files, **changes: Any) -> Files:
    """``files`` with fields of the first shard's entry changed."""
    index = json.loads(files["index.json"])
    entry = index["shards"][0]
    for key, value in changes.items():
        (entry["raw_data"] if key in ("basename", "bytes") else entry)[key] = value
    return {**files, "index.json": json.dumps(index).encode()}


def ids(count: int, start: int = 0, dtype: str = "uint16") -> np.ndarray:
    return np.arange(start, start + count, dtype=dtype)


CASES: dict[str, tuple[Columns, list[Sample]]] = {
    "fixed": ({"tokens": "ndarray:uint16:8"}, [{"tokens": ids(8)}]),
    "even": ({"tokens": "ndarray:uint16"}, [{"tokens": ids(8, 8 * i)} for i in range(5)]),
    "uneven": ({"tokens": "ndarray:uint16"}, [{"tokens": ids(8 + i, 8 * i)} for i in range(5)]),
    "large": ({"tokens": "ndarray:uint16"}, [{"tokens": ids(300, 8 * i)} for i in range(3)]),
    "dynamic": ({"tokens": "ndarray"}, [{"tokens": ids(8, 8 * i, "uint32")} for i in range(5)]),
    "bytes": ({"tokens": "bytes"}, [{"tokens": ids(8, 8 * i).tobytes()} for i in range(5)]),
    "str-before": (
        {"tokens": "ndarray:int32:4", "id": "str"},
        [{"tokens": ids(4, 8 * i, "int32"), "id": f"x{i}"} for i in range(5)],
    ),
    "int-before": (
        {"tokens": "ndarray:int32:4", "id": "uint32"},
        [{"tokens": ids(4, 8 * i, "int32"), "id": i} for i in range(5)],
    ),
}
REAL = {
    "fixed": "89840eba15dbf092",
    "even": "092974c0292673e4",
    "uneven": "e9217ab5485476c6",
    "large": "092c6f8d0cf07d06",
    "dynamic": "bf6314e247904800",
    "bytes": "b2ea0d7bd4dc2382",
    "str-before": "0e40cca76365f150",
    "int-before": "59de03d391924b10",
}


@pytest.mark.parametrize("name", CASES)
def test_built_shards_match_mds_writer_bytes(name: str) -> None:
    limit = 100 if name == "fixed" else 1 << 26
    assert hashlib.sha256(shard(*CASES[name], limit)).hexdigest().startswith(REAL[name])


@pytest.mark.parametrize("name", CASES)
def test_every_column_encoding_is_read(tmp_path: Path, name: str) -> None:
    columns, samples = CASES[name]
    tokens = find(put(tmp_path, build(columns, samples)), dtype="uint16" if name == "bytes" else None)
    values = [np.frombuffer(s["tokens"], "<u2") if name == "bytes" else s["tokens"] for s in samples]
    assert (tokens.format, tokens.dtype) == ("mds", values[0].dtype)
    assert (tokens.metadata["column"], tokens.metadata["columns"]) == ("tokens", tuple(sorted(columns)))
    assert read_tokens(tokens).tolist() == np.concatenate(values).tolist()
    ends = np.cumsum([len(value) for value in values]).tolist()
    assert [bound[1] for bound in document_bounds(tokens)] == ends
    assert document_bounds(pickle.loads(pickle.dumps(tokens))) == document_bounds(tokens)
    assert tokens.documents is not None
    tokens.documents.verify()
    assert len(tokens.segments) == (len(samples) if name in ("uneven", "str-before") else 1)


WRITER = """
import sys, types
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")  # it would want torchvision
import numpy
from streaming import MDSWriter
with MDSWriter(out=sys.argv[1] + "/x", columns={"tokens": "ndarray:uint16"}, size_limit=400) as writer:
    for i in range(20):
        writer.write({"tokens": numpy.arange(8 * i, 8 * i + 8, dtype=numpy.uint16)})
"""


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("streaming") is None,
    reason="mosaicml-streaming does not install beside a current NumPy",
)
def test_files_of_mds_writer_are_read(tmp_path: Path) -> None:
    folder = written_by("streaming", WRITER, tmp_path)
    assert read_tokens(find(folder / "x")).tolist() == list(range(160))


def test_empty_shards_are_skipped(tmp_path: Path) -> None:
    columns = {"tokens": "ndarray:uint16"}
    put(
        tmp_path, build(columns, [], [{"tokens": ids(2)}, {"tokens": ids(2, 2)}], [], [{"tokens": ids(5, 4)}])
    )
    tokens = find(tmp_path)
    assert [(s.count, s.record, s.stride) for s in tokens.segments] == [(4, 2, 10), (5, 5, 16)]
    assert read_tokens(tokens).tolist() == list(range(9))
    assert document_bounds(tokens) == [[0, 2], [2, 4], [4, 9]]
    put(tmp_path, build(columns, [], []))
    with refused(FormatError, tmp_path / "index.json", "found 0 in 2 shards"):
        find(tmp_path)


def test_adjacent_values_are_joined_into_one_run(tmp_path: Path) -> None:
    put(tmp_path, build({"tokens": "ndarray:uint16:4"}, [{"tokens": ids(4, 4 * i)} for i in range(3)]))
    [segment] = find(tmp_path).segments
    assert (segment.count, segment.record, segment.stride) == (12, 0, 0)


def test_token_column_is_detected(tmp_path: Path) -> None:
    two = {"a": "ndarray:uint16", "b": "ndarray:uint16"}
    put(tmp_path, build(two, [{"a": ids(2), "b": ids(2)}]))
    with refused(UnsupportedError, "a (ndarray:uint16), b (ndarray:uint16)", "tokens or input_ids"):
        find(tmp_path)
    named = {"attention_mask": "ndarray:uint8", "input_ids": "ndarray:uint16"}
    put(tmp_path, build(named, [{"attention_mask": ids(2, 0, "uint8"), "input_ids": ids(2, 7)}]))
    assert read_tokens(find(tmp_path)).tolist() == [7, 8]
    put(tmp_path, build({"text": "str"}, [{"text": "hi"}]))
    with refused(UnsupportedError, "text (str)"):
        find(tmp_path)


def test_bytes_column_without_dtype_raises(tmp_path: Path) -> None:
    put(tmp_path, build(*CASES["bytes"]))
    with refused(ArgumentError, tmp_path / "index.json", "'tokens' (bytes)", "dtype='int64'"):
        find(tmp_path)
    with refused(FormatError, "16 bytes of tokens", "multiple of a token's 3"):
        records.Gatherer(1, 3)._tokens(records.SampleFile("x", 0, 0, 0, Identity(0, 0, 0, 0)), 16)


def test_two_dimensional_samples_raise(tmp_path: Path) -> None:
    put(tmp_path, build({"tokens": "ndarray:uint16"}, [{"tokens": ids(8).reshape(2, 4)}]))
    with refused(UnsupportedError, tmp_path / "shard.00000.mds", "2 axes"):
        find(tmp_path)
    put(tmp_path, build({"tokens": "ndarray:uint16:2,4"}, [{"tokens": ids(8).reshape(2, 4)}]))
    with refused(UnsupportedError, tmp_path / "index.json", "2 axes"):
        find(tmp_path)


def test_compressed_shard_without_decompressed_copy_raises(tmp_path: Path) -> None:
    files = changed(build(*CASES["even"]), compression="zstd", zip_data={"basename": "shard.00000.mds.zstd"})
    assert find(put(tmp_path, files)).count == 40
    del files["shard.00000.mds"]
    put(tmp_path, {**files, "shard.00000.mds.zstd": b""})
    with refused(UnsupportedError, tmp_path / "index.json", "compressed ('zstd')", "decompress"):
        find(tmp_path)


EVEN = build(*CASES["even"])
Lie = tuple[Files, type[LowtideError], tuple[object, ...]]


def with_bytes(at: int, data: bytes, original: Files = EVEN) -> Files:
    old = original["shard.00000.mds"]
    at = at if at >= 0 else len(old) + at
    return {**original, "shard.00000.mds": old[:at] + data + old[at + len(data) :]}


FIRST = struct.unpack_from("<I", EVEN["shard.00000.mds"], 4)[0]
LIES: dict[str, Lie] = {
    "version": (
        {**EVEN, "index.json": b'{"version": 3, "shards": [7]}'},
        FormatError,
        ("version", "found [3,"),
    ),
    "none": ({**EVEN, "index.json": b'{"version": 2, "shards": []}'}, FormatError, ("not empty",)),
    "shard": (
        {**EVEN, "index.json": b'{"version": 2, "shards": [7]}'},
        FormatError,
        ("shards[0]", "found 7"),
    ),
    "format": (changed(EVEN, format="csv"), UnsupportedError, ("'csv'", "MDSWriter")),
    "samples": (changed(EVEN, samples=4), FormatError, ("5 samples", "expected 4")),
    "samples-text": (changed(EVEN, samples="5"), FormatError, ("shards[0].samples", "'5'")),
    "bytes": (changed(EVEN, bytes=321), TruncatedFileError, ("320 bytes", "expected 321")),
    "gone": (changed(EVEN, basename="x.mds"), NotFoundError, ("x.mds", "shards[0].raw_data.basename")),
    "outside": (changed(EVEN, basename="../x.mds"), FormatError, ("leads outside", "../x.mds")),
    "raw": (changed(EVEN, raw_data=None), FormatError, ("raw_data",)),
    "columns": (changed(EVEN, column_names=["a", "b"]), FormatError, ("one of each", "['a', 'b']")),
    "column-sizes": (changed(EVEN, column_sizes=[-1]), FormatError, ("column_sizes", "-1")),
    "fixed-size": (
        changed(EVEN, column_sizes=[16]),
        FormatError,
        ("found 16, expected None",),
    ),
    "float": (changed(EVEN, column_encodings=["ndarray:float32"]), FormatError, ("integers",)),
    "encoding": (changed(EVEN, column_encodings=["ndarray:"]), FormatError, ("ndarray:DTYPE",)),
    "size": (with_bytes(FIRST, struct.pack("<I", 17)), FormatError, ("byte 210 to 232", "[17]")),
    "axes": (with_bytes(FIRST + 4, b"\x08"), UnsupportedError, ("2 axes",)),
    "length": (with_bytes(FIRST + 5, b"\x07"), FormatError, ("7 values of 2 bytes", "16 bytes")),
    "offset": (with_bytes(4, struct.pack("<I", 8)), FormatError, ("from byte 8", "from byte 28 on")),
    "dtype-code": (
        with_bytes(203 + 4, b"\x22", build(*CASES["dynamic"])),
        FormatError,
        (
            "dtype code",
            "found 34",
        ),
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_index_or_shard_raises(tmp_path: Path, name: str) -> None:
    files, kind, says = LIES[name]
    put(tmp_path, files)
    with refused(kind, tmp_path, *says):
        find(tmp_path)


def test_shards_with_different_columns_raise(tmp_path: Path) -> None:
    files = build({"tokens": "ndarray:uint16"}, [{"tokens": ids(2)}], [{"tokens": ids(2)}])
    with refused(
        FormatError, tmp_path / "index.json", "shards[1] is invalid", "expected the columns of shards[0]"
    ):
        find(put(tmp_path, changed(files, column_names=["input_ids"])))


@examples(8, deadline=2000)
@given(
    data=st.data(),
    case=st.sampled_from(sorted(CASES)),
    which=st.sampled_from(["index.json", "shard.00000.mds"]),
)
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, case: str, which: str
) -> None:
    files = build(*CASES[case])
    files[which] = data.draw(damaged([files[which]], head=330 if which == "index.json" else 260))
    folder = put(tmp_path_factory.getbasetemp() / "fuzz-mds", files)
    assert_honest_corpus(folder, dtype="uint16" if case == "bytes" else None)


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4) | st.just([]) | st.just({})
)


@examples(4, deadline=2000)
@given(
    key=st.sampled_from(
        ["column_names", "column_encodings", "column_sizes", "samples", "bytes", "basename", "version"]
    ),
    value=VALUES | st.lists(VALUES, max_size=2),
)
def test_arbitrary_index_values_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz-mds"
    assert_honest_corpus(put(folder, changed(EVEN, **{key: value})))


def test_error_for_huge_encoding_is_short(tmp_path: Path) -> None:
    files = build({"tokens": "ndarray:uint16:8"}, [{"tokens": ids(8)}])
    put(tmp_path, changed(files, column_encodings=["ndarray:" + "x" * 10**6]))
    with pytest.raises(FormatError) as caught:
        find(tmp_path)
    assert len(str(caught.value)) < 1000
