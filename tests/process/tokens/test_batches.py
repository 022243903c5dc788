"""lowtide._tokens.batches after a fork."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.corpora import numbered


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("order", ["shuffle", "blocks"])
@pytest.mark.parametrize("shards", [1, 7])
def test_forked_child_continues_with_its_own_thread(tmp_path: Path, order: str, shards: int) -> None:
    batches = numbered(tmp_path, 10_007, shards).batches(4, 16, order=order)
    next(batches)
    expected = batches[1][0]
    child = os.fork()
    if not child:
        ok = (next(batches)[0] == expected).all()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (next(batches)[0] == expected).all()
    batches.close()
