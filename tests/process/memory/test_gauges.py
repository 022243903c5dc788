"""A gauge that is defined elsewhere, in the watched process and in the sampler."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator

import pytest

import lowtide
from lowtide._memory import gauges, helper
from lowtide.errors import MemoryBudgetExceeded
from tests.support.virtual_gauge import Virtual

MIB = 2**20


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gauges, "GAUGES", [*gauges.GAUGES, Virtual])  # the one line
    yield
    helper.shut_down()


@pytest.mark.usefixtures("_registered")
def test_registered_gauge_is_read_by_the_sampler() -> None:
    with pytest.raises(MemoryBudgetExceeded) as caught, lowtide.watch("64 MiB", kind="virtual") as w:
        block = mmap.mmap(-1, 256 * MIB)  # never touched, so not resident
        time.sleep(0.5)
        block.close()
    assert w.growth is not None
    assert 256 * MIB <= w.growth < 264 * MIB
    assert max(sample.value for sample in w.samples) == w.peak
    assert "address space reached 256" in str(caught.value)
    assert "what grew: addresses +256" in str(caught.value)
