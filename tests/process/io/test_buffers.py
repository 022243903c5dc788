"""Memory for chunks after a fork."""

from __future__ import annotations

import numpy as np

from lowtide._io.buffers import Buffers
from tests.support.process import in_child


def test_forked_child_has_its_own_buffers() -> None:
    array = Buffers(4 * 2**20, most=2).empty((512, 1024), np.dtype("float64"))
    array[:] = 1.0

    def overwrite() -> bool:
        array[:] = 9.0
        return True

    assert in_child(overwrite)
    assert (array == 1.0).all()
