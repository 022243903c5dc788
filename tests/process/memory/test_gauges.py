"""A gauge of a test's own, in the watched process and in the sampler."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

import lowtide
from lowtide._memory import gauges, helper
from lowtide.errors import MemoryBudgetExceeded
from tests.support.descriptors_gauge import Descriptors


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gauges, "GAUGES", [*gauges.GAUGES, Descriptors])  # the one line
    yield
    helper.shut_down()


@pytest.mark.usefixtures("_registered")
def test_registered_gauge_is_read_by_the_sampler() -> None:
    with pytest.raises(MemoryBudgetExceeded) as caught, lowtide.watch(50, kind="descriptors") as w:
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
        time.sleep(0.5)
        for fd in fds:
            os.close(fd)
        del fds
    assert w.growth is not None
    assert w.growth >= 100
    assert max(sample.value for sample in w.samples) >= 100
    assert "open descriptors reached 1" in str(caught.value)
    assert "what grew: descriptors +1" in str(caught.value)
