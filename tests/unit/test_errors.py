"""Exceptions: each is lowtide's own and the builtin that a caller would have caught anyway."""

from __future__ import annotations

import copy
import errno
import pickle
from collections.abc import Callable

import pytest

import lowtide
from lowtide import errors

OWN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.LowtideError) and kind is not errors.LowtideError
]
own = pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
OF_FILES = [kind for kind in OWN if issubclass(kind, OSError)]


def example(kind: type[Exception]) -> Exception:
    """An instance of ``kind`` whose text is "x.npy: problem; remedy"."""
    if issubclass(kind, OSError):
        return kind(errno.EIO, "problem; remedy", "x.npy")
    return kind("x.npy: problem; remedy")


@own
def test_every_error_is_also_a_builtin(kind: type[Exception]) -> None:
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert builtin[0] not in (Exception, BaseException, object)
    assert issubclass(kind, lowtide.LowtideError)


@own
@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_survive_pickling(kind: type[Exception], duplicate: Callable[[Exception], Exception]) -> None:
    error = example(kind)
    error.add_note("seen in worker 3")
    result = duplicate(error)
    assert type(result) is kind
    assert str(result) == "x.npy: problem; remedy"
    assert result.__notes__ == ["seen in worker 3"]
    if isinstance(result, OSError):
        assert (result.errno, result.filename) == (errno.EIO, "x.npy")


@pytest.mark.parametrize("kind", OF_FILES, ids=lambda kind: kind.__name__)
def test_os_error_without_errno_or_filename_cannot_be_created(kind: type[Exception]) -> None:
    for arguments in ((), ("a message",), (errno.EIO, "a problem")):
        with pytest.raises(TypeError):
            kind(*arguments)


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
def test_read_error_has_file_number_and_remedy(
    code: int, kind: type[Exception], builtin: type[Exception]
) -> None:
    error = errors.reading("data/x.npy", OSError(code, "reason"))
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert (error.errno, error.filename) == (code, "data/x.npy")
    assert str(error).startswith("data/x.npy: ")


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
def test_write_error_has_file_and_number(code: int, kind: type[Exception], builtin: type[Exception]) -> None:
    error = errors.writing("data/x.npy", OSError(code, "Reason"))
    assert isinstance(error, kind)
    assert isinstance(error, builtin)
    assert (error.errno, error.filename) == (code, "data/x.npy")
    assert str(error).startswith("data/x.npy: ")


def test_error_without_number_is_an_io_error() -> None:
    assert errors.reading("x", OSError("odd")).errno == errno.EIO
    assert errors.writing("x", OSError("odd")).errno == errno.EIO


def test_member_error_shows_its_message_without_quotes() -> None:
    assert str(errors.MemberError("x.npz: no array 'y'")) == "x.npz: no array 'y'"


def test_overlong_path_is_shortened_in_message() -> None:
    error = errors.reading("x" * 100_000, FileNotFoundError(errno.ENOENT, ""))
    assert len(str(error)) < 400
    assert "(100000 characters)" in str(error)
    assert error.filename == "x" * 100_000
