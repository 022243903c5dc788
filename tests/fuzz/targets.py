"""Every kind of file that lowtide reads. To add one, write a ``Target`` and put it into a list."""

from __future__ import annotations

from tests.fuzz import arrays, runs, sources, tokens
from tests.fuzz.harness import Target

_LISTS = (arrays.TARGETS, tokens.TARGETS, sources.TARGETS, runs.TARGETS)
TARGETS: dict[str, Target] = {target.name: target for targets in _LISTS for target in targets}
