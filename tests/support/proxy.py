"""A proxy of the tests' own in front of a real server: it counts, delays and breaks answers."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["Exchange"], None]


@dataclass
class Exchange:
    """One request with the answer of the server behind, and what becomes of it."""

    method: str
    path: str
    range: str | None
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    length: int | None = None
    """The Content-Length to send, if it is not that of the body."""
    cut: int | None = None
    """Bytes of the body after which the connection is cut."""
    pause: float = 0.0
    """Seconds between small pieces of the body."""


class FaultProxy:
    """Forwards to ``port`` on loopback. ``faults`` are called with each exchange, in order.

    A fault that is called with ``status`` 0 may answer instead of the server behind.
    """

    def __init__(self, port: int, latency: float = 0.0) -> None:
        self.latency = latency
        self.faults: list[Fault] = []
        self.exchanges: list[Exchange] = []
        self.sent = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer takes 40 ms

            def setup(self) -> None:
                super().setup()
                self.behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

            def finish(self) -> None:
                self.behind.close()
                with suppress(OSError):
                    super().finish()

            def log_message(self, *arguments: Any) -> None:
                pass

            def answer(self) -> None:
                proxy._answer(self, self.behind)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        self.faults.clear()
        self.exchanges.clear()
        self.sent = 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: Any, behind: http.client.HTTPConnection) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        exchange = Exchange(handler.command, handler.path, handler.headers.get("Range"))
        self.exchanges.append(exchange)
        time.sleep(self.latency)
        for fault in self.faults:
            fault(exchange)
        if not exchange.status:
            behind.request(handler.command, handler.path, body, dict(handler.headers.items()))
            response = behind.getresponse()
            exchange.status, exchange.body = response.status, response.read()
            exchange.headers = [
                (name, value)
                for name, value in response.getheaders()
                if name.lower() not in ("content-length", "connection", "transfer-encoding")
            ]
            if handler.command == "HEAD":
                exchange.length = int(response.getheader("Content-Length") or 0)
            for fault in self.faults:
                fault(exchange)
        self._send(handler, exchange)

    def _send(self, handler: Any, exchange: Exchange) -> None:
        length = len(exchange.body) if exchange.length is None else exchange.length
        handler.send_response(exchange.status)
        for name, value in exchange.headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        body = exchange.body if exchange.cut is None else exchange.body[: exchange.cut]
        step = 1024 if exchange.pause else max(1, len(body))
        with suppress(OSError):
            for first in range(0, len(body), step):
                handler.wfile.write(body[first : first + step])
                time.sleep(exchange.pause)
        self.sent += len(body)
        if exchange.cut is not None or (exchange.length is not None and handler.command != "HEAD"):
            handler.close_connection = True
            with suppress(OSError):
                handler.connection.shutdown(2)


def refuse(status: int, code: str, times: int = 10**9) -> Fault:
    """Answer the first ``times`` reads of objects with an error of S3."""
    left = [times]

    def fault(exchange: Exchange) -> None:
        if not exchange.status and exchange.method == "GET" and exchange.range and left[0]:
            left[0] -= 1
            exchange.status = status
            exchange.body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()

    return fault


def on_reads(change: Callable[[Exchange], None], times: int = 10**9) -> Fault:
    """Change the answers to the first ``times`` reads of ranges."""
    left = [times]

    def fault(exchange: Exchange) -> None:
        if exchange.status in (200, 206) and exchange.method == "GET" and exchange.range and left[0]:
            left[0] -= 1
            change(exchange)

    return fault
