"""Gather: extents of several files in one call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from lowtide._io.aio import DEPTH
from lowtide._io.extents import AHEAD, Bytes, Extents, Ints
from lowtide._io.pending import Outcome, Pending, combined, every
from lowtide._io.pread import PreadReader, read_many
from lowtide._io.reader import Reader

_PAGES = 8192  # bytes that reading an extent touches beside it


def gather(
    readers: Mapping[int, Reader], which: Ints, extents: Extents, out: Bytes, ahead: int = AHEAD
) -> Pending[Outcome]:
    """Start to fill ``out``: extent ``i`` is read by ``readers[which[i]]``.

    Files that take the same flags are read by the same system call, in the order of the extents.
    """
    numbers = sorted(set(which.tolist()))
    if len(numbers) == 1:
        return readers[numbers[0]].submit(extents, out, ahead=ahead)
    preads = {number: reader for number in numbers if isinstance(reader := readers[number], PreadReader)}
    flags = {reader.flags for reader in preads.values()}
    together = flags.pop() if len(flags) == 1 and len(preads) == len(numbers) else None
    if together is None:
        parts = [readers[number].submit(extents[which == number], out, ahead=ahead) for number in numbers]
        return every(parts).then(combined)
    joint = _Joint(preads, out, *together)
    if len(extents.window(0, DEPTH, ahead, overhead=_PAGES)) == len(extents):
        return joint.submit(which, extents)
    return Pending(joint.read, which, extents, ahead)


class _Joint:
    """Several files that are read into one buffer, with the same flags."""

    def __init__(self, readers: Mapping[int, PreadReader], out: Bytes, nowait: int, waiting: int) -> None:
        self._readers, self._out = readers, out
        self._nowait, self._waiting = nowait, waiting

    def submit(self, which: Ints, extents: Extents) -> Pending[Outcome]:
        """Read what is cached of every file; the rest is pending."""
        late = np.flatnonzero(self._read(which, extents, self._nowait) != extents.lengths)
        if not len(late):
            return Pending.of(Outcome(0, len(extents)))
        return Pending(self._finish, which[late], extents[late], len(extents))

    def _finish(self, which: Ints, late: Extents, total: int) -> Outcome:
        results = self._read(which, late, self._waiting)
        for i in np.flatnonzero(results != late.lengths).tolist():
            # The file's own reader continues, or raises the error.
            self._readers[int(which[i])].submit(late[i : i + 1], self._out).wait()
        return Outcome(len(late), total)

    def read(self, which: Ints, extents: Extents, ahead: int) -> Outcome:
        """Read window by window, each as large as the hints may be."""
        first = 0
        outcomes = []
        while first < len(extents):
            window = extents.window(first, DEPTH, ahead, overhead=_PAGES)
            outcomes.append(self.submit(which[first : first + len(window)], window).wait())
            first += len(window)
        return combined(outcomes)

    def _read(self, which: Ints, extents: Extents, flags: int) -> Ints:
        """Bytes read, or a negative errno, for each extent of the file of its reader."""
        numbers = which.tolist()
        with ExitStack() as stack:
            fds = {}
            for number in set(numbers):
                entry = stack.enter_context(self._readers[number].borrow())
                entry.advise(random=True)
                fds[number] = entry.fd
            descriptors = np.array([fds[number] for number in numbers], np.int64)
            results = read_many(descriptors, extents, self._out, flags)
            for number, fd in fds.items():
                self._readers[number].check_one_of(len(fds), fd)
            return results
