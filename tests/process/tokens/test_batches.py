"""lowtide._tokens.batches after a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.corpora import numbered
from tests.support.process import in_child


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("order", ["shuffle", "blocks"])
@pytest.mark.parametrize("shards", [1, 7])
def test_forked_child_continues_with_its_own_thread(tmp_path: Path, order: str, shards: int) -> None:
    batches = numbered(tmp_path, 10_007, shards).batches(4, 16, order=order)
    next(batches)
    expected = batches[1][0]
    assert in_child(lambda: (next(batches)[0] == expected).all())
    assert (next(batches)[0] == expected).all()
    batches.close()
