"""Who else may be at work: other threads on one iterator, signal handlers, finalizers, tracers."""

from __future__ import annotations

import collections
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import lowtide
from lowtide import errors
from lowtide._arrays.stored import StoredArray
from tests.support.process import output

ROWS = np.arange(8192 * 1024, dtype="<i8").reshape(8192, 1024)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """64 MiB: chunks of 512 rows are of the size whose memory is used again."""
    path = tmp_path_factory.mktemp("sharing") / "big.npy"
    np.save(path, ROWS)
    yield path
    path.unlink()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(20_000).reshape(10_000, 2))
    return tmp_path / "x.npy"


def in_threads(count: int, work: Callable[[], None]) -> list[BaseException]:
    """Run ``work`` in threads; a hang is an error."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


# Chunks that somebody holds


def _traced(frame: Any, event: str, arg: Any) -> Any:
    frame.f_locals  # noqa: B018 - what debuggers, coverage and tracers do
    return _traced


@pytest.mark.parametrize("prefetch", [0, 1])
def test_held_chunk_is_not_overwritten_under_tracer(big: Path, prefetch: int) -> None:
    before = sys.gettrace()
    with lowtide.open(big) as array, array.chunks(512, prefetch=prefetch) as chunks:
        sys.settrace(_traced)
        threading.settrace(_traced)
        try:
            held = [next(chunks)]
        finally:
            sys.settrace(before)
            threading.settrace(None)
        held.append(next(chunks))
        for _ in range(12):
            next(chunks)
            assert [int(chunk[0, 0]) for chunk in held] == [0, 512 * 1024]


def test_held_chunk_is_not_overwritten_during_gc_get_objects(big: Path) -> None:
    stop = threading.Event()

    def hunt() -> None:
        while not stop.is_set():
            held = gc.get_objects()
            del held

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    hunter = threading.Thread(target=hunt)
    try:
        # After opening: CPython's `tuple(generator)` is a SystemError while somebody lists objects.
        with lowtide.open(big) as array, array.chunks(512) as chunks:
            hunter.start()
            kept: collections.deque[tuple[int, Any]] = collections.deque(maxlen=2)
            for number, chunk in enumerate(chunks):
                if number == 3:
                    stop.set()
                    hunter.join()
                kept.append((number, chunk))
                assert all(held[0, 0] == nth * 512 * 1024 for nth, held in kept)
    finally:
        stop.set()
        hunter.join()
        sys.setswitchinterval(interval)


def test_base_of_chunk_keeps_its_memory(big: Path) -> None:
    """Code that looks for the owner of the memory, ``x.base.base`` and so on, may keep that alone."""
    with lowtide.open(big) as array, array.chunks(512, prefetch=0) as chunks:
        owner: Any = next(chunks)
        while getattr(owner, "base", None) is not None:
            owner = owner.base
        for _ in range(6):
            next(chunks)
        assert (np.frombuffer(owner, "<i8") == ROWS[:512].ravel()).all()


# Threads


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_threads_sharing_chunks_get_every_row_once(path: Path, shuffle: Any, prefetch: int) -> None:
    with lowtide.open(path) as array:
        chunks, rows = array.chunks(64, shuffle=shuffle, prefetch=prefetch), []

        def work() -> None:
            for chunk in chunks:
                assert (chunk[:, 1] == chunk[:, 0] + 1).all()
                rows.extend(chunk[:, 0].tolist())

        assert in_threads(8, work) == []
        assert sorted(rows) == list(range(0, 20_000, 2))


def test_threads_sharing_batches_get_every_step_once(tmp_path: Path) -> None:
    np.arange(60_000, dtype="<u2").tofile(tmp_path / "train.bin")
    with lowtide.corpus(tmp_path) as corpus:
        for order in ("shuffle", "random", "blocks", "sequential"):
            shared = corpus.batches(4, 16, order=order)
            alone = corpus.batches(4, 16, order=order, prefetch=0)
            seen: collections.Counter[bytes] = collections.Counter()
            lock = threading.Lock()

            def work(shared: Any = shared, seen: Any = seen, lock: Any = lock) -> None:
                for _ in range(50):
                    x = next(shared)[0].tobytes()
                    with lock:
                        seen[x] += 1

            assert in_threads(8, work) == []
            assert seen == collections.Counter(alone[step][0].tobytes() for step in range(400))
            shared.close()


def test_close_while_thread_waits_for_chunk_does_not_hang(path: Path) -> None:
    with lowtide.open(path) as array:
        for _ in range(20):
            chunks = array.chunks(10, shuffle=True, prefetch=2)
            started = threading.Event()

            def work(chunks: Any = chunks, started: Any = started) -> None:
                try:
                    for _ in chunks:
                        started.set()
                except errors.ClosedError:
                    pass

            def close(chunks: Any = chunks, started: Any = started) -> None:
                started.wait(30)
                chunks.close()

            turns = [work, close, work]
            assert in_threads(3, lambda turns=turns: turns.pop()()) == []  # type: ignore[misc]


def test_fork_during_next_does_not_deadlock_child(path: Path) -> None:
    with lowtide.open(path) as array:
        chunks, stop = array.chunks(10, shuffle="blocks"), threading.Event()

        def work() -> None:
            for _ in chunks:
                if stop.is_set():
                    return

        thread = threading.Thread(target=work)
        with chunks._source._lock:  # as if another thread were inside
            thread.start()
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if len(next(chunks)) == 10 else 1)
        assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()


# Reads inside reads


def test_signal_handler_can_read_during_read(big: Path) -> None:
    code = """
        import faulthandler, os, signal, sys
        faulthandler.dump_traceback_later(100, exit=True)
        import numpy as np, lowtide
        path = sys.argv[1]
        a, b, full = lowtide.open(path), lowtide.open(path), np.load(path, mmap_mode="r")
        rng = np.random.default_rng(0)
        inner = np.sort(rng.integers(0, 8192, 300)); expected = np.array(full[inner])
        handled = wrong = depth = 0
        def handle(*_):
            global depth, handled, wrong
            if depth: return
            depth, handled = 1, handled + 1
            wrong += not (b.take(inner) == expected).all()
            depth = 0
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        reads = 0
        while handled < 300:
            rows = rng.integers(0, 8192, 300 if reads % 2 else 40); reads += 1
            if reads % 8 == 0: a.close(); a = lowtide.open(path)
            wrong += not (a.take(rows) == full[rows]).all()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(wrong)
    """
    assert output(code, big, timeout=120) == "0\n"


def test_finalizer_can_read_during_read(big: Path) -> None:
    with lowtide.open(big) as array:
        ran = 0

        class Node:
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                nonlocal ran
                ran += 1
                array.take(range(0, 4000, 100))

        threshold = gc.get_threshold()
        gc.set_threshold(5)
        try:
            rng = np.random.default_rng(0)
            for _ in range(300):
                rows = rng.integers(0, 8192, 200)
                Node()
                assert (array.take(rows) == ROWS[rows]).all()
        finally:
            gc.set_threshold(*threshold)
            gc.collect()
        assert ran == 300


def test_reentrant_next_raises_busy_error(path: Path) -> None:
    with lowtide.open(path) as array, array.chunks(10, prefetch=0) as chunks:
        read = StoredArray._submit_rows
        raised: list[BaseException] = []

        def interrupted(*arguments: Any, **options: Any) -> Any:
            try:
                next(chunks)
            except errors.BusyError as error:
                raised.append(error)
            return read(*arguments, **options)

        with mock.patch.object(StoredArray, "_submit_rows", interrupted):
            assert next(chunks)[:, 0].tolist() == list(range(0, 20, 2))
        assert raised
        assert "signal handler" in str(raised[0])
        assert next(chunks)[:, 0].tolist() == list(range(20, 40, 2))


def test_reentrant_block_reads_give_correct_batches(tmp_path: Path) -> None:
    np.arange(60_000, dtype="<u2").tofile(tmp_path / "train.bin")
    with lowtide.corpus(tmp_path) as corpus:
        alone = corpus.batches(4, 16, order="blocks", prefetch=0)
        expected = [alone[step][0].copy() for step in (0, 700)]
        batches = corpus.batches(4, 16, order="blocks", prefetch=0)
        windows: Any = batches._samples
        load, inner = windows._load, []

        def interrupted(*arguments: Any) -> None:
            inner.append(batches[700][0].copy())
            load(*arguments)

        windows._load = interrupted
        assert (batches[0][0] == expected[0]).all()
        assert (inner[0] == expected[1]).all()
