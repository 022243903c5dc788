"""Ways to damage a file: seeded, so that a case can be repeated by its number."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

_INTEGERS = [
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
]
_NUMBERS = ["-1", "0", "1", "4294967296", "9223372036854775808", "1" + "0" * 30, "1e400", "-0.0", "NaN"]
_STRINGS = [
    "",
    "\0",
    "../../../../etc/passwd",
    "/etc/passwd",
    "a" * 5000,
    "\ud800",
    "\x1b[31m",
    "%s%n",
    "�",
    "\n",
]
_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    [],
    {},
]
_VALUES += [[[]], {"": {}}, [None] * 100, *_STRINGS]
_DEPTH = 100_000


def mutate(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one to four damages, by its structure where it is JSON and by its bytes elsewhere.

    What is compressed or has checksums is mostly damaged inside, or no damage would come behind them.
    """
    if data[:2] == b"\x1f\x8b" and rng.random() < 0.7:
        with contextlib.suppress(OSError, EOFError, zlib.error):
            return gzip.compress(mutate(gzip.decompress(data), rng), 1, mtime=0)
    if data[:4] == zstandard.FRAME_HEADER and rng.random() < 0.7:
        with contextlib.suppress(zstandard.ZstdError):
            return zstandard.compress(mutate(zstandard.decompress(data), rng), 1)
    if data[:4] == b"PK\x03\x04" and rng.random() < 0.4:
        return _inside_zip(data, rng)
    length = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and length <= len(data) and rng.random() < 0.7:  # safetensors
        header = mutate(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kinds = _BYTES
        if data[:1] in (b"{", b"[") and rng.random() < 0.7:
            kinds = _JSON
        data = rng.choice(kinds)(data, rng)
    return data


def _inside_zip(data: bytes, rng: random.Random) -> bytes:
    """A zip whose checksums are right, with one member damaged."""
    rebuilt = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(rebuilt, "w") as damaged:
        victim = rng.choice(archive.namelist())
        for member in archive.infolist():
            content = archive.read(member)
            plain = zipfile.ZipInfo(member.filename)
            plain.compress_type = member.compress_type
            damaged.writestr(plain, mutate(content, rng) if member.filename == victim else content)
    return rebuilt.getvalue()


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[_place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite_byte(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\xff"
    changed = bytearray(data)
    changed[_place(data, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


def _overwrite_integer(data: bytes, rng: random.Random) -> bytes:
    code, width = rng.choice((("H", 2), ("I", 4), ("Q", 8)))
    value = rng.choice(_INTEGERS) + rng.choice((-1, 0, 0, 1))
    packed = struct.pack(rng.choice("<>") + code, value % 2 ** (8 * width))
    at = _place(data, rng)
    return data[:at] + packed + data[at + width :]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _extend(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b"\0", b"\n", data[:64], rng.randbytes(rng.randrange(1, 64)), b"\0" * 5000))


def _delete(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, 64, 512)) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return (
        data[:at]
        + rng.choice((b"\0", b"'", b'"', b"}", b"(", b",", b"\xff\xfe", rng.randbytes(8)))
        + data[at:]
    )


def _repeat(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    length = rng.choice((1, 8, 64, 256))
    return data[: at + length] + data[at : at + length] * rng.choice((1, 1, 30)) + data[at + length :]


def _swap(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted((_place(data, rng), _place(data, rng)))
    length = min(rng.choice((1, 4, 8, 64)), second - first)
    return (
        data[:first]
        + data[second : second + length]
        + data[first + length : second]
        + data[first : first + length]
        + data[second + length :]
    )


def _zero(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    length = rng.choice((4, 64, 4096))
    return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]


def _written_number(data: bytes, rng: random.Random) -> bytes:
    """Another number where digits stand: headers are often text."""
    digits = list(re.finditer(rb"\d+", data[:65536]))
    if not digits:
        return _overwrite_integer(data, rng)
    result = rng.choice(digits)
    return data[: result.start()] + rng.choice(_NUMBERS).encode() + data[result.end() :]


def _nest(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    opening = rng.choice((b"[", b"(", b'{"a":', b"-"))
    return data[:at] + opening * rng.choice((50, 2000, _DEPTH)) + data[at:]


def _json_value(data: bytes, rng: random.Random) -> bytes:
    """Another value at a random place of the document, a key less, or a key more."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _flip(data, rng)
    containers = [document]
    for container in containers:
        children = container.values() if isinstance(container, dict) else container
        containers.extend(child for child in children if isinstance(child, dict | list))
    container = rng.choice(containers)
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    kind = rng.random()
    if keys and kind < 0.75:
        container[rng.choice(keys)] = rng.choice(_VALUES)
    elif keys and kind < 0.9:
        del container[rng.choice(keys)]
    elif isinstance(container, dict):
        container[rng.choice(_STRINGS)] = rng.choice(_VALUES)
    else:
        container.append(rng.choice(_VALUES))
    return json.dumps(document).encode("utf8", "surrogatepass")


def _json_deep(data: bytes, rng: random.Random) -> bytes:
    """A value nested deeper than any parser's stack."""
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = rng.choice((500, 5000, _DEPTH))
    values = list(re.finditer(rb":\s*", data[:65536]))
    deep = opening * depth + b"1" + closing * depth
    if not values:
        return deep
    at = rng.choice(values).end()
    return data[:at] + deep + rng.choice((b",", b"}", b"")) + data[at:]


def _json_duplicate(data: bytes, rng: random.Random) -> bytes:
    """A key that stands twice."""
    keys = list(re.finditer(rb'"[^"]{0,100}"\s*:', data[:65536]))
    if not keys:
        return _flip(data, rng)
    key = rng.choice(keys)
    return data[: key.start()] + key.group() + b" 0, " + data[key.start() :]


def _place(data: bytes, rng: random.Random) -> int:
    """Anywhere, but mostly near the front or the end, where headers and indexes are."""
    if not data:
        return 0
    near = min(len(data), rng.choice((16, 64, 256, len(data))))
    at = rng.randrange(near)
    return at if rng.random() < 0.75 else len(data) - 1 - at


_Mutation = Callable[[bytes, random.Random], bytes]
_BYTES: list[_Mutation] = [
    *(_flip, _overwrite_byte, _overwrite_integer, _overwrite_integer, _truncate, _extend, _delete, _insert),
    *(_repeat, _swap, _zero, _written_number, _written_number, _nest),
]
_JSON: list[_Mutation] = [_json_value, _json_value, _json_value, _json_value, _json_deep, _json_duplicate]
