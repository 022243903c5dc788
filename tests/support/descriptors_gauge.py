"""A gauge that is not lowtide's: open descriptors. It is defined in one file and registered with one line."""

from __future__ import annotations

import os

from lowtide._memory.gauges import Gauge
from lowtide._memory.proc import Status


class Descriptors(Gauge):
    """How many descriptors a process has open."""

    name, noun = "descriptors", "open descriptors"

    def read(self, status: Status) -> int:
        return len(os.listdir(f"/proc/{self.tree.root}/fd"))

    def parts(self, status: Status) -> dict[str, int]:
        return {"descriptors": self.read(status)}
