"""Single requests to a store by obstore, with plain arguments and results, and lowtide's own errors.

They run in this process or, after a fork, in a helper process. obstore handles credentials, endpoints,
regions, proxies and retries, from the environment and from ``storage_options``.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from lowtide import errors
from lowtide._extras import library
from lowtide._io.remote.address import Address, Options, parse

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_LATE = re.compile(r"kind: Timeout|TimedOut|timed out")  # in the debug output of obstore
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
# Options that are not passed to a store of obstore.
_OWN = {"cache", "cache_dir", "in_flight", "part_size", "timeout", "retry_timeout"}
_OWN |= {"profile", "client_options", "retry_config"}
# Where obstore looks for a private endpoint, the most specific first.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CHUNK = 2**16  # bytes of an answer that are taken at once
_PARTS = 3  # of one object that are sent at once
_UPLOADS: dict[str, Any] = {}  # of this process
_STORES: dict[tuple[str, Options], Any] = {}  # clients of this process
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "ExpiredTokenException")
_LISTED = 2**22  # objects of one prefix: none has more


Take = Callable[[int, "Buffer"], None]
"""Takes bytes of an object, from an offset on."""


class Meta(NamedTuple):
    """The metadata of an object."""

    size: int
    etag: str | None
    modified_ns: int


class Listed(NamedTuple):
    """The objects under a prefix by name, and the names of prefixes below it."""

    objects: dict[str, Meta]
    prefixes: list[str]


def get(
    address: str,
    options: Options,
    start: int,
    stop: int,
    etag: str | None,
    modified_ns: int,
    take: Take | None = None,
) -> tuple[Meta, Buffer]:
    """Bytes ``start`` to ``stop``, fewer at the end of the object, if its ETag is still the same.

    Without an ETag, or with a weak one, the modification time is compared. ``take`` is called with pieces as
    they arrive, so that they need not be held; then none are returned.
    """
    conditions: dict[str, Any] = {"range": (start, stop)}
    if etag is not None and not etag.startswith("W/"):
        conditions["if_match"] = etag
    elif modified_ns > 0:
        conditions["if_unmodified_since"] = datetime.fromtimestamp(modified_ns // 10**9, UTC)
    place, what = parse(address), f"bytes {start} to {stop}"
    try:
        with _translated(address, what):
            result = _obstore().get(client_of(place, options), place.path, options=conditions)
            meta, data, count = _meta(result.meta), b"", 0
            if take is None:
                data = result.bytes()
                count = len(data)
            elif result.range[0] == start:
                check_same(address, meta, etag, modified_ns)
                for piece in result.stream(min_chunk_size=_CHUNK):
                    take(start + count, piece)
                    count += len(piece)
    except errors.TruncatedFileError as error:
        # Also raised if an answer was longer than its range, and obstore requested the rest of it.
        there = head(address, options)
        if there is not None and start < there.size:
            raise _wrong(address, what, "another length than it announced") from error
        raise
    if result.range[0] != start or count != min(stop, meta.size) - start:
        raise _wrong(address, what, f"{count} bytes from byte {result.range[0]} on")
    return meta, data


def head(address: str, options: Options) -> Meta | None:
    """Size and ETag of an object; None if there is none."""
    place = parse(address)
    if not place.path and not place.query:
        return None
    with _translated(address), suppress(FileNotFoundError):
        return _meta(_obstore().head(client_of(place, options), place.path))
    return None


def list_prefix(address: str, options: Options, deep: bool, limit: int = _LISTED) -> Listed:
    """What is directly under a prefix, or with ``deep`` the objects below it, at least the first ``limit``.

    Names are relative to the prefix. A page has up to 1,000 of them, and is one request.
    """
    place = parse(address)
    prefix = f"{place.key}/" if place.key else ""
    listed = Listed({}, [])
    with _translated(address, "its list"):
        store = client_of(place, options)
        if deep:
            pages = _obstore().list(store, prefix or None, chunk_size=min(limit, 1000))
        else:
            level = _obstore().list_with_delimiter(store, prefix or None)
            listed.prefixes.extend(name.removeprefix(prefix) for name in level["common_prefixes"])
            pages = [level["objects"]]
        for page in pages:
            listed.objects.update((one["path"].removeprefix(prefix), _meta(one)) for one in page)
            if len(listed.objects) >= limit:
                break
    return listed


def put(address: str, options: Options, data: bytes) -> Meta:
    """Write a small object, all of it or nothing."""
    place = parse(address)
    with _translated(address, writing=True):
        result = _obstore().put(client_of(place, options), place.path, data, use_multipart=False)
    return Meta(len(data), result["e_tag"], 0)


def delete(address: str, options: Options) -> None:
    """Remove an object, if it exists."""
    place = parse(address)
    with _translated(address, writing=True), suppress(FileNotFoundError):
        _obstore().delete(client_of(place, options), place.path)


def start_upload(address: str, options: Options, number: str) -> None:
    """Start to write an object; the first request is sent when a part is full."""
    place = parse(address)
    with _translated(address, writing=True):
        _UPLOADS[number] = _obstore().open_writer(
            client_of(place, options), place.path, buffer_size=options.part_size, max_concurrency=_PARTS
        )


def write_upload(address: str, options: Options, number: str, data: bytes) -> None:  # noqa: ARG001
    """Add bytes to an object that is being written; waits while enough parts are under way."""
    with _translated(address, writing=True):
        _UPLOADS[number].write(data)


def finish_upload(address: str, options: Options, number: str) -> None:  # noqa: ARG001
    """Make the object visible."""
    with _translated(address, writing=True):
        _UPLOADS.pop(number).close()


def abort_upload(address: str, options: Options, number: str) -> None:  # noqa: ARG001
    """Discard what was sent of an object."""
    upload = _UPLOADS.pop(number, None)
    if upload is not None:
        with _translated(address, writing=True):
            upload.__exit__(InterruptedError, InterruptedError(), None)  # obstore aborts if its block fails


def _obstore() -> Any:
    return library("obstore", "an address such as s3://bucket/key", "remote")


def client_of(place: Address, options: Options) -> Any:
    """The client of a bucket or server; one for each set of options."""
    key = place.root, options
    if key not in _STORES:
        try:
            _STORES[key] = _created(place, options)
        except errors.LowtideError:
            raise
        except Exception as error:  # obstore has a class for each way in which options are wrong
            raise errors.ArgumentError(
                f"{place.root}: the store cannot be opened ({_brief(error)}); check the address and "
                "storage_options"
            ) from error
    return _STORES[key]


def _created(place: Address, options: Options) -> Any:
    _obstore()
    from obstore import store as kinds

    given = options.values
    client: dict[str, Any] = {"timeout": timedelta(seconds=options.seconds("timeout"))}
    # Both the retries and the last of them have an end: the sum is the deadline.
    retry = {"max_retries": 10, "retry_timeout": timedelta(seconds=options.seconds("retry_timeout"))}
    names = ("endpoint", "endpoint_url", "base_url", "azure_storage_endpoint", "google_base_url")
    endpoints = [given.get(name) for name in names]
    endpoints += [os.environ.get(name) for name in _ENDPOINTS.get(place.scheme, ())]
    endpoint = next((one for one in endpoints if one), "")
    if place.scheme == "http" or str(endpoint).startswith("http://"):
        client["allow_http"] = True  # the caller wrote http
    client.update(given.get("client_options") or {})
    retry.update(given.get("retry_config") or {})
    both: dict[str, Any] = {"client_options": client, "retry_config": retry}
    settings = {name: value for name, value in given.items() if name not in _OWN}
    if place.is_web:
        if settings:
            raise errors.ArgumentError(
                f"{place.root}: storage_options of a web server are timeout, retry_timeout, in_flight, "
                f"client_options and retry_config, got {', '.join(settings)}; leave them out"
            )
        return kinds.HTTPStore.from_url(place.root, **both)
    if place.scheme == "s3":
        settings.update(_of_profile(given))
    kind = {"s3": kinds.S3Store, "gs": kinds.GCSStore, "az": kinds.AzureStore}[place.scheme]
    return kind(place.host, **settings, **both)


def _of_profile(given: Mapping[str, Any]) -> dict[str, Any]:
    """The credentials of an AWS profile, if one is specified and no credentials are."""
    profile = given.get("profile") or os.environ.get("AWS_PROFILE")
    is_needed = "profile" in given or "AWS_ACCESS_KEY_ID" not in os.environ
    keys = ("access_key_id", "aws_access_key_id", "credential_provider", "skip_signature")
    if not profile or not is_needed or any(name in given for name in keys):
        return {}
    boto3 = library("boto3", f"the AWS profile {profile!r}", "remote")
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider(boto3.Session(profile_name=profile))}


def _meta(meta: Any) -> Meta:
    modified = meta["last_modified"]
    seconds = int(modified.timestamp()) if modified is not None else 0
    return Meta(meta["size"], meta["e_tag"] or None, max(0, seconds) * 10**9)


@contextmanager
def _translated(address: str, what: str = "", writing: bool = False) -> Iterator[None]:
    try:
        yield
    except errors.LowtideError:
        raise
    except Exception as error:
        raise translated(address, what, error, writing=writing) from error


def translated(address: str, what: str, error: Exception, *, writing: bool = False) -> errors.LowtideError:
    """The lowtide exception for an error of obstore; ``what`` was requested from ``address``."""
    name, text = type(error).__name__, _brief(error)
    status = _STATUS.search(text)
    code = int(status[1]) if status else 0
    detail = f"({what}: {text})" if what else f"({text})"
    if isinstance(error, FileNotFoundError) or code == 404:
        return errors.missing(address, f"no such object {detail}; check the bucket and the key")
    is_expired = any(one in text for one in _EXPIRED)
    if name in ("PermissionDeniedError", "UnauthenticatedError") or code in (401, 403) or is_expired:
        remedy = "check the credentials (environment, profile or storage_options) and what they allow"
        problem = "access denied"
        if is_expired:
            problem, remedy = "the credentials have expired", "renew them, and resume"
        denied = errors._DeniedWriteError if writing else errors.AccessError
        return denied(errno.EACCES, f"{problem} {detail}; {remedy}", address)
    if name == "PreconditionError" or code == 412:
        return _replaced(address, detail)
    if code == 416:
        return errors.TruncatedFileError(
            f"{address}: was truncated since it was opened {detail}; restore it and open it again"
        )
    if name == "NotSupportedError" or "range request" in text.lower():
        return errors.UnsupportedError(
            f"{address}: the server does not support this request {detail}; use a server with range "
            "requests, or copy the object with `lowtide copy`"
        )
    if "169.254.169.254" in text:
        return errors.AccessError(
            errno.EACCES,
            f"no credentials were found {detail}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass "
            "storage_options={'skip_signature': True} for public data",
            address,
        )
    kind = errors.WriteError if writing else errors.ReadError
    if (certificate := _CERTIFICATE.search(str(error))) is not None:
        return kind(
            errno.EIO,
            f"the server's certificate is not trusted ({certificate[1]}); pass that of its authority as "
            "storage_options={'client_options': {'root_certificate': PEM}}, or set SSL_CERT_FILE",
            address,
        )
    late = _LATE.search(str(error)) is not None
    number = errno.ETIMEDOUT if late else errno.EIO
    problem = "the store did not answer in time" if late else "the store or the connection to it failed"
    return kind(
        number,
        f"{problem} {detail}; try again, or raise timeout and retry_timeout in storage_options",
        address,
    )


def _wrong(address: str, what: str, answer: str) -> errors.ReadError:
    return errors.ReadError(
        errno.EIO,
        f"the server sent a wrong answer ({what}: {answer}); check the server and proxies on the way",
        address,
    )


def check_same(path: str, meta: Meta, etag: str | None, modified_ns: int) -> None:
    """Raise if an answer is of another object than the opened one: a server may ignore conditions."""
    if etag is not None and meta.etag is not None:
        changed, evidence = etag != meta.etag, f"ETag {meta.etag}, expected {etag}"
    else:
        changed = bool(modified_ns and meta.modified_ns) and modified_ns != meta.modified_ns
        evidence = "another time of modification"
    if changed:
        raise _replaced(path, f"({evidence})")


def _replaced(path: str, evidence: str) -> errors.FileChangedError:
    problem = f"was replaced by another object since it was opened {evidence}; open it again"
    return errors.changed(path, problem)


def _brief(error: Exception) -> str:
    """One line of obstore's report: the request, the status, the store's own code."""
    text = str(error).partition("\n\nDebug source")[0]
    code = _CODE.search(text)
    line = " ".join(text.partition("<?xml")[0].split()).rstrip(": ")
    line = re.sub(r"([?&](?:X-Amz-[A-Za-z]+|sig|Signature))=[^&\s]*", r"\1=…", line)
    return f"{line[:400]}{f', {code[1]}' if code else ''}"


def forget() -> None:
    """In a forked child, in which no client of the parent works."""
    _STORES.clear()
    _UPLOADS.clear()
