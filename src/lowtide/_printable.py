"""Names and text from files and users, made safe to show in a terminal, a log or a page."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def printable(text: object, keep: str = "") -> str:
    r"""``str(text)`` with every character that is not printable written as its escape.

    A file name, the name of a tensor or a piece of a file may contain whatever its author chose: control
    sequences of terminals, newlines that look like more output, overrides of the text direction, or bytes
    that are not UTF-8 (surrogates, which no stream can encode).

    Parameters
    ----------
    text : object
        What to show.
    keep : str
        Characters to leave as they are, such as ``"\n"`` for a text of several lines.

    Examples
    --------
    >>> print(printable("a\x1b[31mred\nb\u202e.npy"))
    a\x1b[31mred\nb\u202e.npy
    >>> print(printable("caf\u00e9 \udcff.npy"))
    café \udcff.npy
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in shown
    )


def counted(number: int, noun: str) -> str:
    """A number and a noun, in the plural unless the number is 1.

    >>> counted(1, "shard"), counted(2000, "document")
    ('1 shard', '2,000 documents')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def signal_name(number: int) -> str:
    """The name of a signal; real-time signals have only a number.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, and the number of the others.

    >>> listed(["a", "b", "c"], most=2)
    'a, b, … 1 more'
    """
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def changes(
    before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None
) -> list[str]:
    """Describe how two mappings differ in ``names``, by default in all of their keys.

    >>> changes({"rows": 2, "seed": 0}, {"rows": 3, "seed": 0})
    ['rows was 2 and is 3']
    """
    return [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in names or sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def brief(value: object, limit: int = 200) -> str:
    """``repr(value)`` truncated to ``limit`` characters, for values from untrusted files.

    >>> brief("x" * 1000, limit=8)
    "'xxxxxxx…"
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits; a list nested too deep
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else text[:limit] + "…"
