"""A gauge that is not lowtide's, the address space: defined in one file, registered with one line."""

from __future__ import annotations

import mmap

from lowtide._memory import proc
from lowtide._memory.gauges import Gauge


class Virtual(Gauge):
    """Addresses that a process has mapped, resident or not."""

    name, noun = "virtual", "address space"

    def read(self, _: proc.Status) -> int:
        return int(proc.read(f"{proc.ROOT}/{self.tree.root}/statm").split()[0]) * mmap.PAGESIZE

    def parts(self, status: proc.Status) -> dict[str, int]:
        return {"addresses": self.read(status)}
