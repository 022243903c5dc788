"""Where tasks run: in this process, in processes of its own, or on a Dask cluster.

All three are ``concurrent.futures`` executors, with a way to begin anew and a number of tasks that keeps them
busy.
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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lowtide.errors import ClusterError, MissingExtraError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

_REACHED = 5  # seconds in which a scheduler must answer
_JOINED = 20  # seconds in which it must have a worker


class Executor(Protocol):
    """What the run needs of an executor."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]: ...

    def places(self) -> int:
        """How many tasks run at the same time."""

    def renew(self) -> None:
        """Begin anew after a worker was lost; every future under way is lost too."""

    def close(self) -> None:
        """End at once, whatever is under way."""


def open_executor(workers: int, dask: str | None, *, isolated: bool = False) -> Executor:
    """The executor for so many processes, or for a cluster's address; ``isolated`` never runs here."""
    if dask is not None:
        return OnDask(dask)
    return Processes(workers) if workers > 1 or isolated else Here()


class Here:
    """Runs each task when it is given: no process is started for what one can do."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def places(self) -> int:
        return 1

    def renew(self) -> None:
        pass

    def close(self) -> None:
        pass


class Processes:
    """A pool of processes that end when this one does, however it ends."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._start()

    def _start(self) -> None:
        import multiprocessing

        # Started afresh, not forked: a fork inherits locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        # Nothing is ever sent. The end of the pipe is the sign: it comes when we close it, and when we die.
        theirs, self._alive = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self._workers, mp_context=context, initializer=_begin_worker, initargs=(theirs,)
        )
        self._theirs = theirs

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        with _no_main():
            return self._pool.submit(function, *arguments)

    def places(self) -> int:
        return self._workers

    def renew(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self._alive.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._theirs.close()


class OnDask:
    """A cluster that runs already. Its workers import lowtide and see the same files under the same paths."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingExtraError(
                f"a Dask cluster needs distributed, which cannot be imported ({error}): "
                "pip install 'lowtide[dask]'"
            ) from error
        self._address = address
        try:
            connect: Any = Client
            self._client = connect(address, timeout=_REACHED, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # a timeout is an OSError
            raise ClusterError(
                errno.ECONNREFUSED,
                f"no Dask scheduler answers there within {_REACHED} seconds "
                f"({type(error).__name__}: {error}); check that `dask scheduler` runs, and its address",
                address,
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=_JOINED)
        except OSError as error:
            self._client.close(timeout=1)
            raise ClusterError(
                errno.ETIMEDOUT,
                f"the Dask scheduler has no worker after {_JOINED} seconds; run: dask worker {address}",
                address,
            ) from error
        self._executor = self._client.get_executor(pure=False)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = self._executor.submit(function, *arguments)
        return future

    def places(self) -> int:
        try:
            threads: dict[str, int] = self._client.nthreads()
            return max(1, sum(threads.values()))
        except (OSError, ValueError) as error:
            raise ClusterError(
                errno.ECONNRESET,
                f"the Dask scheduler no longer answers ({error}); what is done stays: start it and run the "
                "same command again",
                self._address,
            ) from error

    def renew(self) -> None:
        pass

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        with suppress(Exception):  # a cluster that is gone need not be told
            self._client.close(timeout=2)


@contextmanager
def _no_main() -> Iterator[None]:
    """Keep a new process from importing the caller's script.

    It would, to find what was defined there, and a script that calls ``prepare`` outside of ``if __name__ ==
    "__main__"`` would call it again in each worker. Tasks need nothing of it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin_worker(alive: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent says what to do
    # Each process has a core; threads of the tokenizer's own would only get into each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with, args=(alive,), name="lowtide-alive", daemon=True).start()


def _end_with(alive: Connection) -> None:
    """End this process when the pipe does: an orphan must not go on writing."""
    with suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
