"""Makes requests in this process or, after a fork, in a helper process.

The threads of obstore's runtime do not survive a fork, and it cannot start others: a call in a forked child
never returns. So a process whose parent has used obstore starts a small helper, which is not forked, and
which makes the requests for it. Processes that were spawned, or forked before anything was read, need none.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from lowtide import errors
from lowtide._io.remote import pool, requests
from lowtide._io.remote.address import Options
from lowtide._io.remote.requests import Take
from lowtide._io.system import after_fork

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_CODE = "import sys; sys.path[:] = {path!r}; from lowtide._io.remote.client import serve; serve({numbers!r})"
_FAILURES = (EOFError, OSError)


def perform(function: Callable[..., Any], address: str, options: Options, *arguments: Any) -> Any:
    """Make a request of ``requests`` in this thread."""
    global _USER
    if _USER is None:
        _USER = os.getpid()
    if os.getpid() == _USER:
        return function(address, options, *arguments)
    return _helper().call(function.__name__, address, options, *arguments)


def fetch(
    address: str, options: Options, start: int, stop: int, etag: str | None, modified_ns: int, take: Take
) -> requests.Meta:
    """Make a request for a range in this thread, and pass its bytes on as they arrive."""
    arguments = (start, stop, etag, modified_ns)
    if _USER in (None, os.getpid()):
        meta, _ = perform(requests.get, address, options, *arguments, take)
    else:
        meta, data = perform(requests.get, address, options, *arguments)
        take(start, data)
    return meta  # type: ignore[no-any-return]


def request(function: Callable[..., Any], address: str, options: Options, *arguments: Any) -> Any:
    """Make a request in another thread, so that waiting for it can end."""
    return pool.call(
        perform, function, address, options, *arguments, seconds=options.deadline, address=address
    )


class Helper:
    """A process that makes requests for this one, and ends with it."""

    def __init__(self) -> None:
        import socket
        import subprocess
        from multiprocessing.connection import Connection

        pairs = [socket.socketpair() for _ in range(pool.THREADS)]
        numbers = [theirs.fileno() for _, theirs in pairs]
        code = _CODE.format(path=sys.path, numbers=numbers)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=numbers, start_new_session=True
        )
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._all: list[Connection] = []
        for ours, theirs in pairs:
            theirs.close()
            connection = Connection(ours.detach())
            self._all.append(connection)
            self._idle.put(connection)

    def call(self, name: str, address: str, *arguments: Any) -> Any:
        import pickle

        connection = self._idle.get()
        try:
            connection.send_bytes(pickle.dumps((name, address, *arguments)))
            succeeded, result, has_data = pickle.loads(connection.recv_bytes())  # noqa: S301 - our own process
            if has_data:
                result = result, connection.recv_bytes()
        except _FAILURES as error:
            raise errors.ReadError(
                errno.EIO, "the helper process that reads after a fork has ended; start again", address
            ) from error
        finally:
            self._idle.put(connection)
        if not succeeded:
            raise result
        return result

    def leave(self) -> None:
        """In a forked child: close the connections to the helper, which belongs to the parent."""
        for connection in self._all:
            connection.close()
        self._process.returncode = self._process.returncode or 0  # so that Popen does not wait for it


def serve(numbers: list[int]) -> None:
    """In the helper: answer each connection in its own thread until the other end is closed."""
    from multiprocessing.connection import Connection

    threads = [threading.Thread(target=_answer, args=(Connection(number),)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _answer(connection: Connection) -> None:
    import pickle

    while True:
        try:
            name, *arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 - of the parent
        except _FAILURES:
            return
        data: Any = None
        try:
            result = getattr(requests, name)(*arguments)
            if name == "get":
                result, data = result
            answer = pickle.dumps((True, result, data is not None))
        except Exception as error:
            error.__cause__ = error.__context__ = None
            answer = pickle.dumps((False, error, False))
        try:
            connection.send_bytes(answer)
            if data is not None:
                connection.send_bytes(memoryview(data))
        except _FAILURES:
            return


def _helper() -> Helper:
    global _HELPER
    with _LOCK:
        if _HELPER is None:
            _HELPER = Helper()
        return _HELPER


@after_fork
def _after_fork() -> None:
    global _HELPER, _LOCK
    _LOCK = threading.Lock()
    helper, _HELPER = _HELPER, None
    if helper is not None:
        helper.leave()
    requests.forget()


_USER: int | None = None  # the process in which obstore's runtime was started
_HELPER: Helper | None = None
_LOCK = threading.Lock()
