"""Exceptions of Dask's workers arrive as they were raised."""

from __future__ import annotations

import pickle

import pytest
from tblib import pickling_support

from tests.unit.test_errors import example, own


@own
def test_errors_survive_pickling_by_dask(kind: type[Exception]) -> None:
    error = example(kind)
    pickling_support.install(type(error))
    try:
        raise error
    except kind as raised:
        result = pickle.loads(pickle.dumps(raised))
    assert type(result) is kind
    assert str(result) == str(error)
    assert result.__traceback__ is not None
    if isinstance(result, OSError):
        assert isinstance(error, OSError)
        assert (result.errno, result.filename) == (error.errno, error.filename)
    with pytest.raises(kind, match="problem; remedy"):
        raise result
