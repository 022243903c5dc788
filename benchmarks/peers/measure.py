"""Ask every peer for the same work, step by step, and keep what comes back."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cgroup import CgroupUnavailableError, LimitedGroup, memory_cgroup

from benchmarks.corpora import say
from benchmarks.harness import MIB, make_cold, make_warm
from benchmarks.limits import LoaderEndedError, LoaderProcess, cloud_disk
from benchmarks.peers import best
from benchmarks.peers.work import USEFUL, Peer, Work
from benchmarks.peers.worker import RAM
from lowtide._io import pagecache

LIMIT = 256 * MIB
COLD_SECONDS = 4.0
"""How long the slow may take over a quarter of the file."""
LIMITED_SECONDS = 20.0
"""In which something must come back from inside the memory limit."""
CLOUD_SECONDS = 30.0
"""How long a quarter of the file may take from a cloud disk: whoever plans ahead has started to deliver."""
TOO_SLOW = f"no batch in {LIMITED_SECONDS:g} s"
UNTESTED = "not tested"
SKIP: dict[Work, int] = {"tokens": 20, "rows": 5}
COMPARE = 5
"""Batches before a state is saved (more than a shuffle buffer of 1,000 windows), and batches compared."""


@dataclass
class Result:
    """What was found about one peer. Speeds are MiB/s of data as it lies on disk; memory is in bytes."""

    name: str
    title: str
    how: str
    version: str | None = None
    missing: str = ""
    """Why there are no figures; empty where there are."""
    warm: float | None = None
    in_order: float | None = None
    cold: float | None = None
    cold_read: int | None = None
    """Bytes of the cold run; fewer than asked where time ran out."""
    peak: int | None = None
    cached: int | None = None
    start_up: float | None = None
    convert_seconds: float | None = None
    convert_nbytes: int | None = None
    limited: float | None = None
    limited_how: str = ""
    cloud: float | None = None
    cloud_how: str = ""
    best: dict[str, float] = field(default_factory=dict)
    """The best possible of the same run: warm, in_order, cold, cloud, and dd for comparison."""
    resume: str = UNTESTED
    """Whether it continues exactly where it stopped; "none" where it has no state to save."""
    ranks: str = UNTESTED
    """Whether two ranks get together what one gets; "none" where there is no way to share."""
    curve: list[tuple[int, int]] = field(default_factory=list)


class Comparison:
    """Peers of one kind of work over one folder."""

    def __init__(self, peers: Sequence[Peer], folder: str, pythons: Mapping[str, str], rounds: int) -> None:
        self._peers = {peer.name: peer for peer in peers}
        self._folder = folder
        self._pythons = pythons
        self._rounds = rounds
        self._work = peers[0].work
        self._best: dict[str, float] = {}
        self._runs: dict[str, list[dict[str, float]]] = {}
        self.results = {peer.name: Result(peer.name, peer.title, peer.how) for peer in peers}

    def run(self) -> list[Result]:
        """All figures. A peer that fails in a step is listed with the reason and left out of the rest."""
        for name in self._peers:
            self._prepare(name)
        if not self._present():
            return list(self.results.values())
        self._warm()
        self._device()
        for nth in range(self._rounds):
            # Another peer starts each round: what it leaves in the host's own cache affects all alike.
            names = self._present()
            for name in [*names[nth * 3 :], *names[: nth * 3]]:
                say(f"cold, round {nth + 1}: {name}")
                self._cold(self._peers[name])
        for name in self._present():
            say(f"in {LIMIT // MIB} MiB, on a cloud disk: {name}")
            peer, result = self._peers[name], self.results[name]
            self._medians(result)
            result.best = self._best
            result.limited, result.limited_how = self._contained(peer)
            result.cloud, result.cloud_how = self._contained(peer, cloud=True)
        return list(self.results.values())

    def checked(self, name: str) -> dict[str, str]:
        """What takes no time to speak of, and can be asked on a busy machine: resuming, and two ranks."""
        say(f"resumed, on two ranks: {name}")
        peer = self._peers[name]
        return {
            "resume": self._resumed(peer) if peer.state else "none",
            "ranks": self._on_two_ranks(peer) if peer.ranks else "none",
        }

    def _present(self) -> list[str]:
        return [name for name, result in self.results.items() if not result.missing]

    @contextmanager
    def _process(
        self,
        name: str,
        group: LimitedGroup | None = None,
        environment: Mapping[str, str] | None = None,
        enter: Sequence[str] = (),
    ) -> Iterator[LoaderProcess]:
        python = self._pythons.get(name, sys.executable)
        where: Any = {"module": "benchmarks.peers.worker", "python": python, "environment": environment}
        where["enter"] = enter
        with LoaderProcess(name, self._folder, group, **where) as process:
            yield process

    def _prepare(self, name: str) -> None:
        """Whether a peer is there; what its own writer makes of the file."""
        peer, result = self._peers[name], self.results[name]
        try:
            with self._process(name) as process:
                result.version, result.missing = (
                    process.started.get("version"),
                    process.started.get("missing", ""),
                )
                if result.missing:
                    return
                self._convert(peer, process)
        except LoaderEndedError as error:
            result.missing = f"failed: {error}"

    def _convert(self, peer: Peer, process: LoaderProcess) -> None:
        if peer.convert is None:
            return
        result, taken = self.results[peer.name], Path(self._folder, f"{peer.reads}.seconds")
        if not taken.exists():  # two ways to read it share one conversion, and so do the parts of a run
            say(f"converting for {peer.name}")
            seconds = _ask(process, 600, do="convert")["seconds"]
            taken.write_text(str(seconds))
        result.convert_seconds = float(taken.read_text())
        result.convert_nbytes = sum(map(os.path.getsize, peer.files(self._folder)))

    def _warm(self) -> None:
        """Everything in the page cache; the processes live through all rounds and take turns."""
        hits: dict[str, list[float]] = {}
        passes: dict[str, list[float]] = {}
        # All before the first process: what somebody maps cannot be put out of the cache to be read in again.
        for path in sorted(
            {path for name in self._present() for path in self._peers[name].files(self._folder)}
        ):
            make_warm(path)
        with ExitStack() as stack:
            running = {}
            ram = RAM[self._work]
            everyone = {ram.name: ram} | {name: self._peers[name] for name in self._present()}
            for name in everyone:
                say(f"warm: {name}")
                try:
                    running[name] = stack.enter_context(self._process(name))
                    # the first pass over code and pages is not a figure
                    _ask(running[name], do="run", seconds=0.5)
                except LoaderEndedError as error:
                    running.pop(name, None)
                    if name == ram.name:
                        raise
                    self.results[name].missing = f"failed: {error}"
            for _ in range(2 * self._rounds + 1):
                for name, process in running.items():
                    message = _ask(process, do="run", seconds=0.25)
                    hits.setdefault(name, []).append(message["nbytes"] / message["seconds"] / MIB)
                    if name != ram.name:
                        self._saw_peak(name, message["peak"])
            for _ in range(self._rounds):
                for name, process in running.items():
                    if everyone[name].in_order is not None:
                        for path in everyone[name].files(self._folder):
                            _read(path)  # whoever drops what it has read leaves nothing to the next
                        message = _ask(process, do="in_order")
                        passes.setdefault(name, []).append(message["nbytes"] / message["seconds"] / MIB)
        for key, speeds in (("warm", hits), ("in_order", passes)):
            for name, several in speeds.items():
                if name == ram.name:
                    self._best[key] = statistics.median(several)
                else:
                    setattr(self.results[name], key, statistics.median(several))

    def _device(self) -> None:
        """What the device itself can do, as it is and as a cloud disk; nothing of it where fio is missing."""
        path = os.path.join(self._folder, RAM[self._work].reads)
        say(f"dd and fio: {self._work}")
        figures = {"dd": best.dd(path), "cold": best.random_reads(self._work, path)}
        with suppress(CgroupUnavailableError), cloud_disk(self._folder) as enter:
            figures["cloud"] = best.random_reads(self._work, path, enter)
        self._best |= {key: value for key, value in figures.items() if value is not None}

    def _saw_peak(self, name: str, peak: int) -> None:
        """The highest of all runs, warm and cold: a map is highest where its neighbours are cached."""
        self.results[name].peak = max(self.results[name].peak or 0, peak)

    def _cold(self, peer: Peer) -> None:
        """A quarter of the file from the device, in a new process: what is mapped cannot be dropped."""
        result, files = self.results[peer.name], peer.files(self._folder)
        read = max(USEFUL[peer.work], sum(map(os.path.getsize, files)) // 4)
        pending = time.perf_counter()
        try:
            with self._process(peer.name) as process:
                imports = time.perf_counter() - pending
                _make_cold(files)
                message = _ask(process, do="run", batches=read // USEFUL[peer.work], seconds=COLD_SECONDS)
                cached = [pagecache.resident(path) for path in files]
        except LoaderEndedError as error:
            result.missing = f"failed: {error}"
            return
        figures = {
            "cold": message["nbytes"] / message["seconds"] / MIB,
            "start_up": imports + message["first"],
            "cold_read": message["nbytes"],
            "cached": sum(one[0] for one in cached if one is not None),
        }
        self._runs.setdefault(peer.name, []).append(figures)
        self._saw_peak(peer.name, message["peak"])
        result.curve = message["curve"]

    def _medians(self, result: Result) -> None:
        runs = self._runs[result.name]
        for key in runs[0]:
            setattr(result, key, statistics.median(run[key] for run in runs))

    def _contained(self, peer: Peer, *, cloud: bool = False) -> tuple[float | None, str]:
        """Speed in a memory cgroup that holds a fraction of the file, or also on a slow disk; how it went."""
        files = peer.files(self._folder)
        try:
            with ExitStack() as stack:
                enter = stack.enter_context(cloud_disk(self._folder)) if cloud else ()
                group = stack.enter_context(memory_cgroup(LIMIT))
                process = stack.enter_context(self._process(peer.name, group, enter=enter))
                _make_cold(files)  # pages that another group paid for would be free
                if cloud:
                    asked = sum(map(os.path.getsize, files)) // 4 // USEFUL[peer.work]
                    message = _ask(process, 2 * CLOUD_SECONDS, do="run", batches=asked, seconds=CLOUD_SECONDS)
                else:  # until the group is full and has to reclaim
                    message = _ask(process, LIMITED_SECONDS, do="run", seconds=1)
                    if message["seconds"] < 5:
                        message = _ask(process, LIMITED_SECONDS, do="run", seconds=2)
        except CgroupUnavailableError as error:
            return None, f"n/a: {error}"
        except LoaderEndedError as error:
            # Who reads ahead for each row may need minutes for one batch.
            plain = {"OOM-killed": "killed", f"no answer in {LIMITED_SECONDS:g} s": TOO_SLOW}
            return None, plain.get(str(error), str(error))
        return message["nbytes"] / message["seconds"] / MIB, "completed"

    def _resumed(self, peer: Peer) -> str:
        """Whether a new process that gets the state of one that has ended continues with the same batches."""
        path = os.path.join(self._folder, "state.pickle")
        try:
            with self._process(peer.name) as process:
                before = _ask(process, do="digests", batches=COMPARE, skip=SKIP[peer.work], save=path)
            with self._process(peer.name) as process:
                after = _ask(process, do="digests", batches=COMPARE, load=path)
        except LoaderEndedError as error:
            return f"failed: {error}"
        by = f" ({peer.state_of})" if peer.state_of else ""
        return ("yes" if before["digests"] == after["digests"] else "no") + by

    def _on_two_ranks(self, peer: Peer) -> str:
        """Whether the batches of two ranks together hold, step by step, what those of one rank hold."""
        port = _free_port()
        try:
            with self._process(peer.name) as process:
                alone = _ask(process, do="digests", batches=COMPARE)["digests"]
            with ExitStack() as stack:
                where = [_torchrun(rank, 2, port) for rank in range(2)]
                running = [stack.enter_context(self._process(peer.name, environment=one)) for one in where]
                for process in running:  # both first: some meet before they start
                    process.ask(do="digests", batches=COMPARE)
                message = [process.answer()["digests"] for process in running]
        except LoaderEndedError as error:
            return f"failed: {error}"
        together = [sorted(a + b) for a, b in zip(*message, strict=True)]
        return "yes" if together == [sorted(step) for step in alone] else "no"


def _read(path: str) -> None:
    """Bring into the page cache what is not there; nothing is evicted, since peers may have it mapped."""
    with open(path, "rb", buffering=0) as file:
        while file.read(4 * MIB):
            pass


def _ask(process: LoaderProcess, timeout: float = 120, **expected: Any) -> dict[str, Any]:
    process.ask(**expected)
    return process.answer(timeout)


def _make_cold(files: Sequence[str]) -> None:
    for path in files:
        make_cold(path)


def _torchrun(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What ``torchrun`` on one machine would set."""
    count = str(ranks)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port
