"""What a store does wrong is repeated, or is an error that says what; never wrong data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import (
    AccessError,
    FileChangedError,
    LowtideError,
    NotFoundError,
    ReadError,
    TruncatedFileError,
    UnsupportedError,
)
from tests.support.buckets import npy
from tests.support.formats import refused
from tests.support.proxy import Exchange, FaultProxy, on_reads, refuse
from tests.support.servers import BUCKET, ObjectServer

ADDRESS = f"s3://{BUCKET}/faults.npy"
ROWS = np.random.default_rng(1).integers(0, 255, (400, 4096)).astype("u1")  # 1.6 MiB


@pytest.fixture
def options(object_server: ObjectServer, proxy: FaultProxy) -> dict[str, Any]:
    import obstore

    obstore.put(object_server.store(), "faults.npy", npy(ROWS))
    quick = {"timeout": "1s", "retry_timeout": "2s", "retry_config": {"max_retries": 3}}
    return object_server.options | {"endpoint": proxy.endpoint} | quick


@pytest.fixture
def array(options: dict[str, Any], proxy: FaultProxy) -> Iterator[lowtide.Array]:
    with lowtide.open(ADDRESS, storage_options=options) as opened:
        proxy.reset()
        yield opened


def test_503_is_retried(array: lowtide.Array, proxy: FaultProxy) -> None:
    proxy.faults.append(refuse(503, "SlowDown", times=2))
    np.testing.assert_array_equal(array[:], ROWS)
    assert len(proxy.exchanges) >= 4


def test_persistent_503_raises(array: lowtide.Array, proxy: FaultProxy) -> None:
    proxy.faults.append(refuse(503, "SlowDown"))
    with refused(ReadError, ADDRESS, "bytes 128 to 4224", "503", "SlowDown", "retry_timeout"):
        array[0]


def test_connection_lost_within_range_is_retried(array: lowtide.Array, proxy: FaultProxy) -> None:
    proxy.faults.append(on_reads(lambda exchange: _cut(exchange, 1000), times=2))
    np.testing.assert_array_equal(array[3], ROWS[3])


def test_connection_that_is_always_lost_raises(array: lowtide.Array, proxy: FaultProxy) -> None:
    proxy.faults.append(on_reads(lambda exchange: _cut(exchange, 0)))
    with refused(ReadError, ADDRESS, "bytes 128 to 4224"):
        array[0]


def _cut(exchange: Exchange, at: int) -> None:
    exchange.cut = at


@pytest.mark.parametrize("length", [100, 10_000])
def test_wrong_content_length_raises(array: lowtide.Array, proxy: FaultProxy, length: int) -> None:
    def change(exchange: Exchange) -> None:
        exchange.length = length

    proxy.faults.append(on_reads(change))
    with refused(ReadError, ADDRESS, "bytes 128 to 4224"):
        array[0]


def test_short_body_raises(array: lowtide.Array, proxy: FaultProxy) -> None:
    def change(exchange: Exchange) -> None:
        exchange.body = exchange.body[:-1]

    proxy.faults.append(on_reads(change))
    with pytest.raises(LowtideError, match="bytes 128 to 4224"):
        array[0]


def test_wrong_content_range_raises(array: lowtide.Array, proxy: FaultProxy) -> None:
    def change(exchange: Exchange) -> None:
        exchange.headers = [
            (
                name,
                value.replace("128-", "129-").replace("-4223", "-4224") if name == "Content-Range" else value,
            )
            for name, value in exchange.headers
        ]

    proxy.faults.append(on_reads(change))
    with pytest.raises(LowtideError, match="bytes 128 to 4224"):
        array[0]


def test_server_without_range_requests_raises(
    array: lowtide.Array, proxy: FaultProxy, options: dict[str, Any]
) -> None:
    def change(exchange: Exchange) -> None:
        exchange.status, exchange.body = 200, npy(ROWS)
        exchange.headers = [pair for pair in exchange.headers if pair[0].lower() != "content-range"]

    proxy.faults.append(on_reads(change))
    with refused(UnsupportedError, ADDRESS, "bytes 128 to 4224", "range requests"):
        array[0]
    with refused(UnsupportedError, ADDRESS, "range requests"):
        lowtide.open(ADDRESS, storage_options=options)


def test_slow_body_times_out(array: lowtide.Array, proxy: FaultProxy) -> None:
    def change(exchange: Exchange) -> None:
        exchange.pause = 1.0

    proxy.faults.append(on_reads(change))
    started = time.monotonic()
    with refused(ReadError, ADDRESS, "in time", "raise timeout"):
        array[0]
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (403, "AccessDenied", AccessError, "check the credentials"),
        (400, "ExpiredToken", AccessError, "the credentials have expired"),
        (404, "NoSuchKey", NotFoundError, "no such object"),
        (412, "PreconditionFailed", FileChangedError, "open it again"),
        (416, "InvalidRange", ReadError, "wrong answer"),  # the object has these bytes
    ],
)
def test_http_status_maps_to_error(
    array: lowtide.Array, proxy: FaultProxy, status: int, code: str, kind: type[LowtideError], words: str
) -> None:
    proxy.faults.append(refuse(status, code))
    with refused(kind, ADDRESS, "bytes 128 to 4224", words):
        array[0]


def test_replaced_shortened_or_deleted_object_raises(
    array: lowtide.Array, object_server: ObjectServer
) -> None:
    import obstore

    client = object_server.store()
    obstore.put(client, "faults.npy", npy(ROWS[::-1]))
    with refused(FileChangedError, ADDRESS, "was replaced by another object"):
        array[5]
    obstore.put(client, "faults.npy", npy(ROWS)[:1000])
    with pytest.raises((FileChangedError, TruncatedFileError), match="since it was opened"):
        array[5]
    obstore.delete(client, "faults.npy")
    with refused(NotFoundError, ADDRESS):
        array[5]


def test_changed_etag_raises_if_server_ignores_if_match(
    options: dict[str, Any], proxy: FaultProxy, object_server: ObjectServer
) -> None:
    """Every answer is compared with what was opened, should a server not know If-Match."""
    import obstore

    def forget(exchange: Exchange) -> None:
        exchange.headers = [
            (name, "1" if name.lower() == "etag" else value) for name, value in exchange.headers
        ]

    array = lowtide.open(ADDRESS, storage_options=options)
    proxy.faults.append(on_reads(forget))
    with refused(FileChangedError, ADDRESS, "ETag 1"):
        array[0]
    obstore.put(object_server.store(), "faults.npy", npy(ROWS))


def test_refused_connection_raises(object_server: ObjectServer) -> None:
    options = object_server.options | {
        "endpoint": "http://127.0.0.1:9",
        "timeout": "1s",
        "retry_timeout": "1s",
        "retry_config": {"max_retries": 1},
    }
    with refused(ReadError, ADDRESS, "the connection to it failed"):
        lowtide.open(ADDRESS, storage_options=options)
