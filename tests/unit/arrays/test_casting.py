"""lowtide._arrays.casting: values reach the file as they are, or an error names the first that does not."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import ArgumentError

PAIR = [("x", "f8"), ("name", "U6")]
NARROW = [("x", "f4"), ("name", "U3")]


@pytest.mark.parametrize(
    ("rows", "dtype", "problem"),
    [
        (["ab", "abcdef"], "U3", "'abcdef' in row 1 does not fit into <U3"),
        ([b"ab", b"abcdef"], "S3", r"b'abcdef' in row 1 does not fit into \|S3"),
        (np.array([b"ab", b"\xff"]), "U3", "row 1 cannot be converted to <U3.*ascii"),
        (np.array([b"ab", b"abcd"], "V4"), "V2", r"b'abcd' in row 1 does not fit into \|V2"),
        ([0.0, 1e300], "f4", r"1e\+300 in row 1 does not fit into float32"),
        ([0.0, -1e300], ">f4", r"-1e\+300 in row 1 does not fit into >f4"),
        ([0.0, 1e6], "f2", "1000000.0 in row 1 does not fit into float16"),
        ([0, 10**6], "f2", "1000000 in row 1 does not fit into float16"),
        ([0, 1e300 + 0j], "c8", r"\(1e\+300\+0j\) in row 1 does not fit into complex64"),
        ([0, complex(np.inf, 1e300)], "c8", r"\(inf\+1e\+300j\) in row 1 does not fit"),
        ([0.0, 1e300], "c8", r"1e\+300 in row 1 does not fit into complex64"),
        ([np.nan], "i4", "float64 is not of the same kind as the file's int32"),
        ([np.inf], "i8", "float64 is not of the same kind as the file's int64"),
        ([1.25], "U3", "float64 is not of the same kind as the file's <U3"),
        (np.array([2**63], "u8"), "m8[s]", "uint64 is not of the same kind"),
        (np.array(["2000-01-01", "3000-01-01"], "M8[s]"), "M8[ns]", "3000-01-01T00:00:00 in row 1"),
        (np.array(["NaT", "2000-01-01T00:00:00.5"], "M8[ms]"), "M8[s]", r"2000-01-01T00:00:00\.500 in row 1"),
        (np.array([1, 10**12], "m8[s]"), "m8[ns]", "1000000000000 seconds in row 1"),
        (np.array([(1, "abc"), (2, "abcd")], PAIR), NARROW, "'abcd' in field 'name' of row 1.* <U3"),
        (np.array([(1, "abc"), (1e300, "a")], PAIR), NARROW, r"1e\+300 in field 'x' of row 1.* float32"),
        (np.array([(1, 2.0)], "i8,f8"), [("f1", "i8"), ("f0", "f8")], "not of the same kind"),
        (np.array([(1.0,)], [("x", "f8")]), [("x", "f4", (3,))], "not of the same kind"),
        (np.array([([1.0, 1e300],)], [("x", "f8", (2,))]), [("x", "f4", (2,))], "in field 'x' of row 0"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, rows: Any, dtype: Any, problem: str) -> None:
    with lowtide.create(tmp_path / "out.npy", dtype) as out:
        with pytest.raises(ArgumentError, match=problem):
            out.append(rows)
    assert len(np.load(tmp_path / "out.npy")) == 0


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        (np.array([np.inf, -np.inf, np.nan, 1e-300, 0.1]), "f4"),
        (np.array([complex(np.inf, np.nan), 1]), "c8"),
        (np.array(["ab", "abc"], "U6"), "U3"),
        (np.array([b"ab", b"abc"], "S6"), "S3"),
        (np.array([b"ab"]), "U3"),
        (np.array(["NaT", "2000-01-01"], "M8[ns]"), "M8[D]"),
        (np.array(["NaT", "2000-01-01"], "M8[D]"), "M8[ns]"),
        (np.array([(1, "abc"), (np.inf, "")], PAIR), NARROW),
        (np.array([-5, 5]), "m8[s]"),
        (np.array([True, False]), "U5"),
        (np.array([1, 2]), ">u2"),
        (np.array([2**63], "u8"), "f4"),
    ],
)
def test_values_that_fit_are_converted_like_numpy(tmp_path: Path, rows: np.ndarray, dtype: Any) -> None:
    with lowtide.create(tmp_path / "out.npy", dtype) as out:
        out.append(rows)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), rows.astype(dtype))


def test_unsafe_casting_converts_like_numpy(tmp_path: Path) -> None:
    for rows, dtype in ((["abcdef"], "U3"), ([1.7], "i4"), ([300], "u1"), (np.array([1e300]), "f4")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with lowtide.create(tmp_path / "out.npy", dtype, casting="unsafe") as out:
                out.append(rows)
            np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.array(rows).astype(dtype))
    with lowtide.create(tmp_path / "out.npy", "f4", casting="unsafe") as out:
        with pytest.raises(ArgumentError, match="row 1 cannot be converted to float32"):
            out.append(["1", "x"])
    with pytest.raises(ArgumentError, match="casting must be 'same_kind' or 'unsafe', got 'safe'"):
        lowtide.create(tmp_path / "out.npy", "f4", casting="safe")  # type: ignore[call-overload]


def test_failed_append_writes_none_of_its_rows(tmp_path: Path) -> None:
    """The value that does not fit comes after some blocks were written."""
    rows = np.zeros(3 * 2**20)
    rows[-1] = 1e300
    for name in ("out.npy", "out.bin"):
        with lowtide.create(tmp_path / name, "f4") as out:
            out.append([1.0])
            with pytest.raises(ArgumentError, match=f"in row {len(rows) - 1} does not fit"):
                out.append(rows)
            assert out.rows == 1
            out.append([2.0])
    assert np.load(tmp_path / "out.npy").tolist() == [1, 2]
    assert np.fromfile(tmp_path / "out.bin", "f4").tolist() == [1, 2]


def test_memory_of_casting_check_is_bounded(tmp_path: Path) -> None:
    """Rows of 4 bytes come from elements of 4,000: blocks of 4 MiB in the file would be 4 GB before it."""
    rows = np.zeros(20_000, "U1000")
    tracemalloc.start()
    with lowtide.create(tmp_path / "out.npy", "U1") as out:
        out.append(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20 < rows.nbytes
