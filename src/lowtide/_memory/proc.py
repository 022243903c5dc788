"""``/proc`` files of a process as numbers of bytes.

These functions raise what ``open`` raises (``FileNotFoundError`` or ``ProcessLookupError`` for a process that
has ended, ``PermissionError`` for another user's); the caller decides what that means. The sampler process
imports this module, so it imports next to nothing: ``typing`` alone would double the sampler's start.
"""

from __future__ import annotations

import os

ROOT = "/proc"

# What a vanished process raises, depending on when it vanished.
GONE = (FileNotFoundError, ProcessLookupError)


class Status:
    """Resident memory by kind. A kernel thread or a zombie has none."""

    __slots__ = ("anon", "file", "peak", "rss", "shared")

    def __init__(self, rss: int, anon: int, file: int, shared: int, peak: int = 0) -> None:
        self.rss, self.anon, self.file, self.shared, self.peak = rss, anon, file, shared, peak

    @property
    def parts(self) -> tuple[int, int, int]:
        """Anonymous, mapped and shared memory."""
        return self.anon, self.file, self.shared


class Faults:
    """Page faults of a process and of the children that it has waited for, and what kind of process it is."""

    __slots__ = ("exiting", "kernel", "major", "minor")

    def __init__(self, minor: int, major: int, flags: int) -> None:
        self.minor, self.major = minor, major
        self.exiting = bool(flags & 0x4)  # PF_EXITING: its memory is being taken apart and means nothing
        self.kernel = bool(flags & 0x200000)  # PF_KTHREAD: a kernel thread, without memory


class Mapping:
    """All mappings of one path in a process, added up. Anonymous memory has the path ``""``."""

    __slots__ = ("code", "device", "dirty", "path", "rss", "share", "sizes")

    def __init__(self, path: str, rss: int, code: bool) -> None:
        self.path, self.rss = path, rss
        self.code = code  # one of the mappings is executable: a program or library, not data
        self.share = 0  # proportional: pages that other processes map too count in part
        self.dirty = 0  # bytes of the file that were written through it and are not on disk
        self.device = ""  # of the file, as in 08:01
        # Of each file behind the path the end of what is mapped. A path may be that of several, one after
        # the other, that were deleted, and none may be visible from here, so it is not asked for.
        self.sizes: dict[str, int] = {}


def available() -> bool:
    """Whether this system has a ``/proc`` with memory figures."""
    return os.path.exists(f"{ROOT}/self/status")


def read(path: str) -> bytes:
    """The contents of a small ``/proc`` file."""
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


def status(pid: int | str = "self") -> Status:
    """Resident memory of a process by kind, from ``/proc/PID/status``."""
    return parse_status(read(f"{ROOT}/{pid}/status"))


def parse_status(text: bytes) -> Status:
    """The memory lines of a ``status`` file."""
    text = text[text.find(b"\nVmHWM:") :]  # they follow each other, far from the start
    return Status(
        rss=field(text, b"\nVmRSS:"),
        anon=field(text, b"\nRssAnon:"),
        file=field(text, b"\nRssFile:"),
        shared=field(text, b"\nRssShmem:"),
        peak=field(text, b"\nVmHWM:"),
    )


def rollup(pid: int | str = "self") -> Status:
    """Proportional shares of a process, which add up across processes. Expensive: milliseconds per GiB."""
    text = read(f"{ROOT}/{pid}/smaps_rollup")
    return Status(
        rss=field(text, b"\nPss:"),
        anon=field(text, b"\nPss_Anon:"),
        file=field(text, b"\nPss_File:"),
        shared=field(text, b"\nPss_Shmem:"),
    )


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


def _stat(pid: int | str) -> list[bytes]:
    """The fields of ``/proc/PID/stat``, counted from the state letter."""
    text = read(f"{ROOT}/{pid}/stat")
    return text[text.rindex(b")") + 2 :].split()


def state(pid: int | str) -> str:
    """The state letter of a process: ``R``, ``S``, ``D``, ``Z`` for a zombie and so on."""
    return _stat(pid)[0].decode()


def faults(pid: int | str = "self") -> Faults:
    """Page faults of a process and its reaped children."""
    # 6 flags, 7 minflt, 8 cminflt, 9 majflt, 10 cmajflt (proc(5)).
    flags, minor, minor_children, major, major_children = map(int, _stat(pid)[6:11])
    return Faults(minor + minor_children, major + major_children, flags)


def exit_signal(pid: int | str) -> int | None:
    """The signal that ended a process which was not waited for yet; ``None`` if it lives, or is gone."""
    try:
        fields = _stat(pid)
    except GONE:
        return None
    return int(fields[49]) & 0x7F if fields[0] in b"ZX" else None  # 52 exit_code


def command(pid: int | str) -> list[str]:
    """The words of a process's command line; empty for a zombie or a kernel thread."""
    return [os.fsdecode(part) for part in read(f"{ROOT}/{pid}/cmdline").split(b"\0")[:-1]]


def name(pid: int | str) -> str:
    """What a process calls itself, in at most 15 characters."""
    return os.fsdecode(read(f"{ROOT}/{pid}/comm").rstrip(b"\n"))


def parent(pid: int | str) -> int:
    """The number of the parent; 0 if it is outside the namespace."""
    return int(_stat(pid)[1])


def io(pid: int | str = "self") -> tuple[int, int, int, int]:
    """Bytes of read calls, from devices, of write calls and to devices, of threads and reaped children."""
    lines = read(f"{ROOT}/{pid}/io").split(b"\n")
    values = {name: int(value) for name, _, value in (line.partition(b": ") for line in lines if line)}
    return values[b"rchar"], values[b"read_bytes"], values[b"wchar"], values[b"write_bytes"]


def children(pid: int | str) -> list[int]:
    """The direct children of a process, of all its threads."""
    pids: list[int] = []
    try:
        threads = os.listdir(f"{ROOT}/{pid}/task")
    except GONE:
        return pids
    for thread in threads:
        try:
            pids += map(int, read(f"{ROOT}/{pid}/task/{thread}/children").split())
        except GONE:
            continue  # a thread that has just ended; or a kernel without CONFIG_PROC_CHILDREN
    return pids


def open_files(pid: int | str = "self") -> list[str]:
    """Paths of the files that a process has open, except devices and kernel files."""
    folder = f"{ROOT}/{pid}/fd"
    paths = set()
    for name in os.listdir(folder):
        try:
            path = os.readlink(f"{folder}/{name}")
        except OSError:  # closed in the meantime
            continue
        if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/")):
            paths.add(path)
    return sorted(paths)


def mappings(pid: int | str = "self") -> list[Mapping]:
    """The mappings of a process, by path, the largest first. As expensive as ``rollup``."""
    import re  # not at the top: the sampler starts without it

    # 7f2c-7f2d r-xp 00000000 08:01 1234   /path with spaces
    entry = re.compile(
        rb"^([0-9a-f]+)-([0-9a-f]+) .(.)(.)(.) (\S+) (\S+) (\S+) *([^\n]*)\n(?:[^R][^\n]*\n)*"
        rb"Rss: +(\d+) kB\nPss: +(\d+) kB\n(?:[^S][^\n]*\n)*Shared_Clean: [^\n]*\nShared_Dirty: +(\d+) kB\n"
        rb"[^\n]*\nPrivate_Dirty: +(\d+) kB\n(?:[^A][^\n]*\n)*Anonymous: +(\d+) kB\n",
        re.MULTILINE,
    )
    own = Mapping("", 0, False)
    rows: dict[bytes, Mapping] = {b"": own}
    for start, end, write, execute, kind, offset, device, inode, path, *sizes in entry.findall(
        read(f"{ROOT}/{pid}/smaps")
    ):
        rss, pss, shared, private, copied = (int(size) * 1024 for size in sizes)
        row = rows.get(path)
        if row is None:
            # [heap], [stack], [anon:…]: memory of the process itself
            row = own if path.startswith(b"[") else Mapping(os.fsdecode(path), 0, False)
            rows[path] = row
        # Pages of a private mapping that were written to are the process's own, no longer the file's.
        own.rss += copied
        row.rss += rss - copied
        row.share += max(0, pss - copied)
        row.code |= execute == b"x"
        if row is not own:
            if write + kind == b"ws":  # another page is dirty if somebody else has just written the file
                row.dirty += max(0, shared + private - copied)
            row.device = device.decode()
            name = f"{row.device} {inode.decode()}"
            length = int(offset, 16) + int(end, 16) - int(start, 16)
            row.sizes[name] = max(row.sizes.get(name, 0), length)
    return sorted(dict.fromkeys(rows.values()), key=lambda row: -row.rss)
