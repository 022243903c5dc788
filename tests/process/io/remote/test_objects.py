"""The same rows and batches from a bucket and from files, bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowtide
from lowtide._arrays.formats import members
from lowtide._io import store
from lowtide.errors import (
    AccessError,
    ArgumentError,
    FormatError,
    NotAFileError,
    NotFoundError,
    UnsupportedError,
)
from tests.fuzz.arrays import TARGETS
from tests.support.buckets import CORPORA, npy, some_batches, upload
from tests.support.formats import refused
from tests.support.proxy import Exchange, FaultProxy
from tests.support.servers import BUCKET, KEY, READER, SECRET, ObjectServer

ORDERS = ("shuffle", "random", "blocks", "sequential", "documents", "packed")


@pytest.fixture
def environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and endpoint as a user has them."""
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def matrix(object_server: ObjectServer) -> tuple[str, np.ndarray]:
    import obstore

    rows = np.random.default_rng(0).integers(0, 2**31, (3000, 7, 5)).astype("<i4")
    obstore.put(object_server.store(), "matrix.npy", npy(rows))
    return f"s3://{BUCKET}/matrix.npy", rows


ARRAYS = ("npy", "npz", "safetensors", "hdf5")


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("kind", ARRAYS)
def test_every_array_format_is_read_in_place(kind: str, object_server: ObjectServer, tmp_path: Path) -> None:
    [target] = [target for target in TARGETS if target.name == kind]
    target.make(tmp_path)
    prefix = upload(object_server, tmp_path, f"arrays/{kind}")
    compared = 0
    for path in sorted(tmp_path.iterdir()):
        for member in members(path):
            name, address = member.name, f"{prefix}/{path.name}"
            if member.error is not None:
                with pytest.raises(type(member.error)):
                    lowtide.open(address, name=name)
                continue
            file, remote = lowtide.open(path, name=name), lowtide.open(address, name=name)
            assert (file.dtype, file.shape) == (remote.dtype, remote.shape)
            np.testing.assert_array_equal(file[:], remote[:])
            compared += 1
    assert compared


@pytest.mark.usefixtures("environment")
def test_lists_globs_prefixes_and_raw_objects_are_read(object_server: ObjectServer, tmp_path: Path) -> None:
    rows = np.arange(60, dtype="<f4").reshape(12, 5)
    for i in range(3):
        np.save(tmp_path / f"part-{i}.npy", rows[4 * i : 4 * i + 4])
    rows.tofile(tmp_path / "raw.bin")
    prefix = upload(object_server, tmp_path, "many")
    names = [f"{prefix}/part-{i}.npy" for i in range(3)]
    for path in (f"{prefix}/", prefix, f"{prefix}/part-*.npy", f"{prefix}/part-[0-9].npy", names):
        array = lowtide.open(path)
        np.testing.assert_array_equal(array[:], rows)
        np.testing.assert_array_equal(array[[11, 0, 5]], rows[[11, 0, 5]])
    assert lowtide.open(names).path == names[0]
    np.testing.assert_array_equal(lowtide.open(f"{prefix}/raw.bin", "<f4", (-1, 5))[3], rows[3])


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("kind", CORPORA)
def test_every_token_format_gives_the_same_batches(
    kind: str, object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make, below, options = CORPORA[kind]
    folder = tmp_path / "files"
    folder.mkdir()
    make(folder)
    prefix = upload(object_server, folder, f"corpora/{kind}")
    file = lowtide.corpus(folder / below, **options)
    remote = lowtide.corpus(f"{prefix}/{below}", **options)
    assert (remote.format, remote.dtype, remote.eos, len(remote)) == (
        file.format, file.dtype, file.eos, len(file),
    )  # fmt: skip
    np.testing.assert_array_equal(remote[:], file[:])
    for number, order in enumerate(ORDERS):
        if order in ("documents", "packed") and not file.has_documents:
            continue
        ranks = 1 + number % 4
        for one, other in zip(
            some_batches(remote, order, ranks), some_batches(file, order, ranks), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    if file.has_documents:
        assert remote.documents.count == file.documents.count
        np.testing.assert_array_equal(remote.document(-1), file.document(-1))
    monkeypatch.undo()


INDEXES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3000, 2999),
    st.slices(3000),
    st.lists(st.integers(-3000, 2999), max_size=20).map(lambda rows: np.array(rows, np.int64)),
    st.tuples(st.slices(3000), st.integers(0, 6)),
    st.tuples(st.integers(0, 2999), st.slices(7), st.slices(5)),
    st.tuples(st.just(Ellipsis), st.integers(0, 4)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=INDEXES)
@pytest.mark.usefixtures("environment")
def test_indexing_matches_numpy(index: Any, matrix: tuple[str, np.ndarray]) -> None:
    address, rows = matrix
    array = lowtide.open(address)
    np.testing.assert_array_equal(array[index], rows[index])


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("order", ["sequential", "shuffle", "blocks"])
def test_chunks_match_files_and_give_every_row_once(
    order: Any, matrix: tuple[str, np.ndarray], tmp_path: Path
) -> None:
    address, rows = matrix
    np.save(tmp_path / "x.npy", rows)
    file, remote = lowtide.open(tmp_path / "x.npy"), lowtide.open(address)
    passes = [each.chunks(70, order=order, seed=3, rank=1, world_size=2) for each in (file, remote)]
    for one, other in zip(*passes, strict=True):
        np.testing.assert_array_equal(one, other)
    seen = np.concatenate([chunk[0] for chunk in remote.chunks(500, order=order, with_rows=True)])
    assert sorted(seen.tolist()) == list(range(3000))


@pytest.mark.usefixtures("environment", "matrix")
def test_errors_report_what_is_missing(object_server: ObjectServer) -> None:
    import obstore

    obstore.put(object_server.store(), "empty.npy", b"")
    for address in (f"s3://{BUCKET}/nothing.npy", "s3://no-such-bucket/x.npy"):
        with refused(NotFoundError, address, "check the bucket and the key"):
            lowtide.open(address)
    with refused(FormatError, f"s3://{BUCKET}/empty.npy", "0 bytes"):
        lowtide.open(f"s3://{BUCKET}/empty.npy")
    with refused(NotAFileError, "is a bucket"):
        with store.opened(f"s3://{BUCKET}"):
            pass
    with refused(UnsupportedError, "reader='memmap' reads local files"):
        lowtide.open(f"s3://{BUCKET}/matrix.npy", reader="memmap")
    with refused(UnsupportedError, "cannot be changed in place", "lowtide.copy"):
        lowtide.open(f"s3://{BUCKET}/matrix.npy", mode="r+")
    with refused(ArgumentError, "pathlib removes a slash"):
        lowtide.open(Path(f"s3://{BUCKET}/x.npy"))
    with refused(ArgumentError, "storage_options are for addresses"):
        lowtide.open("x.npy", storage_options={})
    with refused(NotFoundError, "no file matches this pattern"):
        lowtide.corpus(f"s3://{BUCKET}/nothing-*.bin")


def test_storage_options_override_environment(
    object_server: ObjectServer, matrix: tuple[str, np.ndarray]
) -> None:
    address, rows = matrix
    options = object_server.options
    for credentials in ({}, READER):
        array = lowtide.open(address, storage_options=options | credentials)
        np.testing.assert_array_equal(array[7], rows[7])
    with refused(AccessError, "SignatureDoesNotMatch", "check the credentials"):
        lowtide.open(address, storage_options=options | {"secret_access_key": "wrong"})
    with refused(ArgumentError, "storage_options"):
        lowtide.open(address, storage_options=options | {"no_such_option": 1})
    anonymous = {"endpoint": object_server.endpoint, "skip_signature": True}
    with refused(AccessError, address):
        lowtide.open(address, storage_options=anonymous)
    import obstore

    obstore.put(object_server.store("public"), "x.npy", npy(rows))
    assert lowtide.open("s3://public/x.npy", storage_options=anonymous).shape == rows.shape
    assert "hidden" not in repr(array._layout)


def test_profiles_are_read_by_boto3(
    object_server: ObjectServer,
    matrix: tuple[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, rows = matrix
    (tmp_path / "credentials").write_text(
        f"[bench]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = {"endpoint": object_server.endpoint, "region": "us-east-1"}
    array = lowtide.open(address, storage_options=options | {"profile": "bench"})
    np.testing.assert_array_equal(array[3], rows[3])
    monkeypatch.setenv("AWS_PROFILE", "bench")
    assert lowtide.open(address, storage_options=options | {"timeout": "20s"}).shape == rows.shape
    with refused(ArgumentError, "the store cannot be opened", "other"):
        lowtide.open(address, storage_options=options | {"profile": "other"})


def test_web_server_with_range_requests_is_read(
    web_server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = web_server
    rows = np.arange(4000, dtype="<f8").reshape(1000, 4)
    np.save(folder / "x y.npy", rows)
    array = lowtide.open(f"{address}/x y.npy")
    np.testing.assert_array_equal(array[[999, 3]], rows[[999, 3]])
    np.testing.assert_array_equal(lowtide.open(f"{address}/x y.npy?token=1")[5], rows[5])
    rows.tofile(folder / "train.bin")
    corpus = lowtide.corpus([f"{address}/train.bin"], dtype="uint16")
    np.testing.assert_array_equal(corpus[:], rows.view(np.uint16).ravel())
    with refused(UnsupportedError, "a web server does not list its files"):
        lowtide.corpus(f"{address}/*.bin", dtype="uint16")


def test_presigned_address_is_read_with_get_only(web_server: tuple[str, Path]) -> None:
    address, folder = web_server
    rows = np.arange(600, dtype="<u2")
    np.save(folder / "signed.npy", rows)

    def refuse(exchange: Exchange) -> None:
        if not exchange.status and exchange.method != "GET":
            exchange.status = 403

    proxy = FaultProxy(int(address.rpartition(":")[2]))
    proxy.faults.append(refuse)
    try:
        signed = f"{proxy.endpoint}/signed.npy?X-Amz-Signature=0123"
        np.testing.assert_array_equal(lowtide.open(signed)[:], rows)
        np.testing.assert_array_equal(lowtide.corpus(signed)[:], rows)
    finally:
        proxy.close()


def test_corpus_json_opens_with_few_requests(
    object_server: ObjectServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Its sizes are believed; a shard that is not as it says is noticed when it is read."""
    import obstore

    from lowtide._tokens.formats import own

    count, shards = 500, 300
    tokens = np.arange(count * shards, dtype="<u4").reshape(shards, count)
    client = object_server.store()
    listed = []
    for i, part in enumerate(tokens):
        digest = hashlib.sha256(part.tobytes()).hexdigest()
        listed.append(own.Shard(f"train-{i:05}.bin", count, digest))
        if i in (0, 7, shards - 1):
            obstore.put(client, f"large/train-{i:05}.bin", part.tobytes())
    manifest = own.Manifest("uint32", {"train": listed}, eos=0)
    obstore.put(client, "large/corpus.json", manifest.to_json().encode())
    options = object_server.options | {"endpoint": proxy.endpoint}
    corpus = lowtide.corpus(f"s3://{BUCKET}/large", storage_options=options)
    assert len(corpus) == count * shards
    assert len(proxy.exchanges) <= 8
    np.testing.assert_array_equal(corpus[7 * count : 7 * count + 5], tokens[7][:5])
    with refused(NotFoundError, "train-00008.bin"):
        corpus[8 * count]
    obstore.put(client, "large/train-00009.bin", b"short")
    with refused(FormatError, "train-00009.bin", "5 bytes, expected 2000"):
        corpus[9 * count]
    with refused(FormatError, "train-00009.bin", "bytes 1600 to 1604", "was truncated"):
        corpus[9 * count + 400]
