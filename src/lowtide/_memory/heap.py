"""The heap of this process, taken apart: what lives, what malloc keeps, pools, shared memory, stacks.

Most of it only the process itself can know: from outside, memory that malloc keeps looks like a leak.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowtide._memory import proc
from lowtide.errors import UnsupportedError

# The names of their libraries. pyarrow and others contain some of them, for their own pools.
_ALLOCATORS = ("jemalloc", "mimalloc", "tcmalloc")
_ARENA = 64 * 2**20  # glibc's arenas beside the first start at multiples of it (HEAP_MAX_SIZE, 64-bit)
_ENTRY = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *([^\n]*)\n((?:[A-Z][^\n]*\n)+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Heap:
    """What the memory of this process consists of, in bytes. What is not known is ``None``, not 0."""

    resident: int
    """Anonymous memory: all of the heap, stacks included."""
    live: int
    """The part that is in use: not kept by malloc, not lazily freed, and not a stack."""
    kept: int | None
    """Freed by the program and kept by malloc for the next allocation. Not a leak: ``trim`` gives it back."""
    lazily_freed: int | None
    """Given back with ``MADV_FREE`` (jemalloc, mimalloc, Go): resident until the kernel needs it."""
    stacks: int
    """Resident stacks of the threads that can be located: all that wait for something."""
    shared: int
    """Shared memory and mapped files of memory file systems: multiprocessing, DataLoader workers."""
    huge_pages: int
    """Pages of hugetlbfs, which count in no other figure."""
    transparent_huge_pages: int
    """Anonymous memory in huge pages, part of ``resident``."""
    arrow: int | None
    """In use of pyarrow's default pool, if pyarrow is imported."""
    pinned: int | None
    """Page-locked host memory of PyTorch's CUDA allocator, if CUDA is in use."""
    allocators: tuple[str, ...] = ()
    """The allocators that are loaded: the first one serves ``malloc``."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """For each figure where it comes from, and for each missing one why it is missing."""


def heap() -> Heap:
    """Take the memory of this process apart.

    Returns
    -------
    Heap
        The figures and their sources. It costs milliseconds per GiB resident.

    Raises
    ------
    UnsupportedError
        The system has no ``/proc``.

    Examples
    --------
    >>> now = heap()
    >>> now.live <= now.resident
    True
    >>> now.allocators[0]
    'glibc'
    """
    if not proc.available():
        raise UnsupportedError(f"heap() reads {proc.ROOT}, which this system does not have; use Linux")
    status = proc.read(f"{proc.ROOT}/self/status")
    segments = _segments()
    resident, sources = proc.parse_status(status).anon, {"resident": "/proc/self/status RssAnon"}
    allocators = _allocators()
    kept, sources["kept"] = _kept(allocators[0], segments)
    kept = None if kept is None else min(kept, resident)
    stacks, sources["stacks"] = _stacks(segments), "/proc/self/smaps at the stack pointers of threads"
    lazy, sources["lazily_freed"] = sum(row.lazy for row in segments), "/proc/self/smaps LazyFree"
    sources["live"] = "resident - kept - lazily_freed - stacks"
    sources["shared"], sources["huge_pages"] = "/proc/self/status RssShmem", "/proc/self/status HugetlbPages"
    sources["transparent_huge_pages"] = "/proc/self/smaps AnonHugePages"
    arrow, sources["arrow"] = _arrow()
    pinned, sources["pinned"] = _pinned()
    return Heap(
        resident=resident,
        live=max(0, resident - (kept or 0) - lazy - stacks),
        kept=kept,
        lazily_freed=lazy,
        stacks=stacks,
        shared=proc.parse_status(status).shared,
        huge_pages=proc.field(status, b"\nHugetlbPages:"),
        transparent_huge_pages=sum(row.huge for row in segments),
        arrow=arrow,
        pinned=pinned,
        allocators=tuple(allocators),
        sources=sources,
    )


def trim() -> int:
    """Give memory that was freed, and is kept by malloc or by Arrow's pool, back to the system.

    Returns
    -------
    int
        Bytes of resident memory that came back. What does not come back is in use, or shares its pages with
        something that is. The next allocations may take a little longer.

    Examples
    --------
    >>> blocks = [bytes(50_000) for _ in range(1000)]
    >>> del blocks[:-1]  # freed, and still resident: the last block is at the end
    >>> trim() >= 0
    True
    """
    from lowtide._memory.snapshot import resident

    before = resident()
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # another C library
        library.malloc_trim(0)
    with contextlib.suppress(AttributeError):
        library.mallctl(b"arena.4096.purge", None, None, None, 0)  # MALLCTL_ARENAS_ALL
    with contextlib.suppress(AttributeError):
        library.mi_collect(True)
    return max(0, before - resident())


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33, summed over all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@dataclass(frozen=True, slots=True)
class _Segment:
    start: int
    end: int
    name: str
    rss: int
    lazy: int
    huge: int

    @property
    def arena(self) -> bool:
        """Whether glibc's malloc serves small blocks from it."""
        return self.name == "[heap]" or (not self.name and self.start % _ARENA == 0)


def _segments() -> list[_Segment]:
    """The anonymous mappings of this process."""
    rows = []
    for start, end, _, path, figures in _ENTRY.findall(proc.read(f"{proc.ROOT}/self/smaps")):
        name = os.fsdecode(path)
        if not name or name.startswith("["):
            sizes = (proc.field(figures, word) for word in (b"\nRss:", b"\nLazyFree:", b"\nAnonHugePages:"))
            rows.append(_Segment(int(start, 16), int(end, 16), name, *sizes))
    return rows


def _allocators() -> list[str]:
    """The allocator behind ``malloc``, and others that are loaded."""
    lines = proc.read(f"{proc.ROOT}/self/maps").decode(errors="replace").splitlines()
    loaded = [name for name in _ALLOCATORS if any(f"/lib{name}" in line for line in lines)]
    address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    library = next((line for line in lines if _includes(line, address)), "")
    first = next((name for name in _ALLOCATORS if name in library), "musl" if "musl" in library else "glibc")
    return [first, *(name for name in loaded if name != first)]


def _includes(line: str, address: int) -> bool:
    start, end = (int(word, 16) for word in line.split(" ", 1)[0].split("-"))
    return start <= address < end


def _kept(allocator: str, segments: list[_Segment]) -> tuple[int | None, str]:
    if allocator == "glibc":
        try:
            ask = ctypes.CDLL(None).mallinfo2
        except AttributeError:
            return None, "glibc before 2.33 does not report it"
        ask.restype = _Mallinfo
        figures = ask()
        # What is free may have been given back already: only what is resident is kept.
        resident = sum(row.rss for row in segments if row.arena)
        kept = min(max(0, resident - figures.uordblks), figures.fordblks)
        return int(kept), "mallinfo2 fordblks, as far as resident in /proc/self/smaps"
    if allocator == "jemalloc":
        allocated, resident_now = _jemalloc("stats.allocated"), _jemalloc("stats.resident")
        if allocated is not None and resident_now is not None:
            return max(0, resident_now - allocated), "mallctl stats.resident - stats.allocated"
    return None, f"{allocator} does not report it"


def _jemalloc(name: str) -> int | None:
    try:
        ask = ctypes.CDLL(None).mallctl
    except AttributeError:
        return None
    epoch, size = ctypes.c_uint64(1), ctypes.c_size_t(8)
    ask(b"epoch", None, None, ctypes.byref(epoch), size)  # figures are those of the last epoch
    value, size = ctypes.c_size_t(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_size_t))
    failed = ask(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value


def _stacks(segments: list[_Segment]) -> int:
    """Resident bytes of the stacks: the main one, and those at the stack pointers of waiting threads."""
    pointers = []
    folder = f"{proc.ROOT}/self/task"
    for thread in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError, IndexError):  # ended, not permitted, or running
            pointers.append(int(proc.read(f"{folder}/{thread}/syscall").split()[-2], 16))
    return sum(
        row.rss
        for row in segments
        if row.name == "[stack]" or any(row.start <= pointer < row.end for pointer in pointers)
    )


def _arrow() -> tuple[int | None, str]:
    arrow: Any = sys.modules.get("pyarrow")
    if arrow is None or not hasattr(arrow, "default_memory_pool"):
        return None, "pyarrow is not imported"
    pool = arrow.default_memory_pool()
    return int(pool.bytes_allocated()), f"pyarrow.default_memory_pool() ({pool.backend_name})"


def _pinned() -> tuple[int | None, str]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return None, "PyTorch is not imported"
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None, "CUDA is not in use"
    if not hasattr(torch.cuda, "host_memory_stats"):
        return None, "PyTorch before 2.7 does not report it"
    return int(torch.cuda.host_memory_stats()["allocated_bytes.current"]), "torch.cuda.host_memory_stats()"
