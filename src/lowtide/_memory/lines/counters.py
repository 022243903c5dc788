"""Memory of this process, cheap enough to be read at each line of Python: one ``pread`` of an open file.

The kernel's mark of the highest resident memory costs ten times what the other figures cost, so it is read
only if there were page faults since the last time: without one, memory cannot have risen.
"""

from __future__ import annotations

import os

from lowtide._memory import peaks, proc

PAGE = os.sysconf("SC_PAGE_SIZE")


class Counters:
    """Resident memory of now, and the highest since the last look."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._open()
        os.register_at_fork(after_in_child=self._reopen)

    def _reopen(self) -> None:
        """/proc/self of a parent stays the parent's."""
        if self._descriptors:
            self.close()
            self._open()

    def _open(self) -> None:
        flags = os.O_CLOEXEC
        self.statm = os.open(f"{proc.ROOT}/self/statm", os.O_RDONLY | flags)
        self._status = os.open(f"{proc.ROOT}/self/status", os.O_RDONLY | flags)
        self._descriptors = [self.statm, self._status]
        self.faults = -1
        self.text = b""
        self.rss = self.shared = self.highest = 0
        try:
            self._clear = os.open(f"{proc.ROOT}/self/clear_refs", os.O_WRONLY | flags)
            self._descriptors.append(self._clear)
            os.write(self._clear, b"5")
            self.true_peaks = True
        except OSError:  # not permitted in some sandboxes: the peak is then what is left after a line
            self.true_peaks = False

    def update(self, text: bytes, faults: int) -> None:
        """Set ``rss``, ``shared`` and ``highest`` from the text of ``statm`` and the number of page faults.

        In pages: resident memory, that of files and shared memory in it, and the highest resident memory
        since the last call.
        """
        self.text = text
        _, rss, shared, _ = text.split(None, 3)
        self.rss = self.highest = int(rss)
        self.shared = int(shared)
        if faults != self.faults:
            self.faults = faults
            if self.true_peaks:
                mark = proc.field(os.pread(self._status, 4096, 0), b"\nVmHWM:")
                peaks.observe(mark)  # of watches, which use the same mark
                os.write(self._clear, b"5")
                self.highest = max(mark // PAGE, self.rss)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []
