"""Every way to read a file, and constants so small that small files take the paths of large ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import lowtide
from lowtide._arrays import indexing
from lowtide._io import aio, extents, mapped, pread, threads
from lowtide._io.reader import Cache, ReaderName


@dataclass(frozen=True)
class Variant:
    """A reader, a cache policy, and what the platform is to lack."""

    reader: ReaderName
    cache: Cache
    lacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.reader, self.cache, *(f"no_{lack}" for lack in self.lacks)])

    @contextmanager
    def platform(self) -> Iterator[None]:
        with ExitStack() as stack:
            if "aio" in self.lacks:
                stack.enter_context(mock.patch.object(aio, "_new", return_value=None))
                stack.enter_context(mock.patch.object(aio, "_IDLE", deque()))
            if "nowait" in self.lacks:
                stack.enter_context(mock.patch.object(pread, "_NOWAIT", 0))
            if "dontcache" in self.lacks:
                stack.enter_context(mock.patch.object(pread, "_DONTCACHE", 0))
            yield

    @contextmanager
    def open(self, path: str | Path, *args: Any, **options: Any) -> Iterator[lowtide.Array]:
        with (
            self.platform(),
            lowtide.open(path, *args, reader=self.reader, cache=self.cache, **options) as array,
        ):
            yield array


_CACHES: tuple[Cache, ...] = ("keep", "drop")
VARIANTS = [
    *(Variant("pread", cache, lacks) for cache in _CACHES for lacks in [(), ("aio",), ("nowait",)]),
    Variant("pread", "drop", ("dontcache",)),
    Variant("pread", "keep", ("aio", "nowait")),
    *(Variant(reader, cache) for reader in ("remap", "advise", "memmap") for cache in _CACHES),
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


_window = extents.Extents.window


def _few_at_once(
    self: extents.Extents, first: int, count: int, nbytes: int, overhead: int = 0
) -> extents.Extents:
    return _window(self, first, min(count, 9), nbytes, overhead)


@contextmanager
def tight(on: bool = True) -> Iterator[None]:
    """Windows, spans, shares and pieces of a few bytes each."""
    if not on:
        yield
        return
    with (
        mock.patch.multiple(indexing, _GAP=24, _SPAN=64, _RECORDS=7, _THROUGH=96),
        mock.patch.object(extents, "LONGEST", 16),
        mock.patch.object(extents.Extents, "window", _few_at_once),
        mock.patch.object(threads, "workers_for", lambda reads, nbytes: min(3, reads)),
        mock.patch.object(mapped, "_MAPPED_AT_ONCE", 200_000),
    ):
        yield
