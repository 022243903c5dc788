"""Every kind of file that lowtide reads. To add one, write a ``Target`` and put it into a list."""

from __future__ import annotations

from tests.fuzz import arrays, sources
from tests.fuzz.harness import Target

TARGETS: dict[str, Target] = {target.name: target for target in [*arrays.TARGETS, *sources.TARGETS]}
