"""The plan: sources cut into units of about the same size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from lowtide._prepare.executors import Processes
from lowtide._prepare.reading import ReadOptions
from lowtide._prepare.sources import Source
from lowtide._prepare.streams import compression_of
from lowtide._prepare.units import Unit
from lowtide.errors import FormatError

TABLES = ("parquet", "dataset")
"""Kinds of sources that are read by a library which damaged files may crash."""


def plan(sources: Sequence[Source], options: ReadOptions, *, isolated: bool = False) -> list[Unit]:
    """The units of the sources, in order. It depends on the sources and on the options alone.

    ``isolated`` looks into tables in another process.

    >>> from lowtide._prepare.sources import find
    >>> _ = (tmp / "x.txt").write_bytes(b"low tide")
    >>> [(unit.start, unit.stop) for unit in plan(find([str(tmp / "x.txt")]), ReadOptions(unit_size=5))]
    [(0, 5), (5, 8)]
    """
    units: list[Unit] = []
    with _Aside() as aside:
        for number, source in enumerate(sources):
            apart = isolated and source.kind in TABLES
            for start, stop in aside.ranges(source, options) if apart else _ranges(source, options):
                units.append(Unit(len(units), number, source.path, source.kind, start, stop))
    return units


class _Aside:
    """A process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: Processes | None = None

    def __enter__(self) -> _Aside:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.close()

    def ranges(self, source: Source, options: ReadOptions) -> list[tuple[int, int]]:
        if self._process is None:
            self._process = Processes(1)
        try:
            return self._process.submit(_listed, source, options).result()
        except BrokenProcessPool as error:
            raise FormatError(
                f"{source.path}: the process that looked into it was killed: the file is damaged, or memory "
                "is short; copy it again"
            ) from error


def _listed(source: Source, options: ReadOptions) -> list[tuple[int, int]]:
    return list(_ranges(source, options))


def _ranges(source: Source, options: ReadOptions) -> Iterator[tuple[int, int]]:
    if source.kind in TABLES:
        from lowtide._prepare import tables

        yield from tables.ranges(source.path, source.kind, options)
    elif compression_of(source.kind):
        yield 0, source.size  # a compressed stream can only be read from its beginning
    else:
        for start in range(0, source.size, options.unit_size):
            yield start, min(start + options.unit_size, source.size)
