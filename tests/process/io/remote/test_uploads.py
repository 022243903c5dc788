"""What is written to a bucket is visible when it is complete, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._arrays.uploaded import Uploaded
from lowtide._io.remote.address import using
from lowtide._io.remote.uploads import Upload
from lowtide.errors import ClosedError, NotFoundError, UnsupportedError, WriteError
from tests.support.formats import refused
from tests.support.process import in_child
from tests.support.proxy import Exchange, FaultProxy
from tests.support.servers import BUCKET, READER, ObjectServer

ROWS = np.random.default_rng(3).integers(0, 2**31, (60_000, 64)).astype("<i4")  # 15 MiB


def address(name: str) -> str:
    return f"s3://{BUCKET}/written/{name}"


def names(server: ObjectServer) -> set[str]:
    import obstore

    pages = obstore.list(server.store(), "written/")
    return {str(one["path"]).removeprefix("written/") for page in pages for one in page}


def unfinished(server: ObjectServer) -> list[str]:
    import boto3

    options = server.options
    client = boto3.client(
        "s3",
        endpoint_url=options["endpoint"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        region_name="us-east-1",
    )
    return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


@pytest.mark.parametrize("name", ["large.npy", "large.bin", "small.npy", "small.bin"])
def test_uploaded_rows_are_read_back(name: str, object_server: ObjectServer) -> None:
    rows = ROWS if "large" in name else ROWS[:100]
    options = object_server.options
    with lowtide.create(address(name), "<i4", 64, storage_options=options) as out:
        for first in range(0, len(rows), 7000):
            out.append(rows[first : first + 7000])
            assert name not in names(object_server)
    raw: dict[str, Any] = {} if name.endswith(".npy") else {"dtype": "<i4", "shape": (-1, 64)}
    array = lowtide.open(address(name), storage_options=options, **raw)
    np.testing.assert_array_equal(array[:], rows)
    assert not any("partial" in each for each in names(object_server))


def test_failed_upload_leaves_nothing(object_server: ObjectServer) -> None:
    options = object_server.options
    with pytest.raises(KeyError):
        with lowtide.create(address("failed.npy"), "<i4", 64, storage_options=options) as out:
            out.append(ROWS)
            raise KeyError
    writer = lowtide.create(address("aborted.bin"), "<i4", 64, storage_options=options)
    writer.append(ROWS)
    writer.abort()
    with pytest.raises(ClosedError):
        writer.append(ROWS)
    assert not any(name.startswith(("failed", "aborted")) for name in names(object_server))
    assert unfinished(object_server) == []


def test_invalid_append_adds_nothing(object_server: ObjectServer) -> None:
    with lowtide.create(address("refused.npy"), "u1", storage_options=object_server.options) as out:
        out.append([1, 2])
        with pytest.raises(lowtide.errors.ArgumentError):
            out.append([3, 300])
        out.append([4])
    assert lowtide.open(address("refused.npy"), storage_options=object_server.options)[:].tolist() == [
        1,
        2,
        4,
    ]


def test_killed_process_publishes_nothing(object_server: ObjectServer) -> None:
    code = """
        import sys, time, numpy as np, lowtide
        out = lowtide.create(sys.argv[1], "<i4", 64)
        out.append(np.ones((100_000, 64), "<i4"))
        print("written", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), address("killed.bin")],
        stdout=subprocess.PIPE,
        env=os.environ | object_server.environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert "killed.bin" not in names(object_server)


def test_refused_part_raises(object_server: ObjectServer, proxy: FaultProxy) -> None:
    def refuse(exchange: Exchange) -> None:
        if not exchange.status and exchange.method == "PUT" and "partNumber" in exchange.path:
            exchange.status, exchange.body = 403, b"<Error><Code>AccessDenied</Code></Error>"

    proxy.faults.append(refuse)
    options = object_server.options | {"endpoint": proxy.endpoint}
    with refused(WriteError, address("denied.bin"), "AccessDenied"):
        with lowtide.create(address("denied.bin"), "<i4", 64, storage_options=options) as out:
            out.append(ROWS)
            out.append(ROWS)
    assert "denied.bin" not in names(object_server)


def test_invalid_uploads_raise(object_server: ObjectServer) -> None:
    options = object_server.options
    with refused(UnsupportedError, "cannot be changed in place"):
        lowtide.create(address("x.npy"), "<i4", shape=(3, 4))
    with refused(UnsupportedError, "cannot be changed in place"):
        lowtide.create(address("x.npy"), "<i4", append=True, storage_options=options)
    with refused(WriteError, address("x.npy"), "access denied"):
        with lowtide.create(address("x.npy"), "<i4", storage_options=options | READER) as out:
            out.append([1])
    with refused(lowtide.errors.ArgumentError, "part_size must be at least 5 MiB"):
        lowtide.create(address("x.npy"), "<i4", storage_options=options | {"part_size": 1})
    with pytest.raises(NotFoundError):
        lowtide.open(address("x.npy"), storage_options=options)


def test_forked_child_cannot_append_to_parents_upload(object_server: ObjectServer) -> None:
    options = object_server.options
    with lowtide.create(address("parent.npy"), "<i4", 64, storage_options=options) as out:
        out.append(ROWS)

        def child() -> bool:
            signal.alarm(60)
            with pytest.raises(ClosedError):
                out.append(ROWS)
            with lowtide.create(address("child.npy"), "<i4", 64, storage_options=options) as other:
                other.append(ROWS)
            return True

        assert in_child(child)
    for name in ("parent.npy", "child.npy"):
        assert lowtide.open(address(name), storage_options=options).shape == ROWS.shape


def test_too_many_parts_raise(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide._io.remote.uploads._MOST_PARTS", 1)
    with using(object_server.options):
        upload = Upload(address("parts.bin"))
    with refused(WriteError, address("parts.bin"), "larger part_size"):
        upload.write(bytes(9 * 2**20))
    upload.abort()


def test_shuffled_rows_are_uploaded_once(
    object_server: ObjectServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    lowtide.shuffle(tmp_path / "rows.npy", tmp_path / "mixed.npy", seed=3)
    with using(object_server.options | {"endpoint": proxy.endpoint}):
        lowtide.shuffle(tmp_path / "rows.npy", address("mixed.npy"), seed=3)
    assert not [one for one in proxy.exchanges if one.method == "GET"]
    assert not [one for one in proxy.exchanges if "partial" in one.path]
    remote = lowtide.open(address("mixed.npy"), storage_options=object_server.options)
    np.testing.assert_array_equal(remote[:], np.load(tmp_path / "mixed.npy"))


@pytest.mark.parametrize("count", [50_000, 70_000])
def test_row_count_other_than_header_raises(count: int, object_server: ObjectServer) -> None:
    with using(object_server.options):
        target = Uploaded(address("counted.npy"), True, ROWS.dtype, (64,), rows=count)
        target.write(ROWS.reshape(-1).view(np.uint8).data)
        with refused(WriteError, address("counted.npy"), f"has {len(ROWS)} rows, expected {count}"):
            target.finish(len(ROWS))
    assert "counted.npy" not in names(object_server)
