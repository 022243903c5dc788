"""Raw files: np.memmap's words, with errors where np.memmap guesses or crashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays.formats import inspect
from lowtide.errors import ArgumentError, FormatError, LowtideError, TruncatedFileError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import read_in_place, refused, write

CONTENT = bytes(range(240))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "train.bin", CONTENT)


@pytest.mark.parametrize(
    ("dtype", "shape", "offset"),
    [
        ("<u2", None, 0),
        (np.uint16, None, 0),
        (">f8", None, 0),
        ("<u2", 7, 0),
        ("<u2", np.int64(7), 4),
        ("<u2", (7,), 3),
        ("u1", (3, 5), 1),
        ("u1", [3, 5], 1),
        ("<i4", (), 236),
        ("<i4", (0,), 240),
        ("<i4", (0, 5), 0),
        ([("a", "<u2"), ("b", ">f4", (2,))], None, 0),
        ("(3,)u2", None, 0),
        ("(3,)u2", (4, 2), 0),
    ],
    ids=str,
)
def test_raw_file_reads_as_np_memmap_does(path: Path, dtype: Any, shape: Any, offset: int) -> None:
    expected = np.memmap(path, dtype, "r", offset, shape) if shape != (0,) else np.zeros(0, dtype)
    layout = inspect(path, dtype, shape, offset)
    result = read_in_place(layout)
    assert (layout.format, layout.offset, layout.file_size) == ("raw", offset, 240)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("shape", "offset", "expected"),
    [
        (-1, 0, (60,)),
        ((-1, 5), 0, (12, 5)),
        ((5, -1), 40, (5, 10)),
        ((2, -1, 3), 0, (2, 10, 3)),
        ((-1,), 4, (59,)),
    ],
    ids=str,
)
def test_length_of_minus_one_is_inferred(
    path: Path, shape: Any, offset: int, expected: tuple[int, ...]
) -> None:
    assert inspect(path, "<i4", shape, offset).shape == expected


def test_dtype_and_offset_read_any_file_as_raw(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.zeros(4))
    assert inspect(path, "u1", offset=0).shape == (160,)


@pytest.mark.parametrize("shape", [(3, 4, 5), (-1, 4, 5), (3, 20), (60,), (60, 1), 60, None], ids=str)
def test_fortran_order_matches_np_memmap(tmp_path: Path, shape: Any) -> None:
    np.arange(60, dtype="<i4").tofile(tmp_path / "a.bin")
    result = lowtide.open(tmp_path / "a.bin", "<i4", shape, order="F")
    known = tuple(3 if length == -1 else length for length in shape) if isinstance(shape, tuple) else shape
    expected = np.memmap(tmp_path / "a.bin", "<i4", "r", shape=known, order="F")
    assert np.array_equal(result[:], expected)
    assert np.array_equal(result[-1], expected[-1])


def test_invalid_order_or_mode_raises(path: Path) -> None:
    with refused(ArgumentError, path, "order must be 'C' or 'F'", "'A'"):
        lowtide.open(path, "<i4", order="A")  # type: ignore[call-overload]
    with refused(UnsupportedError, path, "base dtype"):
        lowtide.open(path, "(3,)<i4", order="F")
    with refused(ArgumentError, path, "order='F'", "dtype"):
        lowtide.open(path, order="F")
    assert lowtide.open(path, "<i4", mode="r").shape == (60,)
    for mode in ("w+", "c", None):
        with refused(ArgumentError, repr(mode), "lowtide.create", "append=True"):
            lowtide.open(path, "<i4", mode=mode)  # type: ignore[call-overload]


def test_mode_as_the_third_argument_raises(path: Path) -> None:
    with refused(ArgumentError, path, "'r'", "mode third", "by name"):
        lowtide.open(path, "<i4", "r")  # type: ignore[call-overload]


def test_file_object_raises(path: Path) -> None:
    with path.open("rb") as file, refused(ArgumentError, "file object", "pass its name"):
        lowtide.open(file, "<i4")  # type: ignore[call-overload]


@dataclass(frozen=True)
class Refusal:
    id: str
    arguments: dict[str, Any]
    kind: type[LowtideError]
    says: tuple[str, ...]


REFUSALS = [
    Refusal(
        "multiple", {"dtype": "V7"}, FormatError, ("240 bytes", "elements of 7", "2 left over", "shape=(34,)")
    ),
    Refusal(
        "rows",
        {"dtype": "<f4", "shape": (-1, 7), "offset": 4},
        FormatError,
        ("236 bytes from byte 4", "rows of 28 bytes", "12 left over", "shape=(8, 7)"),
    ),
    Refusal(
        "large",
        {"dtype": "<f4", "shape": (61,)},
        TruncatedFileError,
        ("(61,)", "expected 244", "240 bytes", "shape=None"),
    ),
    Refusal("beyond", {"dtype": "u1", "offset": 241}, ArgumentError, ("241", "at most 240")),
    Refusal("at-end", {"dtype": "u1", "offset": 240}, FormatError, ("0 bytes from byte 240", "shape=(0,)")),
    Refusal("before", {"dtype": "u1", "offset": -1}, ArgumentError, ("an integer >= 0", "-1")),
    Refusal("float-offset", {"dtype": "u1", "offset": 1.5}, ArgumentError, ("integer", "1.5")),
    Refusal("object", {"dtype": "O"}, UnsupportedError, ("dtype object", "numeric or fixed-width")),
    Refusal(
        "object-nested",
        {"dtype": [("a", "O")]},
        UnsupportedError,
        ("Python objects", "numeric or fixed-width"),
    ),
    Refusal("width-0", {"dtype": "S"}, ArgumentError, ("0 bytes", "'S16'")),
    Refusal("nonsense", {"dtype": "uint17"}, ArgumentError, ("'uint17'", "not understood")),
    Refusal("nonsense-shape", {"dtype": "(,)f8"}, ArgumentError, ("'(,)f8'", "not understood")),
    Refusal("two-open", {"dtype": "u1", "shape": (-1, -1)}, ArgumentError, ("(-1, -1)", "one -1")),
    Refusal("negative", {"dtype": "u1", "shape": (-2,)}, ArgumentError, ("(-2,)", "no other negative")),
    Refusal("bool", {"dtype": "u1", "shape": True}, ArgumentError, ("True", "integer")),
    Refusal("text", {"dtype": "u1", "shape": "12"}, ArgumentError, ("'12'", "integer")),
    Refusal("text-inside", {"dtype": "u1", "shape": ("1", 2)}, ArgumentError, ("'1'", "integer")),
    Refusal("zero", {"dtype": "u1", "shape": (-1, 0)}, ArgumentError, ("(-1, 0)", "another length is 0")),
    Refusal("overflow", {"dtype": "<f8", "shape": (2**61, 0)}, FormatError, (str(2**61), "2**63 - 1")),
    Refusal("dimensions", {"dtype": "u1", "shape": (1,) * 65}, FormatError, ("65 dimensions", "64")),
    Refusal("name", {"dtype": "u1", "name": "x"}, ArgumentError, ("'x'", "no members", "leave out")),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_invalid_arguments_raise(path: Path, case: Refusal) -> None:
    with refused(case.kind, path, *case.says):
        inspect(path, **case.arguments)


def test_array_up_to_end_of_file_is_read(path: Path) -> None:
    assert inspect(path, "<f4", (60,)).shape == (60,)
    assert inspect(path, "u1", offset=239).shape == (1,)


@pytest.mark.parametrize("arguments", [{"shape": (3,)}, {"offset": 2}], ids=str)
def test_shape_or_offset_without_dtype_raises(path: Path, arguments: dict[str, Any]) -> None:
    [value] = arguments.values()
    with refused(ArgumentError, path, repr(value), "dtype=..."):
        inspect(path, **arguments)


def test_empty_file_needs_explicit_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.bin", b"")
    assert inspect(path, "<u2", (0,)).shape == (0,)
    with refused(FormatError, path, "0 bytes", "shape=(0,)"):
        inspect(path, "<u2")


def test_only_published_rows_are_read_during_append(path: Path) -> None:
    write(path.with_name("train.bin.appending"), b'{"size": 200}')
    layout = inspect(path, "<f4")
    assert (layout.shape, layout.file_size) == ((50,), 200)
    with refused(TruncatedFileError, path, "240", "200"):
        inspect(path, "<f4", (60,))


LENGTHS = st.integers(-2, 12) | st.sampled_from([2**31, 2**62, 2**63, -(2**63), 10**30])


@examples(6, deadline=2000)
@given(
    content=st.binary(max_size=64),
    dtype=st.sampled_from(["u1", "<u2", ">f8", "V3", "S0", "O", "(2,)u2", "(0,)u2", "nope", [("a", "u1")]]),
    shape=st.none() | LENGTHS | st.lists(LENGTHS, max_size=3).map(tuple),
    offset=st.integers(-2, 70) | st.just(2**64),
)
def test_accepted_layout_lies_within_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, dtype: Any, shape: Any, offset: int
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "fuzz.bin", content)
    try:
        layout = inspect(path, dtype, shape, offset)
    except LowtideError:
        return
    assert 0 <= layout.offset <= layout.offset + layout.nbytes <= len(content)
