"""How much the looks may cost, when an expensive one is worth it, and a thread that takes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lowtide._memory.profile.recording import Point

MIB = 2**20
_EARLY = 10.0  # seconds of a command that are looked at more closely
_PAGE = 4096
_MUCH = 64 * MIB  # of memory that no look of a kind has seen


class Governor:
    """Spends processor time: an advance, a part of the first seconds, and a smaller part of all time.

    A short command deserves close looks, and a long one must not pay for them. What is not spent is kept, so
    that a program which imports for a minute and then works has its looks when it works. The cost of a look
    is measured: a tree of many processes is looked at less often, not at a higher cost.

    >>> governor = Governor(part=0.01, advance=0.0)
    >>> governor.spent += 0.5  # half a second of looking
    >>> 49 < governor.debt() <= 50  # is paid back in fifty seconds
    True
    """

    def __init__(self, part: float, advance: float, early: float = 0.0) -> None:
        self.part = part
        self.advance = advance
        self.early = early
        self.started = time.monotonic()
        self.spent = 0.0
        self.last = 0.0  # cost of the last look
        self._before = 0.0

    def __enter__(self) -> Governor:
        self._before = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.last = time.thread_time() - self._before
        self.spent += self.last

    def credit(self) -> float:
        """Seconds of processor time that may be spent now."""
        age = time.monotonic() - self.started
        return self.advance + self.early * min(age, _EARLY) + self.part * age - self.spent

    def debt(self) -> float:
        """Seconds to wait until the next look is paid for; 0 or less when it may be taken now."""
        credit = self.credit()
        age = time.monotonic() - self.started
        return -credit / (self.part + (self.early if age < _EARLY else 0.0))


class Trigger:
    """Whether enough has happened since the last look of a kind to be worth another.

    ``shares``: processes came or went, memory moved, or pages were touched, which is all that copy-on-write
    shows. Otherwise, for files: more of them is mapped, or something was written that is on no device.
    """

    def __init__(self, shares: bool) -> None:
        self._shares = shares
        self._last: Point | None = None
        self._most = 0  # bytes at any look so far

    def due(self, point: Point, cost: float) -> bool:
        """Whether a look at this moment would show something new; the last one took ``cost`` seconds."""
        last = self._last
        if last is None:
            return True
        if point.time < last.time + max(0.02, 5 * cost):
            return False
        if self._shares:
            resident = self._bytes(point)
            moved = abs(resident - self._bytes(last))
            touched = (point.minor - last.minor) * _PAGE
            return point.epoch != last.epoch or max(moved, touched) >= max(4 * MIB, resident / 50)
        mapped = self._bytes(point)
        new = abs(mapped - self._bytes(last))
        nowhere = (point.written - last.written) - (point.stored - last.stored)
        if new >= max(8 * MIB, mapped / 20) or nowhere >= 8 * MIB:
            return True
        return point.time >= 1.25 * last.time + 0.05

    def pressing(self, point: Point) -> bool:
        """Whether memory is half as large again as at any look so far: worth a look that is not paid for.

        A program whose imports have used up the credit may map its data right after that, and end. Memory
        multiplies only a few times in a run, so the cost of these looks is bounded.
        """
        return self._bytes(point) >= max(self._most + _MUCH, self._most * 3 // 2)

    def taken(self, point: Point) -> None:
        """Note a look that is taken at ``point``."""
        self._last = point
        self._most = max(self._most, self._bytes(point))

    def _bytes(self, point: Point) -> int:
        return point.file + point.shared + (point.anon if self._shares else 0)


class Aside:
    """Takes one expensive look at a time in another thread.

    A look waits for locks of the processes that it looks at, on a busy machine for a good part of a second.
    The cheap looks continue meanwhile.
    """

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self._thread: threading.Thread | None = None
        self._result: Any = None

    @property
    def busy(self) -> bool:
        """Whether a look is under way, or was not collected yet."""
        return self._thread is not None

    def start(self, look: Callable[[], Any]) -> None:
        """Start a look."""

        def run() -> None:
            with self.governor:
                self._result = look()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def collect(self, wait: float = 0.0) -> Any:
        """What the last look has seen, once; ``None`` if there is nothing yet."""
        if self._thread is None:
            return None
        self._thread.join(wait)
        if self._thread.is_alive():
            return None
        result, self._thread, self._result = self._result, None, None
        return result
