"""Memory for chunks that PyTorch holds."""

from __future__ import annotations

import numpy as np
import torch

from lowtide._io.buffers import Buffers

SHAPE = (512, 1024)  # 4 MiB
F8 = np.dtype("float64")


def test_memory_held_by_tensor_is_not_reused() -> None:
    buffers = Buffers(4 * 2**20, most=2)
    array = buffers.empty(SHAPE, F8)
    array[:] = 1.0
    tensor = torch.from_numpy(array)[1:]
    del array
    others = [buffers.empty(SHAPE, F8) for _ in range(3)]
    for other in others:
        other[:] = 2.0
    assert (tensor == 1.0).all()
