"""Each process has its own client: after a fork a helper, after a spawn its own runtime."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

import lowtide
from tests.support.buckets import npy
from tests.support.process import in_child, output
from tests.support.servers import BUCKET, ObjectServer

ROWS = np.arange(4096 * 64, dtype="<i4").reshape(4096, 64)


@pytest.fixture(scope="module")
def array(object_server: ObjectServer) -> lowtide.Array:
    import obstore

    obstore.put(object_server.store(), "client.npy", npy(ROWS))
    return lowtide.open(f"s3://{BUCKET}/client.npy", storage_options=object_server.options)


def right(array: lowtide.Array) -> bool:
    signal.alarm(30)  # a child that hangs is a failure
    chunks = np.concatenate(list(array.chunks(1000, shuffle="blocks", with_rows=False)))
    assert int(chunks.sum()) == int(ROWS.sum())
    rows: np.ndarray = array[[5, 4000]]
    same: bool = rows.tolist() == ROWS[[5, 4000]].tolist()
    return same


def test_forked_child_reads(array: lowtide.Array) -> None:
    assert right(array)
    assert in_child(lambda: right(array))


def test_grandchild_reads(array: lowtide.Array) -> None:
    assert in_child(lambda: right(array) and in_child(lambda: right(array)) and right(array))


def test_helper_errors_reach_child(array: lowtide.Array) -> None:
    def refused() -> bool:
        signal.alarm(30)
        try:
            lowtide.open(f"s3://{BUCKET}/no-such-object.npy", storage_options=_options(array))
        except lowtide.errors.NotFoundError as error:
            return str(error.filename) == f"s3://{BUCKET}/no-such-object.npy"
        return False

    assert in_child(refused)


def test_helper_ends_with_its_process(array: lowtide.Array) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def read() -> bool:
        from lowtide._io.remote import client

        done = right(array)
        assert client._HELPER is not None
        sender.send(client._HELPER._process.pid)
        return done

    assert in_child(read)
    helper = receiver.recv()
    for _ in range(200):
        try:
            with open(f"/proc/{helper}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        signal.sigtimedwait([], 0.05)
    pytest.fail("the helper still runs")


def test_fork_before_first_read_needs_no_helper(object_server: ObjectServer) -> None:
    code = """
        import os, sys, lowtide
        from lowtide._io.remote import client
        if not (pid := os.fork()):
            rows = lowtide.open(sys.argv[1])[:2]
            os._exit(0 if client._HELPER is None and rows.shape == (2, 64) else 1)
        print(os.waitpid(pid, 0)[1])
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_server.environment().items():
            patch.setenv(name, value)
        assert output(code, f"s3://{BUCKET}/client.npy") == "0\n"


def _spawned(array: lowtide.Array) -> bool:
    return right(array)


def test_spawned_child_reads(array: lowtide.Array) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as children:
        assert children.apply(_spawned, (array,))
    assert len(pickle.dumps(array)) < 1000


def test_process_exits_cleanly_with_pending_requests(object_server: ObjectServer) -> None:
    code = """
        import sys, lowtide
        array = lowtide.open(sys.argv[1])
        chunks = array.chunks(10, shuffle=True, prefetch=4)
        print(len(next(chunks)))
    """
    environment = os.environ | object_server.environment()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", __import__("textwrap").dedent(code), f"s3://{BUCKET}/client.npy"],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")


def _options(array: lowtide.Array) -> dict[str, object]:
    identity = array._layout.identity
    assert identity is not None
    assert identity.options is not None
    return identity.options.values
