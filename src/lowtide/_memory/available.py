"""How much memory this process may still take: the least that the machine and every limit leave."""

from __future__ import annotations

from collections.abc import Iterator

from lowtide._memory import cgroup, proc

# Limits of the process (setrlimit) and the line of /proc/self/status that counts against each.
_PROCESS_LIMITS = (("RLIMIT_AS", b"\nVmSize:"), ("RLIMIT_DATA", b"\nVmData:"))


def available() -> int:
    """Bytes of memory that this process may still take before something reclaims, swaps, throttles or kills.

    The least of what the machine has available, of what each ``memory.max`` and ``memory.high`` (version 1:
    ``memory.limit_in_bytes`` and its limit with swap) of the cgroup and all its parents leaves, and of the
    limits of the process itself (``ulimit -v``, ``ulimit -d``). Page cache counts as available: the kernel
    takes it back. Sizes in percent, as in ``budget="25%"``, are of this figure.

    Returns
    -------
    int
        Bytes; 0 if a limit is reached. ``psutil.virtual_memory().available`` is the machine's alone.

    Examples
    --------
    >>> available() > 2**20
    True
    """
    return min(size for size, _ in bounds())


def bounds() -> Iterator[tuple[int, str]]:
    """What each bound leaves to this process, and the source of the bound."""
    yield _machine()
    group = cgroup.find()
    for level in group.upwards() if group else ():
        yield from level.room()
    yield from _process()


def _machine() -> tuple[int, str]:
    try:
        text = proc.read(f"{proc.ROOT}/meminfo")
    except OSError:
        text = b""
    if b"\nMemAvailable:" in text:
        return proc.field(text, b"\nMemAvailable:"), f"{proc.ROOT}/meminfo MemAvailable"
    import psutil

    return int(psutil.virtual_memory().available), "psutil virtual_memory().available"


def _process() -> Iterator[tuple[int, str]]:
    try:
        import resource

        text = proc.read(f"{proc.ROOT}/self/status")
    except (ImportError, OSError):  # Windows; no /proc
        return
    for name, used in _PROCESS_LIMITS:
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            yield max(0, soft - proc.field(text, used)), f"setrlimit {name}"
