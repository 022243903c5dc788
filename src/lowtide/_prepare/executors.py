"""Where tasks run: in this process, in a pool of processes, or on a Dask cluster.

All three are ``concurrent.futures`` executors that can be restarted and that report how many tasks they run
at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lowtide._extras import library
from lowtide.errors import ClusterError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

_CONNECT = 5  # seconds in which a scheduler must answer
_JOIN = 20  # seconds in which it must have a worker


class Executor:
    """Runs each task in ``submit``, in this process; the base class of the others."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def slots(self) -> int:
        """How many tasks run at the same time."""
        return 1

    def renew(self) -> None:
        """Restart after a worker died; every running future is lost too."""

    def close(self) -> None:
        """Stop at once, even if tasks are running."""


def open_executor(workers: int, dask: str | None, *, isolated: bool = False) -> Executor:
    """The executor for ``workers`` processes or a cluster; ``isolated`` tasks never run in this process."""
    if dask is not None:
        return DaskCluster(dask)
    return Processes(workers) if workers > 1 or isolated else Executor()


class Processes(Executor):
    """A pool of processes that end when this one does, even if it is killed."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._start()

    def _start(self) -> None:
        import multiprocessing
        from multiprocessing import resource_tracker

        # Spawned, not forked: a fork inherits locks that other threads hold, and not every system has it.
        context = multiprocessing.get_context("spawn")
        if hasattr(signal, "pthread_sigmask"):
            # Otherwise it starts with the first worker, and unblocks SIGINT before that worker ignores it.
            resource_tracker.ensure_running()
        # Nothing is sent: the pipe ends for the workers when this process closes it or dies.
        self._receiver, self._alive = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self._workers, mp_context=context, initializer=_start_worker, initargs=(self._receiver,)
        )

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        with _no_main(), _no_interrupt():
            return self._pool.submit(function, *arguments)

    def slots(self) -> int:
        return self._workers

    def renew(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self._alive.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._receiver.close()


class DaskCluster(Executor):
    """A running cluster. Its workers import lowtide and see the same files under the same paths."""

    def __init__(self, address: str) -> None:
        distributed = library("distributed", "a Dask cluster", "dask")
        self._address = address
        try:
            self._client = distributed.Client(address, timeout=_CONNECT, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # a timeout is an OSError
            raise ClusterError(
                errno.ECONNREFUSED,
                f"no Dask scheduler answers within {_CONNECT} seconds ({type(error).__name__}: {error}); "
                "check that `dask scheduler` runs, and its address",
                address,
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=_JOIN)
        except OSError as error:
            self._client.close(timeout=1)
            raise ClusterError(
                errno.ETIMEDOUT,
                f"the Dask scheduler has no worker after {_JOIN} seconds; start one: dask worker {address}",
                address,
            ) from error
        self._executor = self._client.get_executor(pure=False)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = self._executor.submit(function, *arguments)
        return future

    def slots(self) -> int:
        try:
            threads: dict[str, int] = self._client.nthreads()
            return max(1, sum(threads.values()))
        except (OSError, ValueError) as error:
            raise ClusterError(
                errno.ECONNRESET,
                f"the Dask scheduler no longer answers ({error}); what is done is kept: start it and run the "
                "same command again",
                self._address,
            ) from error

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        with suppress(Exception):  # the cluster may be gone
            self._client.close(timeout=2)


@contextmanager
def _no_main() -> Iterator[None]:
    """Keep a new process from importing the caller's script.

    multiprocessing imports it for its definitions, which tasks do not need. A script that calls ``prepare``
    outside of ``if __name__ == "__main__"`` would call it again in each worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Block SIGINT while a process starts: it inherits that until it ignores the signal.

    A terminal sends Ctrl-C to all processes, and one that is still importing would print a traceback. This
    process receives the signal afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_worker(alive: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the workers
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Each process has a core; threads of the tokenizer would only compete with the other processes.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with, args=(alive,), name="lowtide-alive", daemon=True).start()


def _exit_with(alive: Connection) -> None:
    """Exit when the pipe ends: an orphan must not continue to write."""
    with suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
