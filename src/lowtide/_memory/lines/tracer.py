"""Which line takes the memory: hits, growth and true peak of each line of chosen functions.

``sys.settrace`` reports the lines of chosen functions only; every other function costs one lookup per call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from types import CodeType, FrameType
from typing import Any

from lowtide._memory.lines.counters import PAGE, Counters


class Line:
    """Figures of one line, in bytes, over all its hits."""

    __slots__ = ("heap", "hits", "mapped", "peak")

    def __init__(self) -> None:
        self.hits = 0
        self.heap = 0
        """Growth of the heap while the line ran, calls included."""
        self.mapped = 0
        """The same for mapped files and shared memory."""
        self.peak = 0
        """The most by which resident memory exceeded that at the start of the line, in any hit."""


class _Open:
    """A line that is running, and memory in pages when it started."""

    __slots__ = ("highest", "line", "rss", "shared", "stale")

    def __init__(self, line: Line, counters: Counters) -> None:
        self.line = line
        self.rss, self.shared, self.highest = counters.rss, counters.shared, counters.rss
        self.stale = False  # whether memory has changed while a callee was measured


class Tracer:
    """Measures the lines of functions for which ``chosen`` is true.

    Parameters
    ----------
    chosen : callable
        Called once for each code object that is entered, with its first frame.
    """

    def __init__(self, chosen: Callable[[FrameType], bool]) -> None:
        self.lines: dict[CodeType, dict[int, Line]] = {}
        self._chosen = chosen
        self._choices: dict[CodeType, bool] = {}
        self._running: dict[FrameType, _Open | None] = {}
        self._counters = Counters()
        self._before: list[Any] = []
        self._step = self._stepper()

    def add(self, code: CodeType) -> None:
        """Choose the lines of ``code``."""
        self._choices[code] = True
        self.lines.setdefault(code, {})

    def close(self) -> None:
        """Measure no more; the figures stay."""
        self._counters.close()

    def __enter__(self) -> Tracer:
        self._before.append(sys.gettrace())
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before.pop())
        if not self._before:
            threading.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        chosen = self._choices.get(code)
        if chosen is None:
            chosen = self._choices[code] = self._chosen(frame)
            if chosen:
                self.lines.setdefault(code, {})
        if not chosen:
            return None
        self._running[frame] = None
        return self._step

    def _stepper(self) -> Any:
        """The function that is called for each line. It is short and reads no attribute of ``self``."""
        counters, running, every, finish = self._counters, self._running, self.lines, self._finish
        pread, usage, whole = os.pread, getrusage, RUSAGE_SELF

        def step(frame: FrameType, event: str, _arg: object) -> Any:
            current = running.get(frame)
            text = pread(counters.statm, 64, 0)
            faults = usage(whole)[6]  # minor ones: without them memory cannot have risen
            if faults != counters.faults or text != counters.text:
                counters.update(text, faults)
                highest = counters.highest
                for other in tuple(running.values()):  # lines of callers run too
                    if other is not None:
                        other.stale = True
                        if other.highest < highest:
                            other.highest = highest
            if current is not None and current.stale:
                finish(current)
            if event == "line":
                lines = every[frame.f_code]
                line = lines.get(frame.f_lineno)
                if line is None:
                    line = lines[frame.f_lineno] = Line()
                line.hits += 1
                if current is None:
                    running[frame] = _Open(line, counters)
                else:
                    current.line = line
            elif event == "return":  # a generator that yields comes here too, and is entered again
                running.pop(frame, None)
            return step

        return step

    def _finish(self, current: _Open) -> None:
        """Give a line what has changed since it started, and start the next one from here."""
        counters, line = self._counters, current.line
        rss, shared = counters.rss, counters.shared
        line.heap += (rss - shared - current.rss + current.shared) * PAGE
        line.mapped += (shared - current.shared) * PAGE
        line.peak = max(line.peak, (current.highest - current.rss) * PAGE)
        current.rss, current.shared, current.highest, current.stale = rss, shared, rss, False
