"""safetensors: checked against the real writer, and with the reference's rules for what is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from lowtide._arrays.formats import inspect, members
from lowtide._arrays.formats.safetensors import DTYPES, MAX_HEADER
from lowtide.errors import FormatError, LowtideError, MemberError, TruncatedFileError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import assert_honest, assert_same, damaged, refused, write


def build(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with just this header: a JSON value, or bytes that need not be JSON."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype: Any = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_tensors_of_reference_writer_are_read_in_place(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "w.safetensors"
    arrays = {
        "a.weight": np.arange(12).reshape(3, 4).astype(dtype),
        "scalar": np.ones((), dtype),
        "empty": np.zeros((0, 7), dtype),
        "größe": np.ones((2, 1, 3), dtype),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    loaded = safetensors.numpy.load_file(path)
    assert {member.name for member in members(path)} == set(arrays)
    for name, array in loaded.items():
        layout = inspect(path, name=name)
        assert (layout.format, layout.name, layout.dtype) == ("safetensors", name, np.dtype(dtype))
        assert_same(layout, array)


def test_single_tensor_needs_no_name_or_suffix(tmp_path: Path) -> None:
    path = tmp_path / "blob"  # as a model hub's cache names them
    safetensors.numpy.save_file({"w": np.arange(3)}, path)
    assert_same(inspect(path), np.arange(3))


def test_file_without_tensors_raises(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({}, path, metadata={"a": "b"})
    assert members(path) == []
    with refused(MemberError, path, "holds no array"):
        inspect(path)


@dataclass(frozen=True)
class Raw:
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    call: str


@pytest.mark.parametrize(
    "case",
    [
        Raw("BF16", (2, 3), 12, "dtype='uint16', shape=(2, 3)"),
        Raw("F8_E4M3", (5,), 5, "dtype='uint8', shape=(5,)"),
        Raw("F8_E5M2", (5,), 5, "dtype='uint8', shape=(5,)"),
        Raw("F4", (2, 3), 3, "dtype='uint8', shape=(3,)"),
        Raw("F6_E2M3", (4,), 3, "dtype='uint8', shape=(3,)"),
        Raw("X128", (4,), 3, "dtype='uint8', shape=(3,)"),
    ],
    ids=lambda case: case.dtype,
)
def test_dtype_missing_in_numpy_error_shows_raw_open_call(tmp_path: Path, case: Raw) -> None:
    header = {"f": tensor("F16", (1,), 0, 2), "w": tensor(case.dtype, case.shape, 2, 2 + case.nbytes)}
    data = bytes(range(2 + case.nbytes))
    path = write(tmp_path / "w.safetensors", build(header, data))
    offset = path.stat().st_size - case.nbytes
    call = f"lowtide.open({str(path)!r}, {case.call}, offset={offset})"
    with refused(UnsupportedError, f"{path}['w']", case.dtype, "F32", call):
        inspect(path, name="w")
    assert [member.layout is None for member in members(path)] == [False, True]
    arguments = eval(f"dict({case.call})")
    layout = inspect(path, offset=offset, **arguments)  # the remedy, as printed
    assert np.fromfile(path, "u1", layout.nbytes, offset=layout.offset).tobytes() == data[2:]


@dataclass(frozen=True)
class Lie:
    id: str
    data: bytes
    kind: type[LowtideError]
    says: tuple[object, ...]


DAMAGED = "damaged"
LIES = [
    Lie("length-cut", b"\x10\0\0", TruncatedFileError, ("8 bytes", "byte 3", "truncated")),
    Lie("length-only", struct.pack("<Q", 10), TruncatedFileError, ("byte 8", "truncated")),
    Lie("length-absurd", build({}, length=2**63), FormatError, (2**63, MAX_HEADER, "dtype=")),
    Lie("length-over", build({}, length=MAX_HEADER + 1), FormatError, (MAX_HEADER + 1, "dtype=")),
    Lie("length-beyond", build({}, length=1000), TruncatedFileError, ("1000 bytes", "byte 10", "truncated")),
    Lie("length-0", build(b""), FormatError, ("b'{'", "b''", "0 bytes", "dtype=")),
    Lie("list", build([]), FormatError, ("b'{'", "b'[]'", "dtype=")),
    Lie("leading-space", build(b" {}"), FormatError, ("b'{'", "b' {}'")),
    Lie("no-json", build(b"{nope}"), FormatError, ("invalid JSON", "{nope}", DAMAGED)),
    Lie("no-utf8", build(b'{"\xff": 1}'), FormatError, ("invalid JSON", DAMAGED)),
    Lie("deep", build(b'{"a":' + b"[" * 200_000), FormatError, ("invalid JSON", DAMAGED)),
    Lie("endless-integer", build(b'{"a":' + b"9" * 5000 + b"}"), FormatError, ("invalid JSON", DAMAGED)),
    Lie("behind", build(b"{} {}"), FormatError, ("invalid JSON", DAMAGED)),
    Lie("key-twice", build(b'{"w": 1, "v": 2, "w": 3}'), FormatError, ("'w' occurs more than once",)),
    Lie(
        "key-twice-inside", build(b'{"w": {"dtype": "U8", "dtype": "F32"}}'), FormatError, ("'dtype' occurs",)
    ),
    Lie("no-object", build({"w": 7}), FormatError, ("['w']", "found 7", "dtype, shape, data_offsets")),
    Lie(
        "no-dtype",
        build({"w": {"shape": [], "data_offsets": [0, 0]}}),
        FormatError,
        ("['w']", "dtype, shape"),
    ),
    Lie("dtype-number", build({"w": tensor(7)}), FormatError, ("['w']", "found 7", "'F32'")),
    Lie("shape-number", build({"w": tensor(shape=2)}), FormatError, ("['w']", "found 2", "list")),
    Lie("shape-negative", build({"w": tensor(shape=[-1])}), FormatError, ("['w']", "-1", "at least 0")),
    Lie("shape-bool", build({"w": tensor(shape=[True])}), FormatError, ("['w']", "True", "integers")),
    Lie("shape-float", build({"w": tensor(shape=[2.0])}), FormatError, ("['w']", "2.0", "integers")),
    Lie("shape-overflow", build({"w": tensor(shape=[2**62, 4])}), FormatError, (2**62, "2**63 - 1")),
    Lie("shape-hidden", build({"w": tensor(shape=[2**62, 4, 0])}), FormatError, (2**62, "2**63 - 1")),
    Lie("shape-long", build({"w": tensor(shape=[10**99] * 65)}), FormatError, ("65 dimensions", 64)),
    Lie(
        "offsets-three",
        build({"w": {**tensor(), "data_offsets": [0, 1, 2]}}),
        FormatError,
        ("[0, 1, 2]", "two"),
    ),
    Lie("offsets-back", build({"w": tensor(begin=8, end=0)}), FormatError, ("[8, 0]", "start <= stop")),
    Lie("offsets-negative", build({"w": tensor(begin=-8, end=0)}), FormatError, ("[-8, 0]", "0 <= start")),
    Lie("offsets-bool", build({"w": tensor(begin=False)}), FormatError, ("[False, 8]", "integers")),
    Lie(
        "size",
        build({"w": tensor(end=9)}, bytes(9)),
        FormatError,
        ("['w']", "(2,)", "8 bytes", "hold 9", DAMAGED),
    ),
    Lie("size-bits", build({"w": tensor("F4", (3,), 0, 2)}, bytes(2)), FormatError, ("1.5 bytes", "hold 2")),
    Lie(
        "short", build({"w": tensor()}, bytes(7)), TruncatedFileError, ("expected 8", "7 bytes", "truncated")
    ),
    Lie("long", build({"w": tensor()}, bytes(9)), FormatError, ("expected 8", "9 bytes", "copy or write")),
    Lie(
        "overlap",
        build({"v": tensor(), "w": tensor(begin=4, end=12)}, bytes(12)),
        FormatError,
        ("['w']", "start at 4", "expected 8", "overlaps"),
    ),
    Lie(
        "same-place",
        build({"v": tensor(), "w": tensor()}, bytes(8)),
        FormatError,
        ("['w']", "start at 0", "expected 8", "overlaps"),
    ),
    Lie(
        "hole",
        build({"v": tensor(), "w": tensor(begin=9, end=17)}, bytes(17)),
        FormatError,
        ("['w']", "start at 9", "expected 8", "hole"),
    ),
    Lie(
        "hole-first",
        build({"w": tensor(begin=1, end=9)}, bytes(9)),
        FormatError,
        ("start at 1", "expected 0"),
    ),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.id)
def test_invalid_header_raises(tmp_path: Path, lie: Lie) -> None:
    path = write(tmp_path / "w.safetensors", lie.data)
    with refused(lie.kind, path, *lie.says):
        inspect(path)


@pytest.mark.parametrize(
    "lie",
    [
        lie for lie in LIES if lie.id != "leading-space"
    ],  # against the format's own words, but the package takes it
    ids=lambda lie: lie.id,
)
def test_reference_reader_rejects_the_same_headers(tmp_path: Path, lie: Lie) -> None:
    path = write(tmp_path / "w.safetensors", lie.data)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.load_file(path)


def test_padded_header_and_unknown_fields_are_accepted(tmp_path: Path) -> None:
    header = {"__metadata__": {"a": "b"}, "w": {**tensor(), "note": "new"}}
    path = write(tmp_path / "w.safetensors", build(json.dumps(header).encode() + b"   ", bytes(8)))
    assert inspect(path).shape == (2,)


def test_file_of_many_tensors_is_read(tmp_path: Path) -> None:
    count = 5_000
    header = {f"layer.{i}": tensor("U8", (1,), i, i + 1) for i in range(count)}
    path = write(tmp_path / "w.safetensors", build(header, bytes(count)))
    assert inspect(path, name="layer.4999").nbytes == 1
    with refused(MemberError, path, "5000", "'layer.0'", "'layer.19'", "4980 more"):
        inspect(path)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["F32", "BF16", "F4", "w"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "a"]), inner)
    ),
    max_leaves=5,
)
TENSORS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "BF16", "F4", "F99"]) | VALUES,
        "shape": st.lists(st.integers(0, 4), max_size=3) | VALUES,
        "data_offsets": st.tuples(st.integers(0, 40), st.integers(0, 80)) | VALUES,
    }
)
ORIGINALS = [
    build({"w": tensor(), "v": tensor("BF16", (2, 2), 8, 16)}, bytes(16)),
    safetensors.numpy.save({"a": np.zeros((2, 3)), "b": np.zeros(5, "u1")}, metadata={"k": "v"}),
]


@examples(6, deadline=2000)
@given(data=damaged(ORIGINALS, head=200))
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    assert_honest(write(tmp_path_factory.getbasetemp() / "fuzz.safetensors", data))


@examples(6, deadline=2000)
@given(header=st.dictionaries(st.text(max_size=3), TENSORS | VALUES, max_size=3), data=st.binary(max_size=80))
def test_random_headers_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], data: bytes
) -> None:
    assert_honest(write(tmp_path_factory.getbasetemp() / "fuzz.safetensors", build(header, data)))
