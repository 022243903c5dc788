"""Linux AIO: many reads in one call, each result where it belongs, and nothing left behind."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from lowtide._io import aio
from lowtide._io.aio import Aio
from lowtide._io.extents import Extents
from tests.support.aio import context, extents, fd

__all__ = ["fd"]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not aio.available(), reason="this system has no AIO to give"
)


def rings() -> int:
    """Contexts that the kernel holds for this process: each has a ring in its memory."""
    return sum("[aio]" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_every_extent_lands_at_its_target(fd: int) -> None:
    rng = np.random.default_rng(0)
    requests = extents(rng.integers(0, 90_000, 1000).tolist(), rng.integers(1, 500, 1000).tolist())
    out = np.zeros(requests.nbytes, np.uint8)
    results = context().read(fd, requests, aio.address_of(out), 0)
    assert (results == requests.lengths).all()
    expected = [(np.arange(o, o + n) % 251).astype("u1") for o, _, n in requests.rows()]
    assert out.tobytes() == np.concatenate(expected).tobytes()


def test_results_of_previous_call_are_not_reused(fd: int) -> None:
    out = np.zeros(20, np.uint8)
    context().read(fd, extents([1, 2, 3], [5, 5, 5]), aio.address_of(out), 0)
    results = context().read(fd, extents([200_000, 0], [10, 10]), aio.address_of(out), 0)
    assert results.tolist() == [0, 10]
    assert out[10:].tolist() == list(range(10))


def test_read_at_end_of_file_is_short(fd: int) -> None:
    out = np.zeros(30, np.uint8)
    results = context().read(fd, extents([99_990, 100_000, 50], [15, 10, 5]), aio.address_of(out), 0)
    assert results.tolist() == [10, 0, 5]


def test_failed_read_gives_negative_errno_and_others_complete(fd: int) -> None:
    out = np.zeros(20, np.uint8)
    requests = extents([0, 10], [10, 10])
    requests.targets[0] = -aio.address_of(out)  # the first to address 0
    results = context().read(fd, requests, aio.address_of(out), 0)
    assert results.tolist() == [-errno.EFAULT, 10]
    assert out[10:].tolist() == list(range(10, 20))


def test_out_of_order_results_match_their_extents(fd: int) -> None:
    """Buffered reads end in the order of their submission; those of some file systems may not."""
    call, used = aio._call, context()

    def turned(number: int, *arguments: object) -> int:
        count = call(number, *arguments)
        if number == used._getevents:
            used._events[:count] = used._events[:count][::-1].copy()
        return count

    out = np.zeros(60, np.uint8)
    with mock.patch.object(aio, "_call", turned):
        results = used.read(fd, extents([0, 99_995, 7], [10, 20, 30]), aio.address_of(out), 0)
    assert results.tolist() == [10, 5, 30]


def test_bad_descriptor_raises_and_next_call_works(fd: int) -> None:
    out = np.zeros(10, np.uint8)
    with pytest.raises(OSError, match="Bad file descriptor"):
        context().read(10_000, extents([0], [10]), aio.address_of(out), 0)
    assert context().read(fd, extents([7], [10]), aio.address_of(out), 0).tolist() == [10]
    assert out.tolist() == list(range(7, 17))


def test_interrupt_leaves_no_results_for_next_read(fd: int) -> None:
    out, later = np.zeros(20, np.uint8), np.zeros(20, np.uint8)
    call, calls = aio._call, []

    def interrupted(number: int, *arguments: object) -> int:
        calls.append(number)
        if len(calls) == 2:  # submitted, not yet collected
            raise KeyboardInterrupt
        return call(number, *arguments)

    used = context()
    with mock.patch.object(aio, "_call", interrupted), pytest.raises(KeyboardInterrupt):
        used.read(fd, extents([0, 10], [10, 10]), aio.address_of(out), 0)
    assert used.closed
    assert context() is not used
    assert context().read(fd, extents([50_000, 2], [5, 15]), aio.address_of(later), 0).tolist() == [5, 15]


def test_call_interrupted_by_signal_is_repeated() -> None:
    answers = [-1, -1, 3]
    with (
        mock.patch.object(aio, "_LIBC", mock.Mock(syscall=lambda *_: answers.pop(0))),
        mock.patch("ctypes.get_errno", return_value=errno.EINTR),
    ):
        assert aio._call(0) == 3


def test_nested_read_uses_another_context(fd: int) -> None:
    """As a signal handler makes it, or a finalizer: in the same thread, between any two calls."""
    call, inner = aio._call, np.zeros(20, np.uint8)
    numbers = []

    def interrupted(number: int, *arguments: object) -> int:
        numbers.append(number)
        if len(numbers) == 2:  # submitted, not yet collected
            results = aio.read(fd, extents([100, 200], [10, 10]), inner, 0)
            assert results is not None
            assert results.tolist() == [10, 10]
        return call(number, *arguments)

    out = np.zeros(30, np.uint8)
    with mock.patch.object(aio, "_call", interrupted):
        results = aio.read(fd, extents([0, 50, 99_995], [10, 10, 10]), out, 0)
    assert results is not None
    assert results.tolist() == [10, 10, 5]
    assert out[:25].tolist() == [*range(10), *range(50, 60), *[i % 251 for i in range(99_995, 100_000)]]
    assert inner.tolist() == [*range(100, 110), *range(200, 210)]


def test_concurrent_threads_use_separate_contexts(fd: int) -> None:
    together, call, seen = threading.Barrier(4), aio._call, set()

    def meeting(number: int, *arguments: object) -> int:
        together.wait(10)
        return call(number, *arguments)

    def use() -> None:
        out = np.zeros(10, np.uint8)
        results = aio.read(fd, extents([7], [10]), out, 0)
        if results is not None and out.tolist() == list(range(7, 17)):
            seen.add(threading.get_ident())

    aio._IDLE.extend(one for one in [aio._new() for _ in range(4)] if one is not None)
    with mock.patch.object(aio, "_call", meeting):
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(seen) == 4


def test_sequential_reads_share_one_context(fd: int) -> None:
    """Each pass over an array has its own thread: contexts must neither add up nor be made each time."""
    used, before = context(), rings()

    def use() -> None:
        aio.read(fd, extents([0], [10]), np.zeros(10, np.uint8), 0)

    for _ in range(20):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert context() is used
    assert rings() == before


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EAGAIN])
def test_aio_is_unavailable_if_kernel_refuses(code: int) -> None:
    with (
        mock.patch.object(aio, "_IDLE", deque()),
        mock.patch.object(aio, "_call", side_effect=OSError(code, "no")),
    ):
        assert not aio.available()


def test_aio_is_unavailable_on_unknown_machine() -> None:
    with (
        mock.patch.object(aio, "_IDLE", deque()),
        mock.patch.object(aio, "_CALLS", None),
    ):
        assert not aio.available()


def test_close_is_idempotent() -> None:
    assert aio._CALLS is not None
    own = Aio(aio._CALLS)
    before = rings()
    own.close()
    own.close()
    assert own.closed
    assert rings() == before - 1


def test_requests_are_prepared_again_for_other_extents(tmp_path: Path) -> None:
    """Lengths, targets, buffer, file and flags are each filled in again when they differ from the last."""
    data = np.random.default_rng(0).integers(0, 256, 10_000, dtype=np.uint8)
    for name in ("x", "y"):
        (data if name == "x" else data[::-1]).tofile(tmp_path / name)
    files = {name: os.open(tmp_path / name, os.O_RDONLY) for name in ("x", "y")}
    context = aio._new()
    assert context is not None
    try:
        offsets = np.arange(16) * 500
        for name in ("x", "x", "y", "x"):
            for width in (10, 10, 20):
                for lengths in (None, np.arange(1, 17), np.arange(16, 0, -1)):
                    extents = Extents.of_rows(offsets, width)
                    if lengths is not None:
                        extents = Extents(offsets, extents.targets, np.minimum(lengths, width))
                    out = np.zeros(16 * width, np.uint8)
                    results = context.read(files[name], extents, aio.address_of(out), 0)
                    assert results.tolist() == extents.lengths.tolist()
                    expected = np.zeros_like(out)
                    content = data if name == "x" else data[::-1]
                    for offset, target, length in extents.rows():
                        expected[target : target + length] = content[offset : offset + length]
                    assert (out == expected).all()
    finally:
        context.close()
        for fd in files.values():
            os.close(fd)
