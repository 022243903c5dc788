"""A recording on disk while it is made, so that it outlives the profiler.

One JSON value per line: first what is known at the start, then each look and event as it comes, at last what
is known at the end. What the kernel has taken stays, however the profiler ends; a last line that was cut off
is left out. ``lowtide report`` finishes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from lowtide._memory import cgroup
from lowtide._memory.profile.events import Event
from lowtide._memory.profile.recording import KINDS, Look, Recording
from lowtide._printable import brief
from lowtide.errors import FormatError

MAGIC = b'{"lowtide_recording":'
VERSION = 1
_EVERY = 0.5  # seconds between two writes
_MAX_SIZE = 4 * 2**20  # beyond this the file is written again, from what the recording has kept
_MAX_LINES = 2**20  # that are read
_MOST_TIME = 2**36  # seconds
_PREFIX = "lowtide-profile-"
_HEADER = ("command", "pid", "started", "interval", "budget", "limit", "attached")
_RESULT = ("ended", "status", "true_peak", "read_total", "most_processes", "blind")
# Everything that a recording keeps over time: how a line calls it, its type, and where it is kept.
_KINDS: dict[str, tuple[Any, str]] = {
    **{look.__name__.lower(): (look, name) for look, name in KINDS.items()},
    "event": (Event, "events"),
}


class Journal:
    """The file of one recording. A disk that fills up ends the journal, not the recording."""

    def __init__(self, recording: Recording, path: str | None, counters: dict[str, dict[str, int]]) -> None:
        self.path = path
        self._recording = recording
        self._counters = counters
        self._pending: list[str] = []
        self._events = 0
        self._written = 0.0
        self._size, self._limit = 0, _MAX_SIZE
        self._temporary = path is None
        self._fd: int | None = None
        try:
            if path is None:
                self._fd, self.path = tempfile.mkstemp(".recording", f"{_PREFIX}{os.getpid()}-")
            else:
                self._fd = _open(path, os.O_TRUNC)
            self._write([self._header()])
        except OSError as error:
            self._give_up(error)

    def add(self, look: Look) -> None:
        """Note a look; it is on disk half a second later."""
        if self._fd is None:
            return
        self._pending.append(_line(look))
        if look.time - self._written >= _EVERY:
            self._written = look.time
            self.flush()

    def flush(self) -> None:
        """Give everything so far to the kernel."""
        if self._fd is None:
            return
        events = self._recording.events
        lines = self._pending + [_line(event) for event in events[self._events :]]
        self._pending, self._events = [], len(events)
        try:
            self._write(lines)
            if self._size > self._limit:
                self._start_again()
        except OSError as error:
            self._give_up(error)

    def finish(self) -> None:
        """Note how it ended."""
        self.flush()
        result = {name: getattr(self._recording, name) for name in _RESULT}
        self._pending.append(json.dumps(["end", result]))
        self.flush()

    def close(self) -> None:
        """Close the file; one that nobody asked for is removed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            if self._temporary and self.path is not None:
                os.unlink(self.path)

    def _header(self) -> str:
        header = {name: getattr(self._recording, name) for name in _HEADER}
        counters = self._counters
        return json.dumps(
            {"lowtide_recording": VERSION, **header, "counters": counters}, separators=(",", ":")
        )

    def _write(self, lines: Iterable[str]) -> None:
        data = memoryview("".join(f"{line}\n" for line in lines).encode())
        self._size += len(data)
        while self._fd is not None and data:
            data = data[os.write(self._fd, data) :]

    def _start_again(self) -> None:
        """Replace the file by one with the looks that the recording has kept."""
        assert self.path is not None
        assert self._fd is not None
        recording, beside = self._recording, f"{self.path}.{os.getpid()}"
        old, self._fd = self._fd, _open(beside, os.O_EXCL)
        os.close(old)
        try:
            self._size = 0
            looks = (look for _, name in _KINDS.values() for look in getattr(recording, name))
            self._write([self._header(), *map(_line, looks)])
            os.replace(beside, self.path)
        except OSError:
            os.unlink(beside)
            raise
        self._limit = max(_MAX_SIZE, 2 * self._size)

    def _give_up(self, error: OSError) -> None:
        problem = (error.strerror or str(error)).lower()
        self._recording.blind.append(f"the recording on disk ends early: {problem}")
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def _open(path: str, flag: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, 0o666)


def newest() -> str | None:
    """The unfinished recording in the folder for temporary files that was written to last."""
    folder = tempfile.gettempdir()
    times = {}
    for entry in os.scandir(folder):
        if entry.name.startswith(_PREFIX) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # of a profiler that has just finished
                about = entry.stat(follow_symlinks=False)
                if about.st_uid == os.getuid():  # anybody may write there
                    times[entry.path] = about.st_mtime
    return max(times, key=times.__getitem__, default=None)


def load(lines: Iterator[bytes], path: str) -> Recording:
    """The recording of a journal, complete or not."""
    header = _parse(next(lines, b""), path, 1)
    if not isinstance(header, dict) or header.get("lowtide_recording") != VERSION:
        raise FormatError(f"{path}: not a recording of this version; record again with `lowtide profile`")
    try:
        recording = Recording(**_header_of(header))
        complete = _add_all(recording, lines, path)
        if not complete:
            last = recording.points[-1].time if recording.points else 0.0
            recording.ended = recording.started + last
            recording.blind.append("what came after: the profiler was killed, or is still at work")
            recording.events += _since(header.get("counters"), last)
        recording.events.sort(key=lambda event: event.time)
        recording.series()
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path}: damaged recording ({brief(str(error))}); record again with `lowtide profile`"
        ) from error
    return recording


def _header_of(header: dict[str, Any]) -> dict[str, Any]:
    fields = {name: header[name] for name in _HEADER}
    words = fields["command"]
    numbers = [fields[name] for name in ("pid", "started", "interval", "budget", "limit")]
    known = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not known or not all(_is_figure(number) for number in numbers if number is not None):
        raise ValueError("the first line")
    if not fields["started"] <= _MOST_TIME:  # no calendar has a later date
        raise ValueError("started")
    return fields


def _add_all(recording: Recording, lines: Iterator[bytes], path: str) -> bool:
    """Add every look and event; whether the last line is there."""
    latest: dict[str, float] = {}
    for number, line in zip(range(2, _MAX_LINES), lines, strict=False):
        if not line.endswith(b"\n"):
            break  # cut off by a kill
        kind, value = _parse(line, path, number)
        if kind == "end":
            if not all(isinstance(line, str) for line in value["blind"]):
                raise ValueError("the last line")
            for name in _RESULT:
                if name != "blind" and not (value[name] is None or _is_figure(abs(value[name]))):
                    raise ValueError(name)
                setattr(recording, name, value[name])
            return True
        look, _ = _KINDS[kind]
        entry = look(**value) if isinstance(value, dict) else look(*value)
        _check(entry)
        if kind != "event" and not latest.get(kind, 0.0) <= entry.time <= _MOST_TIME:
            raise ValueError("times that do not rise")
        latest[kind] = entry.time
        if kind == "event":
            recording.events.append(entry)
        else:
            recording.add(entry)
    return False


def _since(counters: Any, last: float) -> list[Event]:
    """Kills that the container's counters show, if it still exists, and the recording does not."""
    here = cgroup.find()
    for path, before in list((counters or {}).items())[:1]:
        # The file may be a stranger's: look nowhere but among cgroups.
        if here is None or os.path.commonpath([here.mount, os.path.normpath(path)]) != here.mount:
            break
        count = type(here)(path, here.mount).killed() - int(before.get("oom_kill", 0))
        if count > 0:
            text = f"since the recording started, the kernel OOM-killed processes of its container: {count}"
            return [Event("oom_kill", last, last, text)]
    return []


def _line(entry: Look | Event) -> str:
    kind = type(entry).__name__.lower()
    value = list(entry) if kind == "point" else entry._asdict()
    return json.dumps([kind, value], separators=(",", ":"), default=dict)


def _parse(line: bytes, path: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}, line {number}: not JSON; record again with `lowtide profile`") from error


def _check(entry: Look | Event) -> None:
    """Raise for a value which is not a figure; names and texts are strings."""
    for name, value in entry._asdict().items():
        figures = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        text = isinstance(entry, Event) and name in ("kind", "text")
        if not all(isinstance(one, str) if text else one is None or _is_figure(one) for one in figures):
            raise ValueError(name)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 2**64
