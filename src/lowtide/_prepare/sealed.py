"""Small JSON files with a digest of their content, so that damage is detected before the content is used.

The digest covers the name of the file and a key as well: a file of another run, or one that was put in the
place of another, does not match. It guards against damage, not against forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from lowtide._io import atomic, store

_HEAD = b'{"sha256": "%s", "content":\n'
_LARGEST = 2**30  # bytes; a million inputs or shards take a quarter of it


def write(path: str, content: object, key: str = "", *, suffix: str = ".new", durable: bool = True) -> None:
    """Write a sealed file, complete or not at all; ``durable`` if it must survive a power failure.

    >>> write(str(tmp / "state.json"), {"consumed": 3}, key="this run")
    >>> read(str(tmp / "state.json"), key="this run"), read(str(tmp / "state.json"), key="another")
    ({'consumed': 3}, None)
    """
    data = json.dumps(content, indent=1).encode()
    data = _HEAD % _digest(path, key, data) + data + b"}\n"
    atomic.replace_file(path, data, suffix=suffix, durable=durable)


def read(path: str, key: str = "") -> dict[str, Any] | None:
    """The content of a sealed file; None if it is missing, damaged or sealed with another key."""
    if not store.is_file(path):
        return None
    with store.opened(path) as file:
        data = file.read_some(0, min(file.size, _LARGEST + 1))
    head = len(_HEAD % (b"0" * 64))
    inner = data[head:-2]
    if len(data) > _LARGEST or data != _HEAD % _digest(path, key, inner) + inner + b"}\n":
        return None
    content: dict[str, Any] = json.loads(inner)
    return content


def digest_of(content: object) -> str:
    """The digest of JSON content, as a key for other files."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest(path: str, key: str, data: bytes) -> bytes:
    context = json.dumps([os.path.basename(path), key]).encode()
    return hashlib.sha256(context + data).hexdigest().encode()
