"""Costs: what reads cost on a device, learned from the reads themselves."""

from __future__ import annotations

from collections import deque

_SHORT, LONG = 2**16, 2**18  # bytes per read
_RECENT = 16  # observations that count


class Costs:
    """What reads cost on this device, learned from the reads of a pass: seconds per read and per byte.

    A gap is read through if its bytes take less time than another read.

    >>> costs = Costs()
    >>> for _ in range(8):
    ...     costs.learn(reads=300, nbytes=300_000, seconds=0.1)  # 3,000 short reads per second
    ...     costs.learn(reads=8, nbytes=8 * 2**20, seconds=8 * 2**20 / 125e6)
    >>> 40_000 < costs.gap < 44_000
    True
    """

    def __init__(self, per_read: float = 50e-6, per_byte: float = 1e-9) -> None:
        self.per_read = per_read
        self.per_byte = per_byte
        self._recent: dict[str, deque[tuple[float, int]]] = {
            name: deque(maxlen=_RECENT) for name in ("per_read", "per_byte")
        }

    def learn(self, reads: int, nbytes: int, seconds: float) -> None:
        """Take some reads into account: short ones for the cost of one, long ones for that of a byte."""
        if nbytes <= _SHORT * reads:
            rest = max(seconds - nbytes * self.per_byte, seconds / 4)  # besides what their bytes took
            self.per_read = min(max(self._average("per_read", rest, reads), 1e-7), 0.1)
        elif nbytes >= LONG * reads:
            self.per_byte = min(max(self._average("per_byte", seconds, nbytes), 1e-11), 1e-6)

    def _average(self, name: str, seconds: float, count: int) -> float:
        """Seconds per item over recent observations: a rate-limited device delays some reads and not others.

        The slowest are left out: after a stall, gaps could become so long that no read is short any more, and
        nothing would correct that.
        """
        recent = self._recent[name]
        recent.append((seconds, count))
        counted = sorted(recent, key=lambda one: one[0] / one[1])[: max(1, len(recent) - len(recent) // 4)]
        return sum(seconds for seconds, _ in counted) / sum(count for _, count in counted)

    @property
    def gap(self) -> int:
        """The longest gap, in bytes, that is worth reading through."""
        return int(self.per_read / self.per_byte)
