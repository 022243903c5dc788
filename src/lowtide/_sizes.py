"""Sizes and counts: ``"64 MiB"`` to bytes and back, and arguments that must be integers."""

from __future__ import annotations

import operator
import re

from lowtide.errors import ArgumentError

_UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", 1):
    _UNITS |= {_prefix: 1024**_power, f"{_prefix}ib": 1024**_power, f"{_prefix}b": 1000**_power}
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_size(size: int | str) -> int:
    """Return the bytes of ``size``: an integer, a number with a unit, or a percentage.

    A percentage is of the memory that this process may still take, by ``lowtide.memory.available``.

    >>> parse_size("64 MiB"), parse_size("1.5k"), parse_size("2GB"), parse_size(10)
    (67108864, 1536, 2000000000, 10)
    >>> 0 < parse_size("25%") < parse_size("75%")
    True
    """
    if isinstance(size, str):
        if size.rstrip().endswith("%"):
            return _parse_percentage(size)
        number = _scaled(size, _UNITS)
        if number is None:
            raise ArgumentError(
                f"size {size!r} is not understood; write bytes, or a number with KiB, MiB, GiB, TiB or %"
            )
        return number
    if int(size) < 0:
        raise ArgumentError(f"size must not be negative, got {size!r}")
    return int(size)


def _scaled(text: str, units: dict[str, int]) -> int | None:
    """The value of a number with a unit, exact however large; None if it is not one."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in units:
        return None
    digits, _, part = match[1].partition(".")
    return int(digits + part) * units[match[2].lower()] // int(10 ** len(part))


def _parse_percentage(size: str) -> int:
    from lowtide._memory.available import available  # which imports this module

    match = _SIZE.fullmatch(size.rstrip()[:-1])
    percent = float(match[1]) if match and not match[2] else -1.0
    if not 0 <= percent <= 100:
        raise ArgumentError(
            f"size {size!r} is not understood; write a number from 0 to 100 before %, as in 25%"
        )
    return int(available() * percent / 100)


def parse_count(count: int | str) -> int:
    """Return the integer that ``count`` stands for: k, M, G (or B) and T are powers of ten.

    >>> parse_count("100M"), parse_count("1.5B"), parse_count("20_000"), parse_count(7)
    (100000000, 1500000000, 20000, 7)
    """
    if not isinstance(count, str):
        return whole("count", count)
    number = _scaled(count.replace("_", "").replace(",", ""), _FACTORS)
    if number is None:
        raise ArgumentError(f"count {count!r} is not understood; write a number, or one with k, M, G or T")
    return number


def format_size(size: float) -> str:
    """Format ``size`` bytes in the largest binary unit that keeps it at or above one.

    >>> format_size(0), format_size(648), format_size(3 * 2**30 // 2), format_size(2**30 - 1)
    ('0 B', '648 B', '1.5 GiB', '1.0 GiB')
    """
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor - 0.05 * (factor // 1024):  # the unit below would round to 1024.0
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return the argument ``name`` as a Python int, also if it is an integer of NumPy.

    >>> whole("rows", 5, least=1)
    5
    >>> whole("rows", 0, least=1)
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: rows must be an integer >= 1, got 0
    """
    try:
        # A bool is an int too, but a mistake here; PyTorch also raises an error for it.
        number = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise ArgumentError(f"{name} must be an integer >= {least}, got {value!r}")
    return number
