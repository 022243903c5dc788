"""The gauges of a watch for other programs: OpenMetrics for Prometheus, JSON lines for everything else."""

from __future__ import annotations

import http.server
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from lowtide._memory import cgroup, proc
from lowtide._memory.profile.document import write_text
from lowtide._memory.profile.profiler import Profiler
from lowtide.errors import ArgumentError, WriteError

LOOPBACK = "127.0.0.1"
_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Gauge(NamedTuple):
    """One figure: its name, its description, and whether it only rises."""

    name: str
    help: str
    unit: str = "bytes"
    counter: bool = False


GAUGES = (
    Gauge("heap", "Anonymous memory of the processes, shared pages counted once."),
    Gauge("mapped", "Resident pages of mapped files, shared pages counted once."),
    Gauge("shared", "Shared memory and files in memory file systems, mapped or not."),
    Gauge("memory", "Memory of the processes: heap, mapped files and shared memory."),
    Gauge("memory_peak", "Highest memory: the kernel's mark of the largest process, and the highest sample."),
    Gauge("page_cache", "Page cache of the data files, without what is mapped."),
    Gauge("read", "Bytes read, by calls and through mappings.", counter=True),
    Gauge("major_faults", "Page faults that waited for a device.", "", counter=True),
    Gauge("processes", "Processes.", ""),
    Gauge("container_usage", "Everything that the cgroup is charged for."),
    Gauge("container_peak", "Highest usage of the cgroup, kept by the kernel."),
    Gauge("container_working_set", "Usage of the cgroup without inactive page cache."),
    Gauge("container_limit", "The smallest limit of the cgroup and its parents."),
    Gauge("container_heap", "Anonymous memory charged to the cgroup."),
    Gauge("container_shared", "Shared memory and tmpfs charged to the cgroup."),
    Gauge("container_kernel", "Kernel memory charged to the cgroup."),
    Gauge(
        "container_oom_kills", "Processes of the cgroup that the kernel killed for memory.", "", counter=True
    ),
    Gauge("container_throttled", "Times that the cgroup was over memory.high.", "", counter=True),
    Gauge("memory_stalled", "Time in which processes waited for memory.", "seconds", counter=True),
)


def gauges(watched: Profiler) -> dict[str, float | None]:
    """The current figures by the names of ``GAUGES``; ``None`` for what this system does not report."""
    recording, group = watched.recording, watched.observer.group
    series = recording.series()
    total = series.total
    figures: dict[str, float | None] = dict.fromkeys(gauge.name for gauge in GAUGES)
    if len(series.time):
        point = recording.points[-1]
        figures |= {
            "heap": int(series.heap[-1]),
            "mapped": int(series.mapped[-1]),
            "shared": int(series.shared[-1]),
            "memory": int(total[-1]),
            "memory_peak": max(int(total.max()), recording.true_peak or 0),
            "page_cache": int(series.cache[-1]),
            "read": int(series.read[-1]),
            "major_faults": point.major,
            "processes": point.processes,
        }
    stalled = cgroup.stalled(f"{proc.ROOT}/pressure/memory")
    if group is not None:
        charged, events = group.charged(), group.events()
        figures |= {
            "container_usage": group.usage(),
            "container_peak": group.peak(),
            "container_working_set": group.working_set(),
            "container_limit": group.limit(),
            "container_heap": charged.heap,
            "container_shared": charged.shared,
            "container_kernel": charged.kernel,
            "container_oom_kills": group.killed() if "oom_kill" in events else None,
            "container_throttled": events.get("high"),
        }
        own = group.pressure()
        stalled = stalled if own is None else own
    figures["memory_stalled"] = None if stalled is None else stalled / 1e6
    return figures


def openmetrics(target: str, figures: dict[str, float | None]) -> str:
    """The figures in the text format of OpenMetrics 1.0."""
    label = target.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = []
    for gauge in GAUGES:
        value = figures.get(gauge.name)
        if value is None:
            continue
        name = f"lowtide_{gauge.name}" + (f"_{gauge.unit}" if gauge.unit else "")
        lines.append(f"# TYPE {name} {'counter' if gauge.counter else 'gauge'}")
        if gauge.unit:
            lines.append(f"# UNIT {name} {gauge.unit}")
        lines.append(f"# HELP {name} {gauge.help}")
        lines.append(f'{name}{"_total" if gauge.counter else ""}{{target="{label}"}} {value}')
    return "\n".join([*lines, "# EOF"]) + "\n"


def json_line(seconds: float, target: str, figures: dict[str, float | None]) -> str:
    """The same figures as one line of JSON; sizes in bytes."""
    return json.dumps({"seconds": round(seconds, 3), "target": target, **figures})


def destination(text: str) -> tuple[str, int] | str:
    """``PORT`` or ``HOST:PORT`` as an address, by default of this machine alone; anything else is a file."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or "/" in text:
        return text
    if int(port) > 65535:
        raise ArgumentError(f"{text}: not a port (expected 0 to 65535); pass another one")
    return host.strip("[]") or LOOPBACK, int(port)


class Exporter:
    """Publishes the figures of a watch at an address or in a file."""

    def __init__(self, text: str, target: str) -> None:
        self._target = target
        self._page = "# EOF\n"
        self._server: _Server | None = None
        where = destination(text)
        self._path = where if isinstance(where, str) else None
        self.address = ""
        if isinstance(where, str):
            write_text(where, self._page)  # raises at the start if it cannot be written
            self.address = where
        else:
            self._server = _server(where, lambda: self._page)
            host, port = self._server.server_address[:2]
            self.address = f"http://{host!s}:{port}/metrics"
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def publish(self, figures: dict[str, float | None]) -> None:
        """Replace the figures by current ones."""
        self._page = openmetrics(self._target, figures)
        if self._path is not None:
            write_text(self._path, self._page)

    def close(self) -> None:
        """Stop answering; a file stays, with the last figures."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Not ``http.server.HTTPServer``, which asks for the name of the address and may wait for it."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, where: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        super().__init__(where, handler)


def _server(where: tuple[str, int], page: Callable[[], str]) -> _Server:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.partition("?")[0] in ("/", "/metrics")
            body = page().encode() if known else b"not found; the figures are at /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", _TYPE if known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:
            """Say nothing: the terminal shows the memory."""

    try:
        return _Server(where, Handler)
    except OSError as error:
        problem = f"{(error.strerror or os.strerror(error.errno or 0)).lower()}; pass another port or address"
        raise WriteError(error.errno or 0, problem, f"{where[0]}:{where[1]}") from error
