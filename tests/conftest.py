"""Settings that every test shares."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import servers
from tests.support.proxy import FaultProxy
from tests.support.servers import ObjectServer

# No deadline: a shared machine may stall any example. In CI the same examples each time, so that a change
# which breaks something can be distinguished from an unlucky run.
settings.register_profile(
    "lowtide",
    max_examples=int(os.environ.get("EXAMPLES", "25")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("lowtide")

# Tests run side by side: PyTorch's threads would spin while they wait, and compete for the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in the background deaf to Ctrl-C, and so are its children, which tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def servers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the workers of this run share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    base = tmp_path_factory.getbasetemp()
    return base.parent / f"servers-{run}" if run else base / "servers"


@pytest.fixture(scope="session")
def object_server(servers_folder: Path) -> ObjectServer:
    """A real S3 server on loopback."""
    return servers.object_server(servers_folder)


@pytest.fixture
def web_server(servers_folder: Path) -> tuple[str, Path]:
    """The address of a real web server on loopback, and the folder that it serves."""
    port = servers.shared("http", servers_folder)
    return f"http://127.0.0.1:{port}", servers_folder / "http-data"


@pytest.fixture
def proxy(object_server: ObjectServer) -> Iterator[FaultProxy]:
    """A proxy in front of the S3 server that injects faults."""
    running = FaultProxy(object_server.port)
    yield running
    running.close()
