"""Addresses such as ``s3://bucket/key``, and the storage options to reach them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from lowtide._sizes import parse_size
from lowtide.errors import ArgumentError

SCHEMES = ("s3", "gs", "az", "https", "http")
IN_FLIGHT = 16 * 2**20
"""Bytes of requests under way in one process, by default."""
PART = 8 * 2**20
"""Bytes of one part of an object that is written, by default."""

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9]*)://([^/?#]*)/*([^?#]*)([?#].*)?", re.DOTALL)
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/[^/]", re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)")
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


class Options:
    """The ``storage_options`` of a caller; their values are never shown, since some are secrets.

    >>> Options({"secret_access_key": "x"})
    <storage options: secret_access_key>
    >>> Options({"timeout": "250ms"}).seconds("timeout")
    0.25
    """

    __slots__ = ("_key", "values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise ArgumentError(f"storage_options must be a dict, got {type(values).__name__}")
        self.values = {"timeout": "30s", "retry_timeout": "120s", **(values or {})}
        import json

        self._key = json.dumps(self.values, sort_keys=True, default=repr)
        self.seconds("timeout"), self.seconds("retry_timeout")
        if self.in_flight < 2**20:
            raise ArgumentError(f"in_flight must be at least 1 MiB, got {self.values['in_flight']!r}")
        if self.cache is not None and self.cache[1] < 4 * 2**20:
            raise ArgumentError(f"cache must be at least 4 MiB, got {self.cache[1]} bytes")
        if self.part_size < 5 * 2**20:  # the limit of S3
            raise ArgumentError(f"part_size must be at least 5 MiB, got {self.values['part_size']!r}")

    def seconds(self, name: str) -> float:
        """A duration: a number of seconds, or text such as ``"30s"``."""
        value = self.values[name]
        match = _SECONDS.fullmatch(value) if isinstance(value, str) else None
        seconds = float(match[1]) * _UNITS[match[2]] if match else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise ArgumentError(f"storage_options: {name} must be a duration such as '30s', got {value!r}")
        return seconds

    @property
    def in_flight(self) -> int:
        """The most bytes of requests under way."""
        return parse_size(self.values.get("in_flight", IN_FLIGHT))

    @property
    def part_size(self) -> int:
        """Bytes of one part of an object that is written."""
        return parse_size(self.values.get("part_size", PART))

    @property
    def cache(self) -> tuple[str, int] | None:
        """Folder and size in bytes of the cache on disk; None without one."""
        folder = self.values.get("cache_dir") or os.environ.get("LOWTIDE_CACHE_DIR")
        size = self.values.get("cache") or os.environ.get("LOWTIDE_CACHE")
        if not folder:
            return None
        if not size:
            raise ArgumentError("cache_dir needs cache, the bytes that it may take, such as cache='20 GiB'")
        return os.fspath(folder), parse_size(size)

    @property
    def deadline(self) -> float:
        """Seconds after which a request with all of its retries has failed."""
        return self.seconds("retry_timeout") + self.seconds("timeout") + 5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        defaults = ("timeout", "retry_timeout")
        return f"<storage options: {', '.join(name for name in self.values if name not in defaults)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (self.values,)


class Address(NamedTuple):
    """The parts of an address."""

    scheme: str
    host: str
    """The bucket, the container, or host and port."""
    key: str
    query: str

    @property
    def is_web(self) -> bool:
        """Whether it is on a web server, of which few can list."""
        return self.scheme in ("http", "https")

    @property
    def root(self) -> str:
        """What one client serves: a bucket, a web server, or with a query one file."""
        return f"{self.scheme}://{self.host}/" + (f"{self.key}{self.query}" if self.query else "")

    @property
    def path(self) -> str:
        """The key relative to the root."""
        return "" if self.query else self.key

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.key}{self.query}"


def recognises(path: str) -> bool:
    """Whether ``path`` is an address, or one in which ``pathlib`` has collapsed the slashes.

    >>> recognises("s3://bucket/x.npy"), recognises("s3:/bucket/x.npy"), recognises("data/x.npy")
    (True, True, False)
    """
    scheme, colon, rest = path.partition(":/")
    return bool(colon) and bool(rest) and scheme.lower() in SCHEMES


def parse(path: str) -> Address:
    """The parts of an address.

    >>> parse("s3://bucket/corpus/")
    Address(scheme='s3', host='bucket', key='corpus', query='')
    >>> parse("s3:/bucket/x.npy")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: s3:/bucket/x.npy: is not an address, since pathlib removes a slash; ...
    """
    if _COLLAPSED.match(path):
        raise ArgumentError(
            f"{path}: is not an address, since pathlib removes a slash; pass a str such as 's3://bucket/key'"
        )
    match = _ADDRESS.fullmatch(path)
    if match is None or not match[2]:
        raise ArgumentError(f"{path}: has no bucket or host; pass an address such as 's3://bucket/key'")
    scheme, host, key, query = match[1].lower(), match[2], match[3], match[4] or ""
    if query and scheme not in ("http", "https"):  # a key of a bucket may hold any character
        key, query = key + query, ""
    return Address(scheme, host, key.rstrip("/"), query)


_CURRENT: ContextVar[Options | None] = ContextVar("lowtide_storage_options", default=None)
_LAST: dict[tuple[str, str], Options] = {}


@contextmanager
def using(values: Mapping[str, Any] | Options | None) -> Iterator[None]:
    """Open paths in the block with these storage options."""
    token = _CURRENT.set(values if isinstance(values, Options) else Options(values))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def options_for(address: Address) -> Options:
    """The options of the block, or outside of one those with which the bucket was last opened."""
    current = _CURRENT.get()
    place = address.scheme, address.host
    if current is None:
        return _LAST.get(place) or Options()
    _LAST[place] = current
    return current


def remember(address: Address, options: Options) -> None:
    """Use options from a pickle for paths that this process opens later."""
    _LAST.setdefault((address.scheme, address.host), options)
