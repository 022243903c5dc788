"""Addresses and storage options."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lowtide._io import store
from lowtide._io.remote.address import Options, options_for, parse, recognises, remember, using
from lowtide.errors import ArgumentError


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("s3://bucket/a/b.npy", ("s3", "bucket", "a/b.npy", "")),
        ("S3://Bucket//a/", ("s3", "Bucket", "a", "")),
        ("gs://bucket", ("gs", "bucket", "", "")),
        ("s3://bucket/what?.bin", ("s3", "bucket", "what?.bin", "")),
        ("https://host:1/x.npy?sig=1&b=2", ("https", "host:1", "x.npy", "?sig=1&b=2")),
    ],
)
def test_address_is_split_into_parts(path: str, parts: tuple[str, ...]) -> None:
    assert tuple(parse(path)) == parts


def test_query_belongs_to_the_root() -> None:
    address = parse("https://host/x.npy?sig=1")
    assert (address.root, address.path, str(address)) == (
        "https://host/x.npy?sig=1", "", "https://host/x.npy?sig=1",
    )  # fmt: skip
    assert (parse("s3://b/k").root, parse("s3://b/k").path) == ("s3://b/", "k")


@pytest.mark.parametrize("path", ["x.npy", "/data/x.npy", "C:/x.npy", "s3/x.npy", "ftp://host/x", "file://x"])
def test_other_paths_are_not_addresses(path: str) -> None:
    assert not recognises(path)
    assert not path.startswith("/") or store.absolute(path) == path


@pytest.mark.parametrize("path", ["s3:///key", "s3:/bucket/key", "az:/x"])
def test_address_without_bucket_raises(path: str) -> None:
    with pytest.raises(ArgumentError, match="s3://bucket/key"):
        parse(path)


@pytest.mark.parametrize(
    "values", [{"timeout": "soon"}, {"timeout": 0}, {"retry_timeout": True}, {"in_flight": "1 KiB"}, ["a"]]
)
def test_wrong_options_are_refused(values: Any) -> None:
    with pytest.raises(ArgumentError):
        Options(values)


def test_options_compare_pickle_and_hide_secrets() -> None:
    options = Options({"secret_access_key": "hidden", "timeout": 2, "in_flight": "2 MiB"})
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert hash(copy) == hash(options)
    assert copy != Options()
    assert "hidden" not in repr(options)
    assert (options.seconds("timeout"), options.in_flight, options.deadline) == (2, 2**21, 127)


def test_options_in_use_take_precedence() -> None:
    address = parse("s3://some-bucket/x")
    given, other = Options({"region": "a"}), Options({"region": "b"})
    assert options_for(address) == Options()
    with using(given):
        assert options_for(address) == given
    assert options_for(address) == given  # what is opened later, such as an index
    remember(address, other)
    assert options_for(address) == given
    with using(None):
        assert options_for(address) == Options()
