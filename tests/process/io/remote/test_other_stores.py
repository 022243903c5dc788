"""Stores other than S3: Azurite, obstore's client of GCS, and a web server with a private certificate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import AccessError, FileChangedError, NotFoundError, ReadError
from tests.support import servers
from tests.support.buckets import npy
from tests.support.formats import refused
from tests.support.proxy import FaultProxy, refuse
from tests.support.servers import ObjectServer

ROWS = np.random.default_rng(0).integers(0, 2**31, (60_000, 7)).astype("<i4")
TOKENS = np.random.default_rng(1).integers(0, 50257, 400_000).astype("<u2")


@dataclass
class Place:
    """Somewhere to read from."""

    prefix: str
    options: dict[str, Any]
    put: Callable[[str, bytes], object]
    denied: dict[str, Any]
    """Options with which nothing may be read."""


def azure(folder: Path) -> Place:
    import obstore
    from obstore.store import AzureStore

    port = servers.shared("azure", folder)
    options = servers.azure_options(port)
    store = AzureStore(servers.GUIDE, **options, client_options={"allow_http": True})
    stranger = {**options, "account_key": "d3Jvbmc="}
    return Place(f"az://{servers.GUIDE}", options, lambda key, data: obstore.put(store, key, data), stranger)


@pytest.fixture(params=["az", "gs", "https"])
def place(request: pytest.FixtureRequest, servers_folder: Path, object_server: ObjectServer) -> Any:
    import obstore

    if request.param == "az":
        yield azure(servers_folder)
    elif request.param == "gs":
        # GCS's XML API, which obstore uses, is that of S3: here a public bucket of an S3 server. Emulators
        # that can be installed have its JSON API alone.
        store = object_server.store("public")
        proxy = FaultProxy(object_server.port)
        proxy.faults.append(refuse(403, "AccessDenied"))
        options: dict[str, Any] = {"base_url": object_server.endpoint, "skip_signature": True}
        denied = {**options, "base_url": proxy.endpoint}
        yield Place("gs://public", options, lambda key, data: obstore.put(store, key, data), denied)
        proxy.close()
    else:
        port = servers.shared("https", servers_folder)
        data = servers_folder / "https-data"
        certificate = (data / servers.CERTIFICATE).read_text()
        trusting = {"client_options": {"root_certificate": certificate}}
        denied = {"client_options": {**trusting["client_options"], "default_headers": {"x-denied": "yes"}}}
        yield Place(
            f"https://localhost:{port}", trusting, lambda key, data_: write(data / key, data_), denied
        )


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_rows_and_batches_match_files(place: Place, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    TOKENS.tofile(tmp_path / "train.bin")
    for name in ("rows.npy", "train.bin"):
        place.put(f"same/{name}", (tmp_path / name).read_bytes())
    rows = lowtide.open(f"{place.prefix}/same/rows.npy", storage_options=place.options)
    np.testing.assert_array_equal(rows[[7, 59_999, 30_000]], ROWS[[7, 59_999, 30_000]])
    for remote, local in zip(
        rows.chunks(20_000, shuffle="blocks", seed=3),
        lowtide.open(tmp_path / "rows.npy").chunks(20_000, shuffle="blocks", seed=3),
        strict=True,
    ):
        np.testing.assert_array_equal(remote, local)
    corpora = [
        lowtide.corpus(f"{place.prefix}/same/train.bin", dtype="uint16", storage_options=place.options),
        lowtide.corpus(tmp_path / "train.bin", dtype="uint16"),
    ]
    for order in ("blocks", "shuffle"):
        steps = [corpus.batches(8, 256, order=order, seed=5) for corpus in corpora]
        for _ in range(4):
            (x, y), (expected_x, expected_y) = (next(batches) for batches in steps)
            np.testing.assert_array_equal(x, expected_x)
            np.testing.assert_array_equal(y, expected_y)


def test_replaced_object_raises(place: Place) -> None:
    place.put("replaced.npy", npy(ROWS))
    rows = lowtide.open(f"{place.prefix}/replaced.npy", storage_options=place.options)
    place.put("replaced.npy", npy(ROWS + 1))
    with refused(FileChangedError, f"{place.prefix}/replaced.npy", "open it again"):
        rows[50_000:50_010]


def test_missing_and_denied_objects_raise(place: Place) -> None:
    with refused(NotFoundError, f"{place.prefix}/none.npy", "no such object"):
        lowtide.open(f"{place.prefix}/none.npy", storage_options=place.options)
    place.put("denied.npy", npy(ROWS))
    with refused(AccessError, f"{place.prefix}/denied.npy", "access denied"):
        lowtide.open(f"{place.prefix}/denied.npy", storage_options=place.denied)


def test_azure_is_written_and_listed(servers_folder: Path, tmp_path: Path) -> None:
    place = azure(servers_folder)
    address = f"{place.prefix}/written/rows.npy"
    with lowtide.create(address, "<i4", row_shape=7, storage_options=place.options) as out:
        out.append(ROWS)
    np.testing.assert_array_equal(lowtide.open(address, storage_options=place.options)[:], ROWS)
    (tmp_path / "text.txt").write_text("a document " * 3000)
    lowtide.prepare(tmp_path / "text.txt", tmp_path / "corpus", workers=1, shard_tokens=5000)
    target = f"{place.prefix}/written/corpus"
    lowtide.copy(tmp_path / "corpus", target, storage_options=place.options)
    corpus = lowtide.corpus(target, storage_options=place.options)
    np.testing.assert_array_equal(corpus[:], lowtide.corpus(tmp_path / "corpus")[:])


def test_untrusted_certificate_raises(servers_folder: Path) -> None:
    address = f"https://localhost:{servers.shared('https', servers_folder)}/x.npy"
    with refused(ReadError, address, "certificate is not trusted (UnknownIssuer)", "root_certificate"):
        lowtide.open(address, storage_options={"retry_timeout": "1s"})


def test_certificate_from_environment_is_trusted(
    servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = servers.shared("https", servers_folder)
    data = servers_folder / "https-data"
    write(data / "environment.npy", npy(ROWS))
    monkeypatch.setenv("SSL_CERT_FILE", str(data / servers.CERTIFICATE))
    code = f"import lowtide; print(lowtide.open('https://localhost:{port}/environment.npy')[7].tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(ROWS[7].tolist()), done.stderr
