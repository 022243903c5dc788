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

_PAGES = 8192  # what reading an extent touches besides itself


def gather(
    readers: Mapping[int, Reader], which: Ints, extents: Extents, out: Bytes, ahead: int = AHEAD
) -> Pending[Outcome]:
    """Start to fill ``out``: extent ``i`` is read by ``readers[which[i]]``.

    Files that take the same flags are read by the same system call, in the order of the extents.
    """
    numbers = sorted(set(which.tolist()))
    if len(numbers) == 1:
        return readers[numbers[0]].submit(extents, out, ahead=ahead)
    joint = _Joint({number: readers[number] for number in numbers}, out)
    if joint.flags is None:
        parts = [readers[number].submit(extents[which == number], out, ahead=ahead) for number in numbers]
        return every(parts).then(combined)
    if len(extents.window(0, DEPTH, ahead, overhead=_PAGES)) == len(extents):
        return joint.submit(which, extents)
    return Pending(joint.read, which, extents, ahead)


class _Joint:
    """Several files that are read into one buffer."""

    def __init__(self, readers: Mapping[int, Reader], out: Bytes) -> None:
        self._readers = {
            number: reader for number, reader in readers.items() if isinstance(reader, PreadReader)
        }
        self._out = out
        flags = {reader.flags for reader in self._readers.values()}
        self.flags = flags.pop() if len(flags) == 1 and len(self._readers) == len(readers) else None
        """Flags of reads that do not wait, and of those that do; None if the files have nothing in common."""

    def submit(self, which: Ints, extents: Extents) -> Pending[Outcome]:
        """Ask every file for its part without waiting; what is pending is what was not cached."""
        assert self.flags is not None
        late = np.flatnonzero(self._read(which, extents, self.flags[0]) != extents.lengths)
        if not len(late):
            return Pending.of(Outcome(0, len(extents)))
        return Pending(self._finish, which[late], extents[late], len(extents))

    def _finish(self, which: Ints, late: Extents, total: int) -> Outcome:
        assert self.flags is not None
        results = self._read(which, late, self.flags[1])
        for i in np.flatnonzero(results != late.lengths).tolist():
            # The file's own reader continues, or reports what is wrong with the file.
            self._readers[int(which[i])].submit(late[i : i + 1], self._out).wait()
        return Outcome(len(late), total)

    def read(self, which: Ints, extents: Extents, ahead: int) -> Outcome:
        """One window after another, each as large as the hints may be."""
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
