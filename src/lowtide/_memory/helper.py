"""The sampler that belongs to this process: started at the first watch, kept until the process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from ast import literal_eval
from typing import TYPE_CHECKING, Any

from lowtide._memory import alarm

if TYPE_CHECKING:
    from lowtide._memory.gauges import Gauge

# The package's __init__ is stepped over: the sampler has no NumPy and needs none. The path of this process
# comes last, for gauges that are defined elsewhere.
_BOOT = """
import sys
package, *path = sys.argv[1:]
sys.path += path
sys.modules["lowtide"] = type(sys)("lowtide")
sys.modules["lowtide"].__path__ = [package]
from lowtide._memory import sampler
sampler.main()
"""


class Helper:
    """A running sampler process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.RLock()
        self.answers: dict[int, dict[str, Any]] = {}
        self._unread = b""
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        stdin, self._requests = os.pipe()
        self._replies, stdout = os.pipe()
        self.alerts, alert_end = os.pipe()
        os.set_blocking(self.alerts, False)
        # Nothing but the three pipes is inherited; standard error stays, for a traceback of the sampler.
        actions = [
            (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_DUP2, stdout, 1),
            (os.POSIX_SPAWN_DUP2, alert_end, 3),
        ]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _BOOT, package, *map(str, sys.path)],
                os.environ,
                file_actions=actions,
                # A terminal sends Ctrl-C to the sampler too, which ends with this process anyway.
                setsigmask=[signal.SIGINT],
            )
        finally:
            for fd in (stdin, stdout, alert_end):
                os.close(fd)

    def start(self, number: int, gauge: Gauge, interval: float, limit: int) -> None:
        """Start a session."""
        kind = type(gauge)
        files = [f"{os.fsencode(path).hex()}:{base}" for path, base in gauge.bases.items()]
        with alarm.held():
            name, children = f"{kind.__module__}:{kind.__qualname__}", gauge.tree.descendants
            self._send("start", number, name, children, interval, limit, *files)

    def ready(self, gauge: Gauge) -> None:
        """Wait until the sampler runs and has loaded what it needs for ``gauge``."""
        self.start(0, gauge, 3600.0, 1 << 62)
        self.stop(0)

    def stop(self, number: int) -> dict[str, Any]:
        """End a session and fetch its summary; empty if the sampler is gone."""
        if self.owner != os.getpid():
            return {}  # a forked child leaves the block that its parent entered
        with alarm.held(), self.lock:
            self._send("stop", number)
            while number not in self.answers:
                try:
                    received = os.read(self._replies, 65536)
                except OSError:
                    received = b""
                if not received:
                    return {}
                *lines, self._unread = (self._unread + received).split(b"\n")
                for line in lines:
                    answered, summary = literal_eval(line.decode("utf-8", "surrogateescape"))
                    self.answers[answered] = summary
            return self.answers.pop(number)

    def alive(self) -> bool:
        """Whether the sampler still runs for this process."""
        if self.owner != os.getpid():
            return False
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def close(self) -> None:
        """End the sampler: it leaves when its input ends."""
        for fd in (self._requests, self._replies, self.alerts):
            with contextlib.suppress(OSError):
                os.close(fd)
        if self.owner == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def _send(self, *fields: object) -> None:
        data = "\t".join(map(str, fields)).encode() + b"\n"
        with self.lock, contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._requests, data) :]


_helper: Helper | None = None
_starting = threading.Lock()


def helper() -> Helper:
    """The sampler of this process, started if there is none."""
    global _helper
    with _starting:
        if _helper is None or not _helper.alive():
            if _helper is not None:
                _helper.close()
            _helper = Helper()
        return _helper


def shut_down() -> None:
    """End the sampler, if there is one. The next watch starts another."""
    global _helper
    with _starting:
        if _helper is not None:
            _helper.close()
            _helper = None


def _forget() -> None:
    """A forked child must not talk to its parent's sampler, nor hold its pipes open."""
    global _helper, _starting
    _starting = threading.Lock()
    if _helper is not None:
        _helper.close()
        _helper = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
