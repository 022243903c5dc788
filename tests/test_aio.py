"""Linux AIO: many reads in one call, each result where it belongs, and nothing left behind."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from lowtide import aio
from lowtide.aio import Aio
from lowtide.extents import Extents
from tests.support.process import output

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or aio.for_this_thread() is None, reason="this system has no AIO to give"
)


def extents(offsets: list[int], lengths: list[int]) -> Extents:
    ends = np.cumsum(lengths, dtype=np.int64)
    return Extents(np.array(offsets, np.int64), ends - lengths, np.array(lengths, np.int64))


def context() -> Aio:
    found = aio.for_this_thread()
    assert found is not None
    return found


def rings() -> int:
    """Contexts that the kernel holds for this process: each has a ring in its memory."""
    return sum("[aio]" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(i % 251 for i in range(100_000)))
    number = os.open(path, os.O_RDONLY)
    yield number
    os.close(number)


def test_every_extent_lands_at_its_target(fd: int) -> None:
    rng = np.random.default_rng(0)
    wanted = extents(rng.integers(0, 90_000, 1000).tolist(), rng.integers(1, 500, 1000).tolist())
    out = np.zeros(wanted.nbytes, np.uint8)
    results = context().read(fd, wanted, aio.address_of(out), 0)
    assert (results == wanted.lengths).all()
    expected = [
        (np.arange(o, o + n) % 251).astype("u1") for o, n in zip(wanted.offsets, wanted.lengths, strict=True)
    ]
    assert out.tobytes() == np.concatenate(expected).tobytes()


def test_a_context_forgets_the_call_before(fd: int) -> None:
    out = np.zeros(20, np.uint8)
    context().read(fd, extents([1, 2, 3], [5, 5, 5]), aio.address_of(out), 0)
    results = context().read(fd, extents([200_000, 0], [10, 10]), aio.address_of(out), 0)
    assert results.tolist() == [0, 10]
    assert out[10:].tolist() == list(range(10))


def test_the_end_of_the_file_is_a_short_answer(fd: int) -> None:
    out = np.zeros(30, np.uint8)
    results = context().read(fd, extents([99_990, 100_000, 50], [15, 10, 5]), aio.address_of(out), 0)
    assert results.tolist() == [10, 0, 5]


def test_a_single_bad_read_is_a_negative_number_and_the_others_are_done(fd: int) -> None:
    out = np.zeros(20, np.uint8)
    wanted = extents([0, 10], [10, 10])
    wanted.targets[0] = -aio.address_of(out)  # the first to address 0
    results = context().read(fd, wanted, aio.address_of(out), 0)
    assert results.tolist() == [-errno.EFAULT, 10]
    assert out[10:].tolist() == list(range(10, 20))


def test_results_that_come_in_another_order_find_their_extent(fd: int) -> None:
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


def test_a_bad_descriptor_is_an_error_and_the_next_call_starts_afresh(fd: int) -> None:
    out = np.zeros(10, np.uint8)
    with pytest.raises(OSError, match="Bad file descriptor"):
        context().read(10_000, extents([0], [10]), aio.address_of(out), 0)
    assert context().read(fd, extents([7], [10]), aio.address_of(out), 0).tolist() == [10]
    assert out.tolist() == list(range(7, 17))


def test_an_interrupt_leaves_no_results_for_the_next_read(fd: int) -> None:
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


def test_a_call_that_a_signal_broke_is_made_again() -> None:
    answers = [-1, -1, 3]
    with (
        mock.patch.object(aio, "_LIBC", mock.Mock(syscall=lambda *_: answers.pop(0))),
        mock.patch("ctypes.get_errno", return_value=errno.EINTR),
    ):
        assert aio._call(0) == 3


def test_threads_at_work_have_a_context_each() -> None:
    together = threading.Barrier(5)
    seen = []

    def use() -> None:
        mine = context()
        assert context() is mine
        seen.append(mine)
        together.wait(10)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    together.wait(10)
    for thread in threads:
        thread.join()
    assert len({id(one) for one in [*seen, context()]}) == 5


def test_threads_one_after_another_share_one(fd: int) -> None:
    """Each pass over an array has a thread of its own: contexts must neither add up nor be made each time."""
    context()
    before = rings()
    seen = set()

    def use() -> None:
        out = np.zeros(10, np.uint8)
        context().read(fd, extents([0], [10]), aio.address_of(out), 0)
        seen.add(id(context()))

    for _ in range(20):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert len(seen) == 1
    assert id(context()) not in seen
    assert rings() <= before + 1


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EAGAIN])
def test_a_kernel_that_refuses_is_no_error(code: int) -> None:
    with (
        mock.patch.object(aio, "_LOCAL", threading.local()),
        mock.patch.object(aio, "_IDLE", deque()),
        mock.patch.object(aio, "_call", side_effect=OSError(code, "no")),
    ):
        assert aio.for_this_thread() is None


def test_an_unknown_machine_has_none() -> None:
    with (
        mock.patch.object(aio, "_LOCAL", threading.local()),
        mock.patch.object(aio, "_IDLE", deque()),
        mock.patch.object(aio, "_CALLS", None),
    ):
        assert aio.for_this_thread() is None


def test_closing_twice_is_closing_once() -> None:
    assert aio._CALLS is not None
    own = Aio(aio._CALLS)
    before = rings()
    own.close()
    own.close()
    assert own.closed
    assert rings() == before - 1


def test_a_forked_child_makes_its_own_and_leaves_the_parents_alone(fd: int) -> None:
    mine = context()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            out = np.zeros(10, np.uint8)
            good = mine.closed and context() is not mine
            good &= context().read(fd, extents([3], [10]), aio.address_of(out), 0).tolist() == [10]
            mine.close()
            status = 0 if good and out[0] == 3 else 1
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    out = np.zeros(10, np.uint8)
    assert mine.read(fd, extents([4], [10]), aio.address_of(out), 0).tolist() == [10]


def test_the_interpreter_ends_in_silence(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((5000, 16)))
    code = """
        import atexit, sys, threading, lowtide
        a = lowtide.open(sys.argv[1])
        chunks = a.chunks(100, shuffle=True)
        next(chunks)
        threading.Thread(target=lambda: a.take(range(0, 5000, 3))).start()
        def late():
            assert len(a.take(range(0, 5000, 3))) == 1667
            assert sum(map(len, a.chunks(100))) == sum(map(len, a.chunks(100, shuffle=True))) == 5000
        atexit.register(late)
        print("done")
    """
    assert output(code, tmp_path / "a.npy") == "done\n"
