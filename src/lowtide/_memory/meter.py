"""One look at the memory of a process: a snapshot, each figure with its source.

>>> from lowtide.memory import snapshot
>>> now = snapshot()
>>> now.rss > 0, now.sources["rss"]
(True, '/proc/PID/status VmRSS')
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from lowtide._io import pagecache
from lowtide._memory import cgroups, proc
from lowtide.errors import AccessError, ProcessError


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of one process at one moment, in bytes. What the platform cannot tell is ``None``, never 0.

    ``sources`` says for each figure where it came from, and for each missing one why it is missing.
    """

    time: float
    """Seconds since the epoch."""
    pid: int
    rss: int | None
    """Resident memory: anonymous, file-mapped and shared together."""
    anon: int | None
    """Anonymous memory: heap, stacks, buffers."""
    file: int | None
    """Resident pages of mapped files: data, programs and libraries."""
    shared: int | None
    """Shared memory and mapped files of memory file systems."""
    pss: int | None
    """Resident memory with each shared page divided among those who share it. Only when asked for."""
    peak: int | None
    """The highest resident memory since the process began or since ``reset_peak``."""
    page_cache: Mapping[str, int | None] = field(default_factory=dict)
    """For each named file, the bytes of it in the page cache, whoever put them there."""
    cgroup_usage: int | None = None
    cgroup_limit: int | None = None
    """The smallest limit of the cgroup and all its parents; ``None`` where there is none."""
    cgroup_working_set: int | None = None
    """Usage without inactive page cache."""
    major_faults: int | None = None
    """Page faults that had to wait for a device, of the process and its reaped children."""
    bytes_read: int | None = None
    """Bytes asked of read calls, cached or not. Reads through a mapping are not among them."""
    bytes_from_device: int | None = None
    """Bytes that a device had to give, through read calls and mappings."""
    sources: Mapping[str, str] = field(default_factory=dict)


def snapshot(
    pid: int | None = None, *, pss: bool = False, files: Iterable[str | os.PathLike[str]] = ()
) -> Snapshot:
    """Look at process ``pid`` (this one unless told otherwise).

    Parameters
    ----------
    pss
        Also the proportional share. It costs milliseconds per GiB resident.
    files
        Files whose share of the page cache is wanted.

    Raises
    ------
    ProcessError
        There is no such process.
    """
    number = os.getpid() if pid is None else pid
    try:
        process = psutil.Process(number)
        figures, sources = _resident(process)
    except (psutil.NoSuchProcess, *proc.GONE) as error:
        raise no_such_process(number) from error
    except ValueError as error:  # a negative number
        raise no_such_process(number) from error

    figures["pss"], sources["pss"] = _pss(process) if pss else (None, "not asked for: snapshot(pss=True)")
    figures.update(_activity(process, sources))

    page_cache: dict[str, int | None] = {}
    for path in [os.fspath(file) for file in files]:
        told = pagecache.resident(path)
        page_cache[path] = told[0] if told else None
        sources[f"page_cache {path}"] = told[1] if told else "the system does not tell for this file"

    group = cgroups.find(number)
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
    """Resident memory of this process, and nothing else: what a look at every step can afford."""
    if proc.available():
        return proc.status().rss
    told: int = psutil.Process().memory_info().rss
    return told


def reset_peak(pid: int | None = None) -> bool:
    """Make the peak start again from the memory of now; ``False`` where the system does not allow it.

    Other users of the peak in this process lose theirs: ``lowtide._memory.peaks`` keeps them apart.
    """
    return proc.reset_peak("self" if pid is None else pid)


def peak(pid: int | None = None) -> int | None:
    """The highest resident memory since the process began or since ``reset_peak``.

    ``getrusage`` is not asked: its maximum is never reset.
    """
    try:
        return proc.status("self" if pid is None else pid).peak
    except OSError:
        return None


def drop_page_cache(path: str | os.PathLike[str]) -> None:
    """Put a file out of the page cache, for cold measurements."""
    pagecache.drop(path)


def no_such_process(pid: int) -> ProcessError:
    """The error for a process that is not there."""
    problem = f"there is no process {pid}; it may have ended, `ps` lists those that run"
    return ProcessError(errno.ESRCH, problem, f"{proc.ROOT}/{pid}")


def not_ours(pid: int) -> AccessError:
    """The error for a process of somebody else."""
    try:
        owner = psutil.Process(pid).username()
    except psutil.Error:
        owner = "another user"
    return AccessError(
        errno.EACCES,
        f"process {pid} belongs to {owner}; run as that user or root to see its mappings and reads",
        f"{proc.ROOT}/{pid}",
    )


def _resident(process: psutil.Process) -> tuple[dict[str, int | None], dict[str, str]]:
    if proc.available():
        # One read of one file, so that the parts add up to the whole; psutil has no parts.
        status = proc.status(process.pid)
        names = {"rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "shared": "RssShmem", "peak": "VmHWM"}
        return dict(status._asdict()), {name: f"/proc/PID/status {line}" for name, line in names.items()}
    told = process.memory_info()
    figures: dict[str, int | None] = {
        "rss": told.rss,
        "anon": None,
        "file": None,
        "shared": None,
        "peak": None,
    }
    sources = {"rss": "psutil memory_info().rss"}
    if hasattr(told, "peak_wset"):
        figures["peak"], sources["peak"] = told.peak_wset, "psutil memory_info().peak_wset"
    for name in figures:
        sources.setdefault(name, "only Linux tells")
    return figures, sources


def _pss(process: psutil.Process) -> tuple[int | None, str]:
    try:
        told = process.memory_full_info()
    except (psutil.AccessDenied, psutil.NoSuchProcess) as error:
        return None, f"not told: {type(error).__name__}"
    if not hasattr(told, "pss"):
        return None, "only Linux tells"
    return told.pss, "psutil memory_full_info().pss"


def _activity(process: psutil.Process, sources: dict[str, str]) -> dict[str, int | None]:
    figures: dict[str, int | None] = {"major_faults": None, "bytes_read": None, "bytes_from_device": None}
    try:
        figures["major_faults"] = proc.faults(process.pid).major
        sources["major_faults"] = "/proc/PID/stat majflt + cmajflt"
    except OSError:
        sources["major_faults"] = "only Linux tells"
    try:
        told = process.io_counters()
    except (psutil.Error, AttributeError, OSError) as error:
        sources["bytes_read"] = sources["bytes_from_device"] = f"not told: {type(error).__name__}"
        return figures
    # Windows counts every read in read_bytes and has no read_chars.
    figures["bytes_read"] = getattr(told, "read_chars", told.read_bytes)
    sources["bytes_read"] = "psutil io_counters().read_chars"
    figures["bytes_from_device"] = told.read_bytes if hasattr(told, "read_chars") else None
    sources["bytes_from_device"] = "psutil io_counters().read_bytes"
    return figures
