"""How often to look, so that looking costs at most a given part of one core."""

from __future__ import annotations

import time


class Governor:
    """Spends processor time: a small advance at the start, then a fixed part of what passes.

    A short command deserves close looks, and a long one must not pay for them. What a look costs is
    measured, so a tree of many processes is looked at less often, not more dearly.

    >>> governor = Governor(part=0.01, advance=0.0)
    >>> governor.spent += 0.5  # half a second of looking
    >>> 49 < governor.debt() <= 50  # is paid back in fifty seconds
    True
    """

    def __init__(self, part: float, advance: float) -> None:
        self.part = part
        self.advance = advance
        self.started = time.monotonic()
        self.spent = 0.0
        self._before = 0.0

    def __enter__(self) -> Governor:
        self._before = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent += time.thread_time() - self._before

    def debt(self) -> float:
        """Seconds to wait until the next look is paid for; 0 or less when it may be taken now."""
        return (self.spent - self.advance) / self.part - (time.monotonic() - self.started)
