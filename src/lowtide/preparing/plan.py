"""The plan: sources cut into units of about the same size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowtide.preparing.reading import ReadOptions
from lowtide.preparing.sources import Source
from lowtide.preparing.streams import compression_of
from lowtide.preparing.units import Unit


def plan(sources: Sequence[Source], options: ReadOptions) -> list[Unit]:
    """The units of the sources, in order. It depends on the sources and on the options alone.

    >>> from lowtide.preparing.sources import find
    >>> _ = (tmp / "x.txt").write_bytes(b"low tide")
    >>> [(unit.start, unit.stop) for unit in plan(find([str(tmp / "x.txt")]), ReadOptions(unit_size=5))]
    [(0, 5), (5, 8)]
    """
    units: list[Unit] = []
    for number, source in enumerate(sources):
        for start, stop in _ranges(source, options):
            units.append(Unit(len(units), number, source.path, source.kind, start, stop))
    return units


def _ranges(source: Source, options: ReadOptions) -> Iterator[tuple[int, int]]:
    if source.kind in ("parquet", "dataset"):
        from lowtide.preparing import tables

        yield from tables.ranges(source.path, source.kind, options)
    elif compression_of(source.kind):
        yield 0, source.size  # a compressed stream can only be read from its beginning
    else:
        for start in range(0, source.size, options.unit_size):
            yield start, min(start + options.unit_size, source.size)
