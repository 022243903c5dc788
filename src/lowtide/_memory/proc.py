"""What ``/proc`` says of a process, as plain numbers of bytes.

These functions raise what ``open`` raises (``FileNotFoundError`` or
``ProcessLookupError`` for a process that is gone, ``PermissionError`` for somebody else's); who calls them
decides what that means.
"""

from __future__ import annotations

import os
from typing import NamedTuple

ROOT = "/proc"
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

# What a vanished process raises, depending on when it vanished.
GONE = (FileNotFoundError, ProcessLookupError)


class Status(NamedTuple):
    """Resident memory by kind, from ``/proc/PID/status``. A kernel thread has none."""

    rss: int
    anon: int
    file: int
    shared: int
    peak: int


class Io(NamedTuple):
    """Bytes asked of read calls, and bytes that a device gave; of all threads and reaped children."""

    asked: int
    device: int


class Faults(NamedTuple):
    """Page faults of a process and of the children that it has waited for."""

    minor: int
    major: int
    exiting: bool  # the kernel is taking its memory apart: what is left of it says nothing
    kernel: bool  # a thread of the kernel, without memory of its own


class Rollup(NamedTuple):
    """Proportional shares, from ``/proc/PID/smaps_rollup``: they add up across processes."""

    pss: int
    anon: int
    file: int
    shared: int


class Mapping(NamedTuple):
    """All mappings of one path in a process, added up. Anonymous memory has the path ``""``."""

    path: str
    rss: int
    pss: int
    code: bool  # one of the mappings is executable: a program or library, not data


def available() -> bool:
    """Whether this system has a ``/proc`` that tells about memory."""
    return os.path.exists(f"{ROOT}/self/status")


def read(path: str) -> bytes:
    """The whole of a small ``/proc`` file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def field(text: bytes, name: bytes) -> int:
    """The number of kB after ``name`` in a status-like text, in bytes; 0 where the name is missing.

    >>> field(b"VmPeak: 9 kB\\nVmHWM:\\t  12 kB\\n", b"\\nVmHWM:")
    12288
    """
    start = text.find(name)
    if start < 0:
        return 0
    start += len(name)
    return int(text[start : text.index(b"k", start)]) * 1024


def parse_status(text: bytes) -> Status:
    """The memory lines of a ``status`` file."""
    return Status(
        rss=field(text, b"\nVmRSS:"),
        anon=field(text, b"\nRssAnon:"),
        file=field(text, b"\nRssFile:"),
        shared=field(text, b"\nRssShmem:"),
        peak=field(text, b"\nVmHWM:"),
    )


def status(pid: int | str = "self") -> Status:
    """Resident memory of a process by kind."""
    return parse_status(read(f"{ROOT}/{pid}/status"))


def reset_peak(pid: int | str = "self") -> bool:
    """Set the mark of the highest resident memory back to that of now; whether the system allowed it."""
    try:
        fd = os.open(f"{ROOT}/{pid}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"5")  # proc(5): reset the peak resident set size to the current one
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def state(pid: int | str) -> str:
    """The state letter of a process: ``R``, ``S``, ``D``, ``Z`` for a zombie and so on."""
    text = read(f"{ROOT}/{pid}/stat")
    return chr(text[text.rindex(b")") + 2])


def io(pid: int | str = "self") -> Io:
    """Bytes read by a process, its threads and its reaped children."""
    lines = read(f"{ROOT}/{pid}/io").split(b"\n")
    values = {name: int(value) for name, _, value in (line.partition(b": ") for line in lines if line)}
    return Io(asked=values[b"rchar"], device=values[b"read_bytes"])


def faults(pid: int | str = "self") -> Faults:
    """Page faults of a process and its reaped children."""
    text = read(f"{ROOT}/{pid}/stat")
    fields = text[text.rindex(b")") + 2 :].split()
    # Counted from the state letter: 7 minflt, 8 cminflt, 9 majflt, 10 cmajflt (proc(5)).
    return Faults(
        minor=int(fields[7]) + int(fields[8]),
        major=int(fields[9]) + int(fields[10]),
        exiting=bool(int(fields[6]) & 0x4),  # PF_EXITING
        kernel=bool(int(fields[6]) & 0x200000),  # PF_KTHREAD
    )


def parent(pid: int) -> int:
    """The parent of a process."""
    text = read(f"{ROOT}/{pid}/stat")
    return int(text[text.rindex(b")") + 2 :].split()[1])


def children(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    found: list[int] = []
    try:
        threads = os.listdir(f"{ROOT}/{pid}/task")
    except GONE:
        return found
    for thread in threads:
        try:
            found += map(int, read(f"{ROOT}/{pid}/task/{thread}/children").split())
        except GONE:
            continue  # a thread that has just ended; or a kernel without CONFIG_PROC_CHILDREN
    return found


def rollup(pid: int | str = "self") -> Rollup:
    """Proportional shares of a process. Dear: milliseconds per GiB resident."""
    text = read(f"{ROOT}/{pid}/smaps_rollup")
    return Rollup(
        pss=field(text, b"\nPss:"),
        anon=field(text, b"\nPss_Anon:"),
        file=field(text, b"\nPss_File:"),
        shared=field(text, b"\nPss_Shmem:"),
    )


def mappings(pid: int | str = "self") -> list[Mapping]:
    """What a process has mapped, by path, the largest first. As dear as ``rollup``."""
    import re  # not at the top: the sampler starts without it

    # 7f2c-7f2d r-xp 00000000 08:01 1234   /path with spaces
    entry = re.compile(
        rb"^[0-9a-f]+-[0-9a-f]+ ..(.). \S+ \S+ \S+ *([^\n]*)\n(?:[^R][^\n]*\n)*"
        rb"Rss: +(\d+) kB\nPss: +(\d+) kB\n(?:[^A][^\n]*\n)*Anonymous: +(\d+) kB\n",
        re.MULTILINE,
    )
    own = [0, 0, 0]
    found: dict[bytes, list[int]] = {b"": own}
    for execute, path, rss, pss, copied in entry.findall(read(f"{ROOT}/{pid}/smaps")):
        # [heap], [stack], [anon:…]: memory of the process itself
        sums = own if path.startswith(b"[") else found.setdefault(path, [0, 0, 0])
        # Pages of a private mapping that were written to are the process's own, no longer the file's.
        own[0] += int(copied) * 1024
        sums[0] += int(rss) * 1024
        sums[0] -= int(copied) * 1024
        sums[1] += int(pss) * 1024
        sums[2] |= execute == b"x"
    rows = [Mapping(os.fsdecode(path), rss, pss, bool(code)) for path, (rss, pss, code) in found.items()]
    return sorted(rows, key=lambda row: -row.rss)
