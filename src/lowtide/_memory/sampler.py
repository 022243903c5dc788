"""The process that looks at another one, so that a call which holds the interpreter does not blind it.

It is started without site-packages and imports next to nothing, not even ``typing``: what a watch does not
need is imported when the first one needs it. Lines come in on standard input, fields between tabs, paths in
hexadecimal with what was cached at the start; answers go out on standard output as the text of a tuple:

    start  ID  KIND  INTERVAL  OVER  [FILE:BASE…]   begin to look; OVER is the value that is too much
    stop   ID                                    look once more and answer (ID, {...})

When a watch first passes its limit, its number is also written to descriptor 3, where a signal may wait.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEEP = 512  # samples kept for a watch; beyond that every second one goes
ALERTS = 3
KINDS = ("rss", "anon", "file", "shared")  # as they stand in the status file


class Session:
    """One watch of the parent process."""

    def __init__(self, pid: int, kind: str, interval: float, over: int, files: dict[str, int]) -> None:
        self.pid, self.kind, self.interval, self.over, self.files = pid, kind, interval, over, files
        self.samples: list[tuple[float, int, int, int, int]] = []  # time, value, anon, file, shared
        self.count = 0
        self.highest = 0
        self.first_over: dict[str, Any] | None = None
        self.cached: list[tuple[str, int]] = []  # growth by file when the page cache was highest
        self.next = 0.0
        self._every = 1
        self._bases = dict(files)  # what was cached of each file at the start, or when it was first seen
        self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._index = KINDS.index(kind) if kind in KINDS else -1
        self._cgroup: Any = None
        if kind == "cgroup":
            from lowtide._memory import cgroups

            self._cgroup = cgroups.find(pid)

    def close(self) -> None:
        """Let go of the parent's files."""
        os.close(self._status)

    def look(self) -> bool:
        """Take a sample; ``True`` if it is the first over the limit."""
        text = os.pread(self._status, 8192, 0)
        start = text.index(b"VmRSS:")  # the next three lines are its parts
        _, rss, _, _, anon, _, _, file, _, _, shared = text[start : start + 200].split(None, 11)[:11]
        status = (int(rss) * 1024, int(anon) * 1024, int(file) * 1024, int(shared) * 1024)
        value = status[self._index] if self._index >= 0 else self._elsewhere()
        sample = (time.time(), value, *status[1:])
        if value > self.highest:
            self.highest = value
        if self.count % self._every == 0:
            self.samples.append(sample)
            if len(self.samples) > KEEP:
                self.samples = self.samples[::2]
                self._every *= 2
        self.count += 1
        self.next = time.monotonic() + self.interval
        if value > self.over and self.first_over is None:
            self.first_over = {"sample": sample, "mappings": self.mappings()}
            return True
        return False

    def mappings(self) -> list[tuple[str, int]]:
        """The largest mapped data files."""
        from lowtide._memory import proc

        try:
            rows = proc.mappings(self.pid)
        except OSError:
            return []
        return [(row.path, row.rss) for row in rows if row.path and not row.code][:8]

    def summary(self) -> dict[str, Any]:
        """What the watch comes to."""
        return {
            "count": self.count, "highest": self.highest, "first_over": self.first_over,
            "samples": self.samples, "cached": self.cached,
            "mappings": self.mappings() if self.highest > self.over else [],
        }  # fmt: skip

    def _elsewhere(self) -> int:
        """What is not in the status file."""
        if self.kind == "cache":
            return self._page_cache()
        return (self._cgroup.usage() or 0) if self._cgroup is not None else 0

    def _page_cache(self) -> int:
        """Growth of the page cache of the named files, or of all data files that the process has open."""
        from lowtide._io import pagecache

        growth = []
        for path in self.files or self._open_files():
            try:
                told = pagecache.resident(path)
            except OSError:
                continue
            if told is not None:
                growth.append((path, max(0, told[0] - self._bases.setdefault(path, told[0]))))
        total = sum(size for _, size in growth)
        if total > self.highest:
            self.cached = sorted((row for row in growth if row[1]), key=lambda row: -row[1])[:8]
        return total

    def _open_files(self) -> list[str]:
        folder = f"/proc/{self.pid}/fd"
        found = set(self._bases)
        for name in os.listdir(folder):
            try:
                path = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/")):
                found.add(path)
        return sorted(found)


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
        fields = [field.split(":") for field in request[5:]]
        files = {os.fsdecode(bytes.fromhex(path)): int(base) for path, base in fields}
        sessions[number] = Session(parent, request[2], float(request[3]), int(request[4]), files)
        _look(number, sessions[number])
        return
    session = sessions.pop(number, None)
    answer: dict[str, Any] = {}
    if session is not None:
        _look(number, session)
        answer = session.summary()
        session.close()
    _write(1, repr((number, answer)))


def _look(number: int, session: Session) -> None:
    try:
        first = session.look()
    except (OSError, ValueError):
        sys.exit()  # the parent is gone, or a zombie without memory
    if first:
        _write(ALERTS, str(number))


def _write(fd: int, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape") + b"\n"
    while data:
        data = data[os.write(fd, data) :]
