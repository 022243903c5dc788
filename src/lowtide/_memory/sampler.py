"""The process that samples another one, so that a call which holds the interpreter does not blind it.

It starts without site-packages and imports next to nothing, not even ``typing``: what a watch does not
need is imported when the first one needs it. Lines come in on standard input, fields between tabs, paths in
hexadecimal with what was cached at the start; answers go out on standard output as the text of a tuple:

    start  ID  GAUGE  CHILDREN  INTERVAL  LIMIT  [FILE:BASE…]   start a session; GAUGE is MODULE:CLASS
    stop   ID                                                  sample once more and answer (ID, {...})

When a session first exceeds its limit, its number is also written to descriptor 3, where a signal may wait.
"""

from __future__ import annotations

import os
import select
import sys
import time

from lowtide._memory.samples import Samples
from lowtide._memory.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lowtide._memory.gauges import Gauge

KEEP = 512  # samples of a session
ALERTS = 3


class Session:
    """One watch of the parent process."""

    def __init__(self, gauge: Gauge, interval: float, limit: int) -> None:
        self.gauge, self.interval, self.limit = gauge, interval, limit
        self.samples = Samples(KEEP, _value)  # time, value, anon, file, shared
        self.highest = -1
        self.parts: dict[str, int] = {}  # at the highest value
        self.first_over: tuple[float, int, int, int, int] | None = None
        self.files: list[tuple[str, int]] = []  # mapped when it was first over
        self.next = 0.0

    def look(self) -> bool:
        """Take a sample; ``True`` if it is the first over the limit."""
        started = time.monotonic()
        status = self.gauge.tree.status()
        value = self.gauge.read(status)
        sample = (time.time(), value, *status.parts)
        if value > self.highest:
            self.highest = value
            self.parts = dict(self.gauge.parts(status))
        self.samples.add(sample)
        now = time.monotonic()
        # Proportional shares of large processes take milliseconds: at most a twentieth of a core for them.
        self.next = now + max(self.interval, 20 * (now - started) if self.gauge.tree.descendants else 0)
        if value > self.limit and self.first_over is None:
            self.first_over, self.files = sample, self.gauge.files()
            return True
        return False

    def summary(self) -> dict[str, Any]:
        """The result of the session."""
        # Mapped files when it was first over and at the end: a file may have come or gone in between.
        files = dict(self.files)
        for path, size in self.gauge.files() if self.highest > self.limit else ():
            files[path] = max(size, files.get(path, 0))
        return {
            "highest": self.highest, "parts": self.parts, "first_over": self.first_over,
            "samples": self.samples, "files": sorted(files.items(), key=_value, reverse=True),
        }  # fmt: skip


def _value(row: Any) -> Any:
    return row[1]


def main() -> None:
    """Serve the parent until it ends or closes the pipe."""
    parent = os.getppid()
    sessions: dict[int, Session] = {}
    waiting = b""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while True:
        now = time.monotonic()
        due = min((session.next for session in sessions.values()), default=now + 1.0)
        if poller.poll(max(0.0, min(due - now, 1.0)) * 1000):
            received = os.read(0, 65536)
            if not received:
                return
            *lines, waiting = (waiting + received).split(b"\n")
            for line in lines:
                _serve(sessions, parent, line.decode().split("\t"))
        if os.getppid() != parent:
            return  # the parent is gone, though a child of it may still hold the pipe
        now = time.monotonic()
        for number, session in sessions.items():
            if session.next <= now:
                _look(number, session)


def _serve(sessions: dict[int, Session], parent: int, request: list[str]) -> None:
    number = int(request[1])
    if request[0] == "start":
        session = sessions[number] = start(parent, *request[2:])
        _look(number, session)
        return
    answer: dict[str, Any] = {}
    if (ended := sessions.pop(number, None)) is not None:
        _look(number, ended)
        answer = ended.summary()
        ended.gauge.tree.close()
    _write(1, repr((number, answer)))


def start(pid: int, gauge: str, children: str, interval: str, limit: str, *files: str) -> Session:
    """A session from the fields of a request."""
    module, _, name = gauge.partition(":")
    kind = getattr(__import__(module, fromlist=[name]), name)
    bases = {os.fsdecode(bytes.fromhex(path)): int(base) for path, base in (f.split(":") for f in files)}
    tree = Tree(pid, descendants=children == "True", excluded={os.getpid()})
    return Session(kind(tree, bases), float(interval), int(limit))


def _look(number: int, session: Session) -> None:
    try:
        first = session.look()
    except OSError:
        sys.exit()  # the parent is gone, or a zombie without memory
    if first:
        _write(ALERTS, str(number))


def _write(fd: int, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape") + b"\n"
    while data:
        data = data[os.write(fd, data) :]
