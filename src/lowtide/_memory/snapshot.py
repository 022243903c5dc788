"""A snapshot of the memory of a process, each figure with its source.

>>> from lowtide.memory import snapshot
>>> now = snapshot()
>>> now.rss > 0, now.sources["rss"]
(True, '/proc/PID/status VmRSS')
"""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from lowtide._io import pagecache
from lowtide._memory import cgroup, proc
from lowtide.errors import AccessError, ProcessError

_LINUX = "only Linux reports it"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of a process at one moment, in bytes. What the platform does not report is ``None``, not 0."""

    time: float
    """Seconds since the epoch."""
    pid: int
    """The process."""
    rss: int | None
    """Resident memory: heap, mapped files and shared memory together."""
    heap: int | None
    """Anonymous memory: heap, stacks, buffers."""
    mapped: int | None
    """Resident pages of mapped files: data, programs and libraries."""
    shared: int | None
    """Shared memory and mapped files of memory file systems."""
    pss: int | None
    """Resident memory with each shared page divided among the processes that share it; with ``pss=True``."""
    peak: int | None
    """The highest resident memory since the process started or since ``reset_peak``."""
    page_cache: Mapping[str, int | None] = field(default_factory=dict)
    """For each of ``files``, the bytes of it in the page cache, whichever process put them there."""
    cgroup_usage: int | None = None
    """Everything that the container is charged for."""
    cgroup_limit: int | None = None
    """The smallest limit of the cgroup and all its parents; ``None`` where there is none."""
    cgroup_working_set: int | None = None
    """Usage without inactive page cache."""
    major_faults: int | None = None
    """Page faults that had to wait for a device, of the process and its reaped children."""
    bytes_read: int | None = None
    """Bytes requested by read calls, cached or not. Reads through a mapping are not among them."""
    bytes_from_device: int | None = None
    """Bytes that a device delivered, through read calls and mappings."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """For each figure where it comes from, and for each missing one why it is missing."""

    @property
    def anon(self) -> int | None:
        """Deprecated: use ``heap``."""
        warnings.warn("Snapshot.anon is deprecated; use Snapshot.heap", DeprecationWarning, stacklevel=2)
        return self.heap

    @property
    def file(self) -> int | None:
        """Deprecated: use ``mapped``."""
        warnings.warn("Snapshot.file is deprecated; use Snapshot.mapped", DeprecationWarning, stacklevel=2)
        return self.mapped


def snapshot(
    pid: int | None = None, *, pss: bool = False, files: Iterable[str | os.PathLike[str]] = ()
) -> Snapshot:
    """Measure the memory of a process.

    Parameters
    ----------
    pid : int, optional
        The process. [default: this one]
    pss : bool
        Also the proportional share. It costs milliseconds per GiB resident.
    files : iterable of str or os.PathLike
        Files whose share of the page cache to measure.

    Returns
    -------
    Snapshot
        The figures and their sources.

    Raises
    ------
    ProcessError
        There is no such process.

    Examples
    --------
    >>> now = snapshot()
    >>> now.rss == now.heap + now.mapped + now.shared
    True
    """
    number = os.getpid() if pid is None else pid
    try:
        process = psutil.Process(number)
        figures, sources = _resident(process)
    except (psutil.NoSuchProcess, *proc.GONE, ValueError) as error:  # ValueError: a negative number
        raise no_such_process(number) from error

    figures["pss"], sources["pss"] = _pss(process) if pss else (None, "not measured; pass pss=True")
    figures.update(_activity(process, sources))

    page_cache: dict[str, int | None] = {}
    for path in [os.fspath(file) for file in files]:
        size, source = pagecache.resident(path) or (None, "the system does not report it for this file")
        page_cache[path], sources[f"page_cache {path}"] = size, source

    group = cgroup.find(number)
    if group is None:
        for name in ("usage", "limit", "working_set"):
            sources[f"cgroup_{name}"] = "no memory cgroup is visible"
    else:
        figures["cgroup_usage"], figures["cgroup_limit"] = group.usage(), group.limit()
        figures["cgroup_working_set"] = group.working_set()
        where = f"cgroup v{group.version} at {group.path}"
        sources["cgroup_usage"] = where
        sources["cgroup_limit"] = f"{where} and its parents"
        sources["cgroup_working_set"] = f"{where}: usage - inactive_file"
    return Snapshot(time=time.time(), pid=number, page_cache=page_cache, sources=sources, **figures)


def resident() -> int:
    """Resident memory of this process, and nothing else: cheap enough for every step of a loop."""
    if proc.available():
        return proc.status().rss
    rss: int = psutil.Process().memory_info().rss
    return rss


def reset_peak(pid: int | None = None) -> bool:
    """Restart the peak from the memory of now.

    Parameters
    ----------
    pid : int, optional
        The process. [default: this one]

    Returns
    -------
    bool
        ``False`` where the system does not allow it. Other users of the peak of this process lose theirs;
        ``lowtide.watch`` keeps several separate.

    Examples
    --------
    >>> reset_peak()
    True
    """
    return proc.reset_peak("self" if pid is None else pid)


def peak(pid: int | None = None) -> int | None:
    """The highest resident memory since the process started or since ``reset_peak``.

    Parameters
    ----------
    pid : int, optional
        The process. [default: this one]

    Returns
    -------
    int or None
        Bytes; ``None`` where the system does not report it. Not from ``getrusage``, which is never reset.

    Examples
    --------
    >>> peak() >= snapshot().rss
    True
    """
    try:
        return proc.status("self" if pid is None else pid).peak
    except OSError:
        return None


def drop_page_cache(path: str | os.PathLike[str]) -> None:
    """Remove a file from the page cache, for cold measurements.

    Parameters
    ----------
    path : str or os.PathLike
        The file. Its dirty pages are written to disk first.

    Examples
    --------
    >>> _ = (tmp / "a.bin").write_bytes(b"x" * 4096)
    >>> drop_page_cache(tmp / "a.bin")
    """
    pagecache.drop(path)


def no_such_process(pid: int) -> ProcessError:
    """The error for a process that does not exist."""
    return ProcessError(
        errno.ESRCH, f"there is no process {pid}; list running processes with `ps`", f"{proc.ROOT}/{pid}"
    )


def not_permitted(pid: int) -> AccessError:
    """The error for a process of another user."""
    try:
        owner = psutil.Process(pid).username()
    except psutil.Error:
        owner = "another user"
    problem = f"process {pid} belongs to {owner}; run as that user or root to see its mappings and reads"
    return AccessError(errno.EACCES, problem, f"{proc.ROOT}/{pid}")


def _resident(process: psutil.Process) -> tuple[dict[str, int | None], dict[str, str]]:
    lines = {"rss": "VmRSS", "heap": "RssAnon", "mapped": "RssFile", "shared": "RssShmem", "peak": "VmHWM"}
    if proc.available():
        # One read of one file, so that the parts add up to the whole; psutil has no parts.
        now = proc.status(process.pid)
        values = (now.rss, *now.parts, now.peak)
        figures: dict[str, int | None] = dict(zip(lines, values, strict=True))
        return figures, {name: f"/proc/PID/status {line}" for name, line in lines.items()}
    memory = process.memory_info()
    figures, sources = dict.fromkeys(lines), dict.fromkeys(lines, _LINUX)
    figures["rss"], sources["rss"] = memory.rss, "psutil memory_info().rss"
    if hasattr(memory, "peak_wset"):
        figures["peak"], sources["peak"] = memory.peak_wset, "psutil memory_info().peak_wset"
    return figures, sources


def _pss(process: psutil.Process) -> tuple[int | None, str]:
    try:
        memory = process.memory_full_info()
    except (psutil.AccessDenied, psutil.NoSuchProcess) as error:
        return None, f"not readable: {type(error).__name__}"
    return (memory.pss, "psutil memory_full_info().pss") if hasattr(memory, "pss") else (None, _LINUX)


def _activity(process: psutil.Process, sources: dict[str, str]) -> dict[str, int | None]:
    figures: dict[str, int | None] = {"major_faults": None, "bytes_read": None, "bytes_from_device": None}
    try:
        figures["major_faults"] = proc.faults(process.pid).major
        sources["major_faults"] = "/proc/PID/stat majflt + cmajflt"
    except OSError:
        sources["major_faults"] = _LINUX
    try:
        counters = process.io_counters()
    except (psutil.Error, AttributeError, OSError) as error:
        sources["bytes_read"] = sources["bytes_from_device"] = f"not readable: {type(error).__name__}"
        return figures
    # Windows counts every read in read_bytes and has no read_chars.
    figures["bytes_read"] = getattr(counters, "read_chars", counters.read_bytes)
    sources["bytes_read"] = "psutil io_counters().read_chars"
    figures["bytes_from_device"] = counters.read_bytes if hasattr(counters, "read_chars") else None
    sources["bytes_from_device"] = "psutil io_counters().read_bytes"
    return figures
