"""Tasks: the units that one process encodes in one go, and what it tells when it has.

A folder may hold a million small files, each a unit; a task takes as many neighbours as make it worth
sending. Tasks follow from the plan alone, and what they write is put together in their order, so neither the
number of workers nor the grouping shows in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from lowtide._prepare.units import Unit

_WORTH = 8 * 2**20  # bytes of sources below which units are put together


@dataclass(frozen=True, slots=True)
class Task:
    """Neighbouring units, encoded one after another into the same files."""

    index: int
    units: tuple[Unit, ...]
    weight: int  # bytes of the sources, for progress


@dataclass(frozen=True, slots=True)
class Record:
    """What a task that is done tells. Its files are complete once its record is there."""

    task: int
    tokens: Mapping[str, int]
    documents: Mapping[str, int]
    skipped: int = 0
    complaints: Sequence[str] = field(default_factory=list)  # about the first of those skipped
    files: Mapping[str, Sequence[int]] = field(default_factory=dict)  # size and CRC-32, by split and ending

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def group(units: Iterable[Unit], sizes: Sequence[int]) -> list[Task]:
    """Units put together into tasks; ``sizes`` are the bytes of each source.

    >>> units = [Unit(i, i, f"{i}.txt", "text", 0, 10) for i in range(3)]
    >>> [len(task.units) for task in group(units, [10, 10, 10])]
    [3]
    >>> [len(task.units) for task in group(units, [10, 2**25, 10])]
    [1, 1, 1]
    """
    made = list(units)
    spans: dict[int, int] = {}
    for unit in made:
        spans[unit.source] = spans.get(unit.source, 0) + unit.stop - unit.start
    tasks: list[Task] = []
    held: list[Unit] = []
    weight = 0
    for unit in made:
        # A unit counts in bytes, or in rows, or in row groups: its part of the source's size is its weight.
        share = sizes[unit.source] * (unit.stop - unit.start) // max(1, spans[unit.source])
        if held and weight + share > _WORTH:
            tasks.append(Task(len(tasks), tuple(held), weight))
            held, weight = [], 0
        held.append(unit)
        weight += share
    if held:
        tasks.append(Task(len(tasks), tuple(held), weight))
    return tasks
