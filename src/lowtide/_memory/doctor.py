"""What this machine and container support, each with advice in one line."""

from __future__ import annotations

import errno
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from lowtide._io import pagecache
from lowtide._memory import available, cgroup, proc
from lowtide._sizes import format_size
from lowtide.errors import reading

_RWF_DONTCACHE = 0x80  # Linux 6.14; Python has no name for it yet
_USUAL_READ_AHEAD = 128 * 1024
_SHARED = "/dev/shm"  # noqa: S108 - nothing is written there


@dataclass(frozen=True)
class Finding:
    """One property of the machine. ``fine`` is ``None`` if it is not known; what is fine has no advice."""

    name: str
    value: str
    fine: bool | None = True
    advice: str = ""

    def __post_init__(self) -> None:
        if self.fine:
            object.__setattr__(self, "advice", "")


def examine(path: str = ".") -> list[Finding]:
    """Examine the machine, the container, and the file system at ``path``."""
    try:
        os.stat(path)
    except OSError as error:
        raise reading(path, error) from error
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    there, fadvise = proc.available(), hasattr(os, "posix_fadvise")
    return [
        Finding("system", system),
        Finding(
            "/proc",
            "available" if there else "missing",
            there,
            "profile, watch and the pytest plugin need Linux's /proc; snapshot() falls back to psutil",
        ),
        *_reads(path),
        Finding(
            "posix_fadvise",
            "works" if fadvise else "missing",
            fadvise,
            "page cache cannot be hinted or dropped by lowtide on this system",
        ),
        _cachestat(),
        _true_peaks(),
        *_memory(),
        *_history(),
        *_shared_memory(),
        _read_ahead(path),
        _descriptors(),
    ]


def _reads(path: str) -> Iterator[Finding]:
    nowait, dontcache = getattr(os, "RWF_NOWAIT", None), _RWF_DONTCACHE
    for name, flag, otherwise in (
        ("RWF_NOWAIT", nowait, "cold random reads are hinted with posix_fadvise instead"),
        ("RWF_DONTCACHE", dontcache, 'cache="drop" releases pages with posix_fadvise after the read instead'),
    ):
        works, why = _try_flag(path, flag)
        value = "works" if works else "unknown" if works is None else "not supported"
        yield Finding(name, f"{value} {why}".strip(), works, otherwise)


def _try_flag(path: str, flag: int | None) -> tuple[bool | None, str]:
    """Read a byte with ``flag`` from the file, or from a temporary one in the folder."""
    if flag is None or not hasattr(os, "preadv"):
        return False, "by this Python or system"
    try:
        with _file_with_a_byte(path) if os.path.isdir(path) else open(path, "rb") as file:
            os.preadv(file.fileno(), [bytearray(1)], 0, flag)
    except OSError as error:
        if error.errno == errno.EAGAIN:  # the flag works, and the byte was not cached
            return True, ""
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False, "by this kernel or file system"
        return None, f"({(error.strerror or str(error)).lower()})"
    return True, ""


def _file_with_a_byte(folder: str | None = None) -> IO[bytes]:
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by the caller
    file.write(b"x")
    return file


def _cachestat() -> Finding:
    with _file_with_a_byte() as file:
        resident = pagecache.resident_fd(file.fileno())
    if resident is None:
        advice = "the page-cache curve of reports will be missing"
        return Finding("page cache", "cannot be measured", False, advice)
    how = resident[1].partition("(")[0]
    advice = "Linux 6.5 has cachestat, which is a thousand times faster"
    return Finding("page cache", f"by {how}", how == "cachestat", advice)


def _true_peaks() -> Finding:
    try:
        fd = os.open(f"{proc.ROOT}/self/clear_refs", os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        advice = "watch sees peaks only above the highest so far"
        return Finding("true peaks", "cannot be reset", False, advice)
    os.close(fd)
    return Finding("true peaks", "by the kernel")


def _memory() -> Iterator[Finding]:
    import psutil

    total = psutil.virtual_memory().total
    group = cgroup.find()
    limit = group.limit() if group else None
    if group is None:
        yield Finding("memory", f"{format_size(total)}, no memory cgroup")
        return
    if limit is None or limit >= total:
        yield Finding("memory", f"{format_size(total)}, no limit (cgroup v{group.version})")
    else:
        advice = f"plan for {format_size(limit)}: programs that use the machine's memory size will be killed"
        value = f"limit {format_size(limit)} of the machine's {format_size(total)} (cgroup v{group.version})"
        yield Finding("memory", value, False, advice)
    working_set = group.working_set()
    if working_set is not None:
        share = f", {100 * working_set / limit:.0f} % of the limit" if limit else ""
        tight = limit is not None and working_set > 0.8 * limit
        advice = "more than 80 % are in use: the next large allocation may exceed the limit"
        yield Finding("working set", f"{format_size(working_set)}{share}", not tight, advice)


def _history() -> Iterator[Finding]:
    """What has happened to this container, and its parents, since it was started."""
    least, where = min(available.bounds())
    yield Finding("available", f"{format_size(least)}, by {where}")
    group = cgroup.find()
    if group is None:
        return
    levels = list(group.upwards())
    counters = [level.events() for level in levels]
    kills = group.killed()
    value = f"{kills} since this container was started" if kills else "none"
    elsewhere = max(level.killed() for level in levels) - kills  # a parent's count has those of its groups
    if elsewhere:
        value += f", {elsewhere} in groups beside it"
    advice = "it was memory: `lowtide profile` shows which process is killed, when and at which limit"
    yield Finding("OOM kills", value, not kills, advice)
    highest, limit = group.peak(), group.limit()
    if highest is not None and limit is not None:
        full = highest >= 0.98 * limit
        advice = "the limit was reached: page cache was reclaimed or a process was killed"
        share = f"{format_size(highest)}, {100 * highest / limit:.0f} % of the limit"
        yield Finding("highest usage", share, not full, advice)
    for level, count in zip(levels, counters, strict=True):
        bound = level.high()
        if bound is not None:
            times = count.get("high", 0)
            advice = "the container is slowed down while it is over this: stay below, or raise memory.high"
            value = f"{times:,} times over memory.high of {format_size(bound)} ({level.path})"
            yield Finding("throttled", value, not times, advice)
    if group.killed_together():
        advice = "a profiler in the container is killed too: use --save, and `lowtide report` on what it left"
        yield Finding("OOM group", "all processes of the container are killed at once", False, advice)
    waited = group.pressure()
    where = "this container" if waited is not None else "the machine"
    waited = cgroup.stalled(f"{proc.ROOT}/pressure/memory") if waited is None else waited
    if waited is not None:
        yield Finding("pressure", f"{waited / 1e6:.1f} s of waiting for memory, of {where}")


def _shared_memory() -> Iterator[Finding]:
    try:
        about = os.statvfs(_SHARED)
    except (OSError, AttributeError):
        return
    total, free = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
    advice = (
        "DataLoader workers return batches in it, and end with SIGBUS (exit status 135) if it is full: "
        "mount a larger one (docker --shm-size, an emptyDir with medium: Memory)"
    )
    value = f"{format_size(free)} free of {format_size(total)}"
    yield Finding(_SHARED, value, free > 64 * 2**20, advice)


def _read_ahead(path: str) -> Finding:
    device = os.stat(path).st_dev
    for folder in ("queue", "../queue") if hasattr(os, "major") else ():  # a partition has its disk's queue
        name = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/{folder}/read_ahead_kb"
        try:
            size = int(proc.read(name)) * 1024
        except (OSError, ValueError):
            continue
        large = size > 8 * _USUAL_READ_AHEAD
        advice = "each random page fault of a mapping reads that much: use preadv instead of a mapping"
        return Finding("read-ahead", f"{format_size(size)} behind {path}", not large, advice)
    advice = "no block device: a network, memory or overlay file system"
    return Finding("read-ahead", f"unknown behind {path}", None, advice)


def _descriptors() -> Finding:
    try:
        import resource
    except ImportError:  # Windows
        return Finding("descriptors", "unknown", None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < 1024
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    advice = f"corpora of many shards need more: `ulimit -n {most}`"
    return Finding("descriptors", f"{soft} (at most {most})", not few, advice)
