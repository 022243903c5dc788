"""The target of ``lowtide watch``: a process by its number or name, a cgroup, or this container."""

from __future__ import annotations

import errno
import os
import shlex

from lowtide._memory import cgroup, proc
from lowtide._memory.profile import profiler
from lowtide._memory.profile.profiler import Profiler
from lowtide._printable import printable
from lowtide.errors import ArgumentError, NotFoundError, ProcessError

_LISTED = 8  # processes of one name that a message lists


def attach(target: str | None, *, budget: int | None = None) -> Profiler:
    """A profiler of a process number, a command's name, a cgroup's path, or of this container."""
    profiler.require_proc()
    if target is None:
        return profiler.attach_group(_own_group(), budget=budget)
    if target.isdecimal():
        return profiler.attach(int(target), budget=budget)
    if "/" in target:
        return profiler.attach_group(_group(target), budget=budget)
    return profiler.attach(_process(target), budget=budget)


def _own_group() -> cgroup.MemoryCgroup:
    group = cgroup.find()
    if group is None:
        problem = "no memory cgroup is visible; pass a process number or a command's name"
        raise NotFoundError(errno.ENOENT, problem, f"{proc.ROOT}/self/cgroup")
    return group


def _group(path: str) -> cgroup.MemoryCgroup:
    group = cgroup.at(path)
    if group is None:
        own = cgroup.find()
        where = f"list them with `ls {own.mount}`" if own else "no memory cgroup is visible here"
        problem = "a folder without a memory cgroup" if os.path.isdir(path) else "no such cgroup"
        raise NotFoundError(errno.ENOENT, f"{problem}; {where}", path)
    return group


def _process(name: str) -> int:
    """The process that is called ``name``: by its program, its script or its own title."""
    parents: dict[int, int] = {}
    matches: dict[int, str] = {}
    for entry in os.listdir(proc.ROOT):
        if entry.isdecimal() and int(entry) != os.getpid():
            try:
                words, parent = proc.command(entry), proc.parent(entry)
                title = proc.name(entry)
            except OSError:  # it has ended, or may not be looked at
                continue
            parents[int(entry)] = parent
            if words and name in (title, *(os.path.basename(word) for word in words[:3])):
                matches[int(entry)] = shlex.join(words)[:60]
    # Of a process and its children the first one stands for all: it is watched with them.
    tops = [pid for pid in matches if not any(above in matches for above in _above(pid, parents))]
    tops = [pid for pid in tops if pid not in _above(os.getpid(), {**parents, os.getpid(): os.getppid()})]
    if not tops:
        problem = f"no process is called {printable(name) or repr(name)}; list running processes with `ps -e`"
        raise ProcessError(errno.ESRCH, problem, proc.ROOT)
    if len(tops) > 1:
        lines = ", ".join(f"{pid} ({printable(matches[pid])})" for pid in sorted(tops)[:_LISTED])
        raise ArgumentError(
            f"{len(tops)} processes are called {printable(name)}: {lines}; pass one of the numbers"
        )
    return tops[0]


def _above(pid: int, parents: dict[int, int]) -> list[int]:
    chain: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in chain:
        chain.append(pid)
    return chain
