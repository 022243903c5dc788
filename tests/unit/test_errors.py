"""Errors: each is lowtide's own and the builtin that a caller would have caught anyway."""

from __future__ import annotations

import copy
import errno
import pickle

import pytest

import lowtide
from lowtide import errors

OWN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.LowtideError) and kind is not errors.LowtideError
]


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_every_error_is_also_a_builtin(kind: type[Exception]) -> None:
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert builtin[0] not in (Exception, BaseException, object)
    assert issubclass(kind, lowtide.LowtideError)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_errors_cross_processes(kind: type[Exception]) -> None:
    error = kind("x.npy: what and why")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == "x.npy: what and why"


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_errors_can_be_made_as_dask_makes_those_of_its_workers(kind: type[Exception]) -> None:
    error = kind.__new__(kind, "x.npy: what and why")
    assert type(error) is kind
    assert str(error) == "x.npy: what and why"


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (errno.ENOENT, errors.NotFoundError, FileNotFoundError),
        (errno.EISDIR, errors.NotAFileError, IsADirectoryError),
        (errno.EACCES, errors.AccessError, PermissionError),
        (errno.EPERM, errors.AccessError, PermissionError),
        (errno.EIO, errors.ReadError, OSError),
        (errno.EMFILE, errors.ReadError, OSError),
        (errno.ENXIO, errors.ReadError, OSError),
    ],
)
def test_reading_says_the_file_the_reason_and_the_remedy(
    code: int, kind: type[Exception], builtin: type[Exception]
) -> None:
    error = errors.reading("data/x.npy", OSError(code, "reason"))
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert (error.errno, error.filename) == (code, "data/x.npy")
    assert "data/x.npy" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.errno) == (kind, str(error), code)


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (errno.ENOSPC, errors.DiskFullError, OSError),
        (errno.EDQUOT, errors.DiskFullError, OSError),
        (errno.EACCES, errors.WriteError, PermissionError),
        (errno.EROFS, errors.WriteError, PermissionError),
        (errno.EIO, errors.WriteError, OSError),
    ],
)
def test_writing_says_the_file_and_the_reason(
    code: int, kind: type[Exception], builtin: type[Exception]
) -> None:
    error = errors.writing("data/x.npy", OSError(code, "Reason"))
    assert isinstance(error, kind)
    assert isinstance(error, builtin)
    assert "data/x.npy" in str(error)


def test_an_error_without_a_number_is_an_input_output_error() -> None:
    assert errors.reading("x", OSError("odd")).errno == errno.EIO
    assert errors.writing("x", OSError("odd")).errno == errno.EIO


def test_a_missing_member_reads_as_a_sentence() -> None:
    assert str(errors.MemberError("x.npz: no array 'y'")) == "x.npz: no array 'y'"
