"""JSON from untrusted files, parsed in bounded memory or refused with lowtide's own errors.

``json.loads`` alone takes thirty times a file's size in memory, raises ``RecursionError`` for deeply nested
values, keeps the last of two equal keys, and accepts NaN and lone surrogates.
"""

from __future__ import annotations

import math
import os
import re

from lowtide._io.store import opened
from lowtide._printable import brief
from lowtide.errors import FormatError

MAX_MEMORY = 256 * 2**20
"""Bytes that a document may take as Python objects, by an upper bound."""
MAX_DEPTH = 100
"""Levels of nested lists and objects: more than any format needs, fewer than pickle can process."""

# The bytes that CPython 3.11 allocates at most for each of these characters in json.loads: a list or dict, an
# element and its pointer, a key with its pair and its place in the table.
_COSTS = {b"[": 120, b"{": 120, b",": 72, b":": 240}
_MAX_DIGITS = 100
_WIDE = re.compile(rb"[\xf0-\xf4]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def load(path: str | os.PathLike[str], *, limit: int, what: str, memory: int = MAX_MEMORY) -> object:
    """The JSON value in the file ``path``, of at most ``limit`` bytes; ``what`` names it in errors.

    ``memory`` is what its values may take, in bytes.

    >>> _ = (tmp / "settings.json").write_text('{"seed": 1337}')
    >>> load(tmp / "settings.json", limit=2**20, what="settings")
    {'seed': 1337}
    """
    with opened(path) as store:
        if store.size > limit:
            raise FormatError(
                f"{store.path}: cannot read the {what} ({store.size} bytes, expected at most {limit}); "
                "check that this is the intended file"
            )
        data = store.read(0, store.size, what)
        return parse(data, store.path, what, memory)


def parse(data: bytes, path: str | os.PathLike[str], what: str, limit: int = MAX_MEMORY) -> object:
    """The JSON value in ``data``, which comes from the file ``path``; ``what`` names it in errors.

    >>> parse(b'{"a": 1, "a": 2}', "index.json", "index")
    Traceback (most recent call last):
    lowtide.errors.FormatError: index.json: cannot read the index (invalid JSON: the key 'a' occurs ...
    """
    import json  # arrays need none

    where = f"{os.fspath(path)}: cannot read the {what}"
    memory = memory_of(data)
    if memory > limit:
        raise FormatError(
            f"{where} (its values take about {memory} bytes of memory, expected at most {limit}); "
            "check that this is the intended file"
        )
    try:
        value = json.loads(
            data.decode("utf8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_refuse,
        )
        _check_depth(value)
        if _SURROGATE.search(data):  # usually a pair, which is one character; a lone one cannot be encoded
            json.dumps(value, ensure_ascii=False).encode("utf8")
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FormatError(
            f"{where} (invalid JSON: {brief(problem)[1:-1]}), found {brief(data[:100])}: damaged or "
            "still being written; copy or write it again"
        ) from None
    return value


def invalid(where: str, value: object, expected: str, remedy: str = "write the file again") -> FormatError:
    """The error for a value that is not allowed in a file of this format; ``where`` is file and place.

    >>> print(invalid("corpus.json: eos", -1, "an integer >= 0"))
    corpus.json: eos is invalid (found -1, expected an integer >= 0); write the file again
    """
    return FormatError(f"{where} is invalid (found {brief(value)}, expected {expected}); {remedy}")


def memory_of(data: bytes) -> int:
    """The most memory, in bytes, that parsing JSON takes for objects and text."""
    # A str is as wide as its widest character. There are two, the text and its parts, and the bytes.
    width = 1 if data.isascii() else 4 if _WIDE.search(data) else 2
    return sum(data.count(mark) * cost for mark, cost in _COSTS.items()) + 2 * (1 + width) * len(data)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {brief(key)} occurs more than once")
            seen.add(key)
    return content


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:  # the time to read one is quadratic in its digits
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        _refuse(text)
    return value


def _refuse(text: str) -> None:
    raise ValueError(f"{brief(text)} is not a finite number")


def _check_depth(value: object) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise RecursionError
