"""True peaks, several at once.

The kernel keeps one mark of the highest resident memory of a process, and a reset for one measurement would
lose it for the others. So every measurement of this process goes through this module: before a reset, the
mark is credited to all that are under way.

How exact is it? Memory that is still held when the peak is read is exact to the page. For what was freed
before, it is as exact as the kernel's mark: since Linux 6.2 that counts pages for each processor in batches
and may be short by a few dozen pages (measured: up to 31 of them on two cores).
"""

from __future__ import annotations

import threading

from lowtide._memory import proc

_lock = threading.RLock()
_measuring: list[Peak] = []


def observe(mark: int) -> None:
    """Credit a mark to all peaks that are measured, before it is reset."""
    with _lock:
        for peak in _measuring:
            peak._seen = max(peak._seen, mark)


class Peak:
    """The highest resident memory of this process since the object was created.

    >>> peak = Peak()
    >>> block = bytearray(64 * 2**20)
    >>> peak.read() - peak.base >= 60 * 2**20
    True
    >>> peak.close()
    """

    def __init__(self) -> None:
        with _lock:
            before = proc.status()
            observe(before.peak)
            self.resettable = proc.reset_peak()
            now = proc.status()
            self.base = now.rss
            self._mark = now.peak
            self._seen: int = now.rss
            _measuring.append(self)

    def read(self) -> int:
        """The peak so far. Where ``known`` is false it is only the highest that was noticed."""
        with _lock:
            now = proc.status()
            if self.resettable or now.peak > self._mark:
                self._seen = max(self._seen, now.peak)
            self._seen = max(self._seen, now.rss)
            return self._seen

    @property
    def known(self) -> bool:
        """Whether the peak is the kernel's.

        A mark that cannot be reset is right as well once it has risen above its value at the start.
        """
        return self.resettable or self._seen > self._mark

    def close(self) -> None:
        """Stop measuring."""
        with _lock:
            if self in _measuring:
                self.read()
                _measuring.remove(self)
