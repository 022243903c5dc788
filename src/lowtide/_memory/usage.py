"""memory_profiler's ``memory_usage``, with its arguments and results."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import psutil

from lowtide._memory.snapshot import no_such_process
from lowtide._memory.watch import Watch
from lowtide._printable import brief
from lowtide._sizes import whole
from lowtide.errors import ArgumentError

_MIB = 2**20
_BACKENDS = {None: "rss", "psutil": "rss", "posix": "rss", "psutil_pss": "pss", "psutil_uss": "uss"}


def memory_usage(
    proc: Any = -1,
    interval: float = 0.1,
    timeout: float | None = None,
    timestamps: bool = False,
    include_children: bool = False,
    multiprocess: bool = False,
    max_usage: bool = False,
    retval: bool = False,
    stream: TextIO | None = None,
    backend: str | None = None,
    max_iterations: int | None = None,
) -> Any:
    """Memory of a process, or while a function runs, in MiB: a replacement for memory_profiler's.

    Two things differ. A function is called once, where memory_profiler calls a short one again with shorter
    intervals; and with ``max_usage=True`` the result for a function is the kernel's true peak.

    Parameters
    ----------
    proc : int, subprocess.Popen, callable or tuple
        A process (-1 for this one), or a function, or ``(function, args, kwargs)``.
    interval : float
        Seconds between two samples.
    timeout : float, optional
        Seconds after which a process is no longer sampled. A function runs to its end.
    timestamps : bool
        Return ``(memory, time)`` for each sample.
    include_children : bool
        Add all descendants. Those of a function count with proportional shares.
    multiprocess : bool
        For a process: a list for each sample, with each child after the process itself.
    max_usage : bool
        Return only the highest value.
    retval : bool
        For a function: also return its result.
    stream : file, optional
        For a process: write samples here in the format of ``mprof``, and return ``None``.
    backend : str, optional
        ``"psutil"`` resident memory [default], ``"psutil_pss"`` or ``"psutil_uss"``.
    max_iterations : int, optional
        Without effect: a function is called once.

    Returns
    -------
    list of float, float or tuple
        The samples; the highest with ``max_usage``; with ``retval`` a tuple of that and the result.

    Examples
    --------
    >>> memory_usage(-1)[0] > 1
    True
    >>> highest, result = memory_usage((sorted, ([3, 1, 2],)), max_usage=True, retval=True)
    >>> highest > 1, result
    (True, [1, 2, 3])
    """
    del max_iterations
    if backend not in _BACKENDS:
        names = ", ".join(name for name in _BACKENDS if name)
        raise ArgumentError(f"backend must be one of {names} (got {backend!r})")
    field = _BACKENDS[backend]
    if interval < 0:
        raise ArgumentError(f"interval must not be negative (got {interval!r})")
    if callable(proc):
        proc = (proc,)
    if isinstance(proc, list | tuple):
        if not 1 <= len(proc) <= 3:
            raise ArgumentError(f"proc must be (function, args, kwargs) (got {len(proc)} items)")
        if not callable(proc[0]):
            raise ArgumentError(f"proc must start with a function (got {brief(proc[0])})")
        if field != "rss":
            raise ArgumentError(f"backend={backend!r} is for processes; use backend='psutil' for a function")
        return _of_function(*proc, interval=interval, timestamps=timestamps, children=include_children,
                            max_usage=max_usage, retval=retval)  # fmt: skip
    samples = _samples(proc, interval, timeout, field, include_children, multiprocess or stream is not None)
    if stream is not None:
        for number, (moment, sizes) in enumerate(samples):
            stream.write(f"MEM {sizes[0][1]:.6f} {moment:.4f}\n")
            for index, size in sizes[1:] if multiprocess else ():
                stream.write(f"CHLD {index} {size:.6f} {moment:.4f}\n")
            if number % 50 == 0:
                stream.flush()
        return None
    if max_usage:
        return max((sizes[0][1] for _, sizes in samples), default=-1)
    results: list[Any] = []
    for moment, sizes in samples:
        own: Any = (sizes[0][1], moment) if timestamps else sizes[0][1]
        results.append([own, *(size for _, size in sizes[1:])] if multiprocess else own)
    return results


def _of_function(
    function: Callable[..., Any], args: Any = (), kwargs: Any = None, *,
    interval: float, timestamps: bool, children: bool, max_usage: bool, retval: bool,
) -> Any:  # fmt: skip
    started = time.time()
    with Watch(interval=max(interval, 0.001), children=children) as watch:
        result = function(*args, **(kwargs or {}))
    assert watch.base is not None
    assert watch.peak is not None
    # The sampler's first look may come after the function has ended: base and end are always there.
    points = [(watch.base, started), *((sample.value, sample.time) for sample in watch.samples)]
    usage: Any
    if max_usage:
        usage = watch.peak / _MIB
        if timestamps:
            usage = (usage, max(points)[1])
    else:
        usage = [(size / _MIB, moment) if timestamps else size / _MIB for size, moment in points]
    return (usage, result) if retval else usage


_Sizes = list[tuple[int, float]]  # the process itself, then its children by index


def _samples(
    proc: int | subprocess.Popen[Any], interval: float, timeout: float | None, field: str,
    include_children: bool, separate: bool,
) -> Iterator[tuple[float, _Sizes]]:  # fmt: skip
    popen = proc if isinstance(proc, subprocess.Popen) else None
    pid = popen.pid if popen is not None else os.getpid() if proc == -1 else whole("proc", proc)
    left = round(timeout / interval) if timeout is not None else None if popen is not None else 1
    try:
        process = psutil.Process(pid)
    except (psutil.NoSuchProcess, ValueError) as error:
        raise no_such_process(pid) from error
    indices: dict[int, int] = {}
    while left is None or left > 0:
        own = _size(process, field)
        sizes: _Sizes = []
        if include_children or separate:
            for child in _descendants(process):
                size = _size(child, field)
                own += size if include_children else 0
                sizes.append((indices.setdefault(child.pid, len(indices)), size))
        yield time.time(), [(-1, own), *sizes]
        time.sleep(interval)
        left = None if left is None else left - 1
        if popen is not None and popen.poll() is not None:
            return


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def _size(process: psutil.Process, field: str) -> float:
    try:
        memory = process.memory_info() if field == "rss" else process.memory_full_info()
        return float(getattr(memory, field)) / _MIB
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended in the meantime
        return 0.0


def show_memory(function: Callable[[], Any]) -> tuple[float, Any]:
    """The callable for ``show_memory`` in sphinx-gallery's configuration.

    Parameters
    ----------
    function : callable
        What sphinx-gallery runs: a block of an example.

    Returns
    -------
    tuple
        The true peak in MiB, and what the function returned.

    Examples
    --------
    >>> peak, result = show_memory(lambda: 42)
    >>> peak > 1, result
    (True, 42)
    """
    usage: tuple[float, Any] = memory_usage(function, max_usage=True, retval=True)
    return usage
