"""Memory for chunks: whose it is, when it is used again, and when the system has it back."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from lowtide._io.buffers import Buffers
from lowtide._memory import proc

MIB = 2**20
F8 = np.dtype("float64")
SHAPE = (512, 1024)  # 4 MiB


def filled(buffers: Buffers, value: float) -> Any:
    arrays = buffers.empty(SHAPE, F8)
    arrays[:] = value
    return arrays


def test_dropped_buffer_is_reused() -> None:
    buffers = Buffers(4 * MIB, most=2)
    places = set()
    for value in range(10):
        held = filled(buffers, value)
        places.add(held.ctypes.data)
    assert len(places) == 2  # the one that is held while the next is made


@pytest.mark.parametrize(
    "hold",
    [
        lambda arrays: arrays[3:5, ::7],
        lambda arrays: arrays.reshape(-1).view(np.uint8)[8 * 1024 :],
        lambda arrays: memoryview(arrays)[1:],
    ],
    ids=["slice", "view of a view", "memoryview"],
)
def test_buffer_held_by_view_is_not_reused(hold: Any) -> None:
    buffers = Buffers(4 * MIB, most=2)
    held = hold(filled(buffers, 1.0))
    before = np.array(held)
    others = [filled(buffers, 2.0) for _ in range(3)]
    assert np.array_equal(np.array(held), before)
    del others


def test_number_of_kept_buffers_is_limited() -> None:
    buffers = Buffers(4 * MIB, most=3)
    base = proc.status().rss
    held = [filled(buffers, value) for value in range(12)]
    assert proc.status().rss - base > 44 * MIB
    assert [arrays[0, 0] for arrays in held] == list(range(12))
    del held[2:]  # who keeps two has one that waits
    assert proc.status().rss - base < 14 * MIB
    del held
    assert proc.status().rss - base < 14 * MIB
    buffers.clear()
    assert proc.status().rss - base < 4 * MIB


def test_held_array_outlives_buffers() -> None:
    buffers = Buffers(4 * MIB, most=2)
    one, other = filled(buffers, 1.0), filled(buffers, 2.0)
    buffers.clear()
    del one
    assert filled(buffers, 3.0).sum() == 3.0 * other.size
    del buffers
    assert (other == 2.0).all()


def test_buffers_are_freed_without_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        base = proc.status().rss
        for _ in range(8):
            buffers = Buffers(4 * MIB, most=2)
            one, other = filled(buffers, 1.0), filled(buffers, 2.0)
            del one, other, buffers
        assert proc.status().rss - base < 6 * MIB
    finally:
        gc.enable()


def test_last_chunk_reuses_buffer_and_small_sizes_use_malloc() -> None:
    buffers = Buffers(4 * MIB, most=2)
    place = buffers.empty(SHAPE, F8).ctypes.data
    assert buffers.empty((3, 1024), F8).ctypes.data == place
    assert Buffers(MIB // 32, most=1).empty((3, 1024), F8).flags.owndata
    assert Buffers(0, most=1).empty((0, 5), F8).shape == (0, 5)


def test_failed_allocation_raises_memory_error() -> None:
    with pytest.raises(MemoryError, match="Unable to allocate 1"):
        Buffers(2**50, most=1).empty((2**47,), F8)


def test_clear_in_another_thread_keeps_held_arrays() -> None:
    buffers = Buffers(4 * MIB, most=2)
    stop = threading.Event()

    def forget() -> None:
        while not stop.is_set():
            buffers.clear()

    other = threading.Thread(target=forget)
    other.start()
    try:
        for value in range(300):
            held = buffers.empty(SHAPE, F8)
            held[0, 0] = value
            again = buffers.empty(SHAPE, F8)
            again[0, 0] = -1
            assert held[0, 0] == value
    finally:
        stop.set()
        other.join()
