"""Small JSON files that carry a digest of their content, so that damage is noticed before it is believed.

The digest covers the file's name and a key too: a file of another run, or one that was put in the place of
another, does not match. It guards against damage, not against somebody who writes a file on purpose.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from lowtide import errors
from lowtide._io import publish

_HEAD = b'{"sha256": "%s", "content":\n'
_LARGEST = 2**30  # a million sources or shards have a quarter of it


def write(path: str, content: object, key: str = "", *, suffix: str = ".new", durable: bool = False) -> None:
    """A sealed file, whole or not at all; ``durable`` if it must outlast a loss of power.

    >>> write(str(tmp / "state.json"), {"consumed": 3}, key="this run")
    >>> read(str(tmp / "state.json"), key="this run"), read(str(tmp / "state.json"), key="another")
    ({'consumed': 3}, None)
    """
    data = json.dumps(content, indent=1).encode()
    try:
        with open(path + suffix, "wb") as file:
            file.write(_HEAD % _digest(path, key, data) + data + b"}\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(path + suffix, path)
        if durable:
            publish.sync_folder(os.path.dirname(path))
    except OSError as error:
        raise errors.writing(path, error) from error


def read(path: str, key: str = "") -> dict[str, Any] | None:
    """The content of a sealed file; None where it is missing, damaged or sealed with another key."""
    if not os.path.isfile(path):  # whatever else lies there, opening it may wait
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise errors.reading(path, error) from error
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
    named = json.dumps([os.path.basename(path), key]).encode()
    return hashlib.sha256(named + data).hexdigest().encode()
