"""NPY: what np.save writes is found, and headers that lie are refused."""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._arrays.formats import inspect, members
from lowtide._arrays.formats.npy import _PYTHON2_LONG, MAX_HEADER, make_header, read_header
from lowtide._io.store import opened
from lowtide.errors import FormatError, LowtideError, TruncatedFileError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import assert_honest, assert_same, damaged, refused, write

NESTED = np.dtype(
    [
        (("the title", "t"), "<i4"),
        ("grid", ">f4", (2, 3)),
        ("inner", [("x", "u1", (2,)), ("y", "<M8[ms]")], (2,)),
        ("text", "<U3"),
        ("flag", "?"),
    ]
)
ALIGNED = np.dtype([("a", "i1"), ("b", "<f8"), ("c", "i1")], align=True)
SUBARRAYS = np.dtype([("a", np.dtype((np.dtype(("<f8", (2,))), (3,))))])


def sample(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array whose bytes are all different from their neighbours, and valid in every dtype."""
    count = int(np.prod(shape, dtype=int))
    if dtype == np.bool_:
        return np.resize([True, False], shape)
    if dtype.kind == "U" or dtype.names is not None:
        return np.zeros(shape, dtype)  # other bytes may be no characters
    raw = np.arange(count * dtype.itemsize, dtype="u8").astype("u1")
    build: np.ndarray = np.ndarray(shape, dtype, raw.tobytes())
    return build


def npy(
    header: str | bytes, version: tuple[int, int] = (1, 0), data: bytes = b"", length: int | None = None
) -> bytes:
    """A file with just this header, which need not be one that NumPy would write."""
    raw = header.encode("utf8") if isinstance(header, str) else header
    width = "<H" if version == (1, 0) else "<I"
    count = len(raw) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack(width, count) + raw + data


def described(descr: str = "'<f4'", fortran: str = "False", shape: str = "(2,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    "dtype",
    [
        "<f4",
        ">f8",
        "<f2",
        "?",
        "u1",
        ">u2",
        "<i8",
        "<c8",
        ">c16",
        "S5",
        "<U7",
        ">U2",
        "V6",
        "<M8[25s]",
        "<m8[D]",
        "g",
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4)], ids=str)
def test_files_of_np_save_are_read_in_place(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a.npy"
    np.save(path, sample(np.dtype(dtype), shape))
    layout = inspect(path)
    assert (layout.format, layout.fortran, layout.name) == ("npy", False, None)
    assert_same(layout, np.load(path))


@pytest.mark.parametrize("dtype", [NESTED, ALIGNED, SUBARRAYS], ids=["nested", "aligned", "subarrays"])
def test_structured_dtypes_match_np_load(tmp_path: Path, dtype: np.dtype) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 2), dtype))
    layout = inspect(path)
    assert layout.dtype == dtype
    assert set(layout.dtype.fields or ()) == set(dtype.fields or ())  # titles are keys too
    assert_same(layout, np.load(path))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
def test_every_header_version_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "a.npy"
    names = ["x", "größe"] if version == (3, 0) else ["x", "y"]
    array = np.zeros(4, [(names[0], "<f4"), (names[1], ">i2")])
    with path.open("wb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns that older readers know only version 1.0
        np.lib.format.write_array(file, array, version=version)
    assert path.read_bytes()[6:8] == bytes(version)
    assert_same(inspect(path), np.load(path))


def test_field_names_beyond_latin1_are_read_from_version_3(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.save(path, np.zeros(4, [("高さ", "<f4")]))
    assert path.read_bytes()[6] == 3
    assert inspect(path).dtype.names == ("高さ",)


@dataclass(frozen=True)
class Order:
    shape: tuple[int, ...]
    fortran: bool


@pytest.mark.parametrize(
    "case",
    [
        Order((3, 4), True),
        Order((2, 3, 4), True),
        Order((7,), False),
        Order((), False),
        Order((1, 7), False),
        Order((7, 1, 1), False),
        Order((0, 3), False),
    ],
    ids=lambda case: f"{case.shape}",
)
def test_fortran_order_is_set_only_where_bytes_differ(tmp_path: Path, case: Order) -> None:
    data = np.arange(int(np.prod(case.shape, dtype=int)), dtype="<i2").tobytes()
    path = write(tmp_path / "a.npy", npy(described("'<i2'", "True", repr(case.shape)), data=data))
    layout = inspect(path)
    assert layout.fortran is case.fortran
    assert_same(layout, np.load(path))


def test_python_2_header_is_read(tmp_path: Path) -> None:
    header = "{'descr': [('3L', '<i4')], 'fortran_order': False, 'shape': (2L, 3L), }\n"
    layout = inspect(write(tmp_path / "a.npy", npy(header, data=bytes(24))))
    assert layout.shape == (2, 3)
    assert layout.dtype.names == ("3L",)
    with refused(FormatError, "not a Python literal"):  # version 3.0 came long after
        inspect(write(tmp_path / "b.npy", npy(header, (3, 0), bytes(24))))


def test_format_is_detected_by_content_not_suffix(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        np.save(file, np.arange(6))
    assert inspect(path).format == "npy"


def test_header_at_any_offset_is_read(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2, 3), ">f4"))
    path = write(tmp_path / "a.bin", b"12345" + buffer.getvalue() + b"behind")
    with opened(path) as store:
        header = read_header(store, 5)
        assert (header.dtype, header.shape, header.offset, header.nbytes) == (
            np.dtype(">f4"),
            (2, 3),
            133,
            24,
        )
        with refused(TruncatedFileError, "x['m']", 5, 5 + 10 + 118, 60, "truncated"):
            read_header(store, 5, end=60, where="x['m']")


@dataclass(frozen=True)
class Lie:
    id: str
    data: bytes
    kind: type[LowtideError]
    says: tuple[str, ...]


OBJECT_REMEDY = ("pickle", "any code", "np.load(..., allow_pickle=True)")
SCHEMA = "['descr', 'fortran_order', 'shape']"
LIES = [
    Lie("object", npy(described("'|O'")), UnsupportedError, ("dtype object", *OBJECT_REMEDY)),
    Lie("object-nested", npy(described("[('a', [('b', '|O')], (2,))]")), UnsupportedError, OBJECT_REMEDY),
    Lie("object-by-name", npy(described("'object'")), UnsupportedError, OBJECT_REMEDY),
    Lie("variable-strings", npy(described("'T'")), UnsupportedError, OBJECT_REMEDY),
    Lie("zero-width", npy(described("'|V0'")), UnsupportedError, ("0 bytes", "np.load")),
    Lie("no-fields", npy(described("[]")), UnsupportedError, ("0 bytes", "np.load")),
    Lie("version", npy(described(), (9, 3)), FormatError, ("version (9.3", "1.0, 2.0 or 3.0", "np.save")),
    Lie("negative", npy(described(shape="(-1,)")), FormatError, ("-1", "at least 0")),
    Lie("bool-length", npy(described(shape="(True,)")), FormatError, ("True", "integers")),
    Lie("float-length", npy(described(shape="(2.0,)")), FormatError, ("2.0", "integers")),
    Lie("list-shape", npy(described(shape="[2]")), FormatError, ("[2]", "tuple of integers")),
    Lie("int-shape", npy(described(shape="2")), FormatError, ("found 2", "tuple of integers")),
    Lie(
        "overflow",
        npy(described(shape="(2**62,)".replace("2**62", str(2**62)))),
        FormatError,
        (str(2**63 - 1),),
    ),
    Lie(
        "overflow-hidden",
        npy(described(shape=f"({2**62}, {2**62}, 0)")),
        FormatError,
        (str(2**62), "2**63 - 1"),
    ),
    Lie(
        "endless-integer",
        npy(described(shape=f"(0x{'f' * 9000},)")),
        FormatError,
        ("too large to show", "2**63 - 1"),
    ),
    Lie("dimensions", npy(described(shape=repr((1,) * 65))), FormatError, ("65 dimensions", "at most 64")),
    Lie("fortran-int", npy(described(fortran="1")), FormatError, ("found 1", "True or False")),
    Lie("key-missing", npy("{'descr': '<f4', 'shape': (2,)}"), FormatError, ("['descr', 'shape']", SCHEMA)),
    Lie(
        "key-more",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}"),
        FormatError,
        ("'x'", SCHEMA),
    ),
    Lie("no-dict", npy("[1, 2]"), FormatError, ("[1, 2]", SCHEMA)),
    Lie(
        "code",
        npy("__import__('os').system('true')"),
        FormatError,
        ("not a Python literal", "system", "copy or write it again"),
    ),
    Lie(
        "call-inside",
        npy(described(shape="(int('2'),)")),
        FormatError,
        ("not a Python literal", "copy or write it again"),
    ),
    Lie("deep", npy("-" * 9000 + "1"), FormatError, ("not a Python literal", "copy or write it again")),
    Lie("deep-sum", npy("1+" * 4500 + "1"), FormatError, ("not a Python literal", "copy or write it again")),
    Lie("unhashable", npy("{[]: 1}"), FormatError, ("not a Python literal", "copy or write it again")),
    Lie("zero-byte", npy(b"{\0}"), FormatError, ("not a Python literal", r"\x00")),
    Lie("escape-warning", npy(described("'\\d'")), FormatError, ("not a Python literal",)),
    Lie("no-utf8", npy(b"{'\xff': 1}", (3, 0)), FormatError, ("not a Python literal", r"\xff")),
    Lie("descr-nonsense", npy(described("'nonsense'")), FormatError, ("'nonsense'", "'<f4'")),
    Lie("descr-deprecated", npy(described("'a5'")), FormatError, ("'a5'", "deprecated", "'<f4'")),
    Lie("descr-comma", npy(described("'f8,O'")), FormatError, ("'f8,O'", "not a type string")),
    Lie("descr-repeat", npy(described("'(,)f8'")), FormatError, ("'(,)f8'", "not a type string")),
    Lie("descr-zero", npy(described("'\\x00'")), FormatError, (r"'\x00'", "not a type string")),
    Lie("descr-dict", npy(described("{'ab': 1}")), FormatError, ("{'ab': 1}", "'<f4'")),
    Lie("descr-number", npy(described("7")), FormatError, ("found 7", "'<f4'")),
    Lie("descr-subarray", npy(described("('<f4', (3,))")), FormatError, ("('<f4', (3,))",)),
    Lie("descr-strings", npy(described("['ab']")), FormatError, ("['ab']", "(name, type)")),
    Lie("descr-name", npy(described("[(1, '<f4')]")), FormatError, ("[(1, '<f4')]", "name")),
    Lie("descr-twice", npy(described("[('a', '<f4'), ('a', '<f4')]")), FormatError, ("('a', '<f4')",)),
    Lie(
        "descr-huge",
        npy(described("[('a', '|V2147483647'), ('b', '|V2147483647')]")),
        FormatError,
        ("2147483647",),
    ),
    Lie("descr-shape", npy(described("[('a', '<f4', (-1,))]")), FormatError, ("(-1,)",)),
    Lie(
        "length-absurd", npy("{}", (2, 0), length=2**32 - 1), FormatError, (str(2**32 - 1), "10000", "dtype=")
    ),
    Lie("length-over", npy(" " * 10_001), FormatError, ("10001", "10000", "offset=10011")),
    Lie("length-beyond", npy("{}", length=9000), TruncatedFileError, ("9010", "byte 12", "truncated")),
    Lie("magic-only", b"\x93NUMPY", TruncatedFileError, ("8", "byte 6", "truncated")),
    Lie("length-cut", b"\x93NUMPY\x02\x00\x10", TruncatedFileError, ("12", "byte 9", "truncated")),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.id)
def test_invalid_header_raises(tmp_path: Path, lie: Lie) -> None:
    path = write(tmp_path / "lie.npy", lie.data)
    with refused(lie.kind, path, *lie.says):
        inspect(path)


def test_header_of_maximum_length_is_read(tmp_path: Path) -> None:
    header = described(shape="(1,)")
    padded = header[:-1] + " " * (MAX_HEADER - len(header)) + "\n"
    assert inspect(write(tmp_path / "a.npy", npy(padded, data=bytes(4)))).offset == 10 + MAX_HEADER


def test_truncated_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(100, "<f4"))
    inspect(path)
    write(path, path.read_bytes()[:-1])
    with refused(TruncatedFileError, path, 528, 527, "(100,)", "truncated or still being written"):
        inspect(path)


def test_trailing_bytes_error_shows_open_call(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.save(file, np.arange(12, dtype="<f4").reshape(3, 4))
        np.save(file, np.zeros(2))
    call = f"lowtide.open({str(path)!r}, dtype='<f4', shape=(3, 4), offset=128)"
    with refused(
        FormatError,
        path,
        320,
        "144 bytes more than the 176 of its header",
        "several arrays in one file",
        call,
    ):
        inspect(path)
    layout = inspect(path, dtype="<f4", shape=(3, 4), offset=128)  # the remedy, as printed
    assert np.array_equal(np.fromfile(path, "<f4", 12, offset=layout.offset), np.arange(12))


def test_trailing_bytes_error_handles_fortran_order_and_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 4), [("x", "<f4")], order="F"))
    write(path, path.read_bytes() + b"!")
    with refused(FormatError, "axes reversed", "dtype=[('x', '<f4')], shape=(4, 3), offset=128"):
        inspect(path)


def test_only_published_rows_are_read_during_append(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5))
    size = path.stat().st_size
    write(path, path.read_bytes() + bytes(24))
    write(tmp_path / "a.npy.appending", b'{"size": %d}' % size)
    layout = inspect(path)
    assert (layout.shape, layout.file_size) == ((5,), size)


def test_object_array_is_listed_with_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    [member] = members(path)
    assert (member.name, member.format, member.layout) == (None, "npy", None)
    assert "pickle" in member.reason


@pytest.mark.parametrize(
    "dtype",
    ["<f4", ">u2", "S3", NESTED, ALIGNED, [("高さ", "<f4")]],
    ids=["f4", "u2", "S3", "nested", "aligned", "utf8"],
)
@pytest.mark.parametrize("row", [(), (4,), (2, 3)], ids=str)
def test_written_header_can_grow_in_place(tmp_path: Path, dtype: object, row: tuple[int, ...]) -> None:
    build = np.dtype(dtype)  # type: ignore[call-overload]
    lengths = set()
    for rows in (0, 1, 9, 10, 12345):
        array = np.zeros((rows, *row), build)
        header = make_header(build, array.shape)
        lengths.add(len(header))
        path = write(tmp_path / "a.npy", header + array.tobytes())
        assert_same(inspect(path), np.load(path))
        assert np.load(path, mmap_mode="r").shape == array.shape
    most = (2**63 - 1) // np.zeros(row, build).nbytes
    lengths.add(len(make_header(build, (most, *row))))
    assert len(lengths) == 1
    assert lengths.pop() % 64 == 0


def test_written_header_equals_that_of_np_save() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((0, 256), "<f4"))
    assert make_header("<f4", (0, 256)) == buffer.getvalue()
    assert np.load(io.BytesIO(make_header("<f4", ()) + bytes(4))).shape == ()


def test_dtype_metadata_is_dropped_without_warning() -> None:
    assert make_header(np.dtype("S3", metadata={"a": 1}), (1,)) == make_header("S3", (1,))


@pytest.mark.parametrize(
    ("dtype", "shape", "kind", "says"),
    [
        ("O", (1,), UnsupportedError, ("pickle", "fixed-width")),
        ("V0", (1,), UnsupportedError, ("0 bytes",)),
        ("<f4", (2**62,), FormatError, (str(2**62), "2**63 - 1")),
        ("<f4", (-1,), FormatError, ("-1", "at least 0")),
        (
            {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]},
            (1,),
            UnsupportedError,
            ("view", "order"),
        ),
        (
            [(f"field{i:04}", "<f4") for i in range(600)],
            (1,),
            UnsupportedError,
            ("600 fields", "10000", "fewer"),
        ),
    ],
    ids=["object", "empty", "overflow", "negative", "out-of-order", "too-long"],
)
def test_make_header_rejects_unsupported_dtype_or_shape(
    dtype: object, shape: tuple[int, ...], kind: type[LowtideError], says: tuple[str, ...]
) -> None:
    with refused(kind, *says):
        make_header(dtype, shape)  # type: ignore[arg-type]


ORIGINALS = [
    npy(described("'<f4'", shape="(3, 4)"), data=bytes(48)),
    npy(described("[('a', '<f4', (2,)), (('t', 'b'), '>i8')]", "True", "(2, 2)"), (2, 0), bytes(64)),
    npy(described("[('größe', '<M8[ms]')]", shape="()"), (3, 0), bytes(8)),
    make_header("<u2", (5,)) + bytes(10),
]
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.text(max_size=4),
        st.sampled_from(["<f4", "O", "|V0", "S3", "<M8[s]", "a", "?", "f8,f8", "T", "b", "G"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("text", ["'", "'a", '"', "1", "1 ", "\\'", "'\\"])
@pytest.mark.timeout(60)  # in quadratic time it takes minutes
def test_python_2_integer_pattern_takes_linear_time(text: str) -> None:
    long = text * 10**5  # ten times the longest header
    assert _PYTHON2_LONG.sub(lambda result: result[1] or result[2], long) == long


@examples(6, deadline=2000)
@given(data=damaged(ORIGINALS, head=140))
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    assert_honest(write(tmp_path_factory.getbasetemp() / "fuzz.npy", data))


@examples(6, deadline=2000)
@given(descr=VALUES, fortran=VALUES | st.booleans(), shape=VALUES | st.tuples(st.integers(0, 9)))
def test_random_headers_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, descr: object, fortran: object, shape: object
) -> None:
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode("utf8", "surrogatepass")
    assert_honest(write(tmp_path_factory.getbasetemp() / "fuzz.npy", npy(header, (3, 0), bytes(64))))
