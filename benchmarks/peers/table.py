"""The figures as two tables, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import MIB
from lowtide._sizes import format_size

Row = Mapping[str, Any]
START, END = "<!-- peers: start -->", "<!-- peers: end -->"
WORKS = {
    "tokens": "Token batches: 64 windows of 1,024 tokens, shuffled",
    "rows": "Rows of a matrix: 4,096 rows of 1 KiB at a time, shuffled",
}


def _speed(value: float | None) -> str:
    if value is None:
        return "–"
    digits = 0 if value >= 10 else 1 if value >= 0.1 else 2
    return f"{value:,.{digits}f}"


def _mib(value: float | None) -> str:
    return "–" if value is None else _speed(max(value, 0) / MIB) if value >= MIB / 20 else "0"


def _conversion(row: Row) -> str:
    if row["convert_nbytes"] is None:
        return "no"
    return f"{row['convert_seconds']:.1f} s, {format_size(row['convert_nbytes'])}"


def _limited(row: Row) -> str:
    if row["limited"] is None:
        return str(row["limited_how"])
    times = row["cold"] / row["limited"]
    return f"{_speed(row['limited'])} MiB/s" + (f" ({times:,.0f}x slower)" if times >= 2 else "")


COLUMNS: dict[str, Callable[[Row], str]] = {
    "warm, MiB/s": lambda row: _speed(row["warm"]),
    "cold, MiB/s": lambda row: _speed(row["cold"]),
    "in order, MiB/s": lambda row: _speed(row["in_order"]),
    "peak RSS, MiB": lambda row: _mib(row["peak"]),
    "page cache left, MiB": lambda row: _mib(row["cached"]),
    "start-up, ms": lambda row: f"{1000 * row['start_up']:,.0f}",
    "conversion": _conversion,
    "in 256 MiB": _limited,
    "exact resume": lambda row: row["resume"],
    "same on 2 ranks": lambda row: row["ranks"],
}


def _cells(message: Mapping[str, Any], work: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; a peer that is missing has its reason in the place of its figures."""
    rows = [row for row in message["peers"] if row["name"].startswith(f"{work}/")]
    columns = {name: cell for name, cell in COLUMNS.items() if work == "rows" or name != "in order, MiB/s"}
    result = []
    for row in rows:
        cells = [row["missing"]] if row["missing"] else [cell(row) for cell in columns.values()]
        result.append([row["title"], row["version"] or "–", *cells])
    return ["", "version", *columns], result


def about(message: Mapping[str, Any]) -> str:
    """What the figures were measured on, in a line."""
    on, setting = message["machine"], message["setting"]
    load = ", ".join(f"{one:.1f}" for one in setting["load"])
    return (
        f"{on['date']}; {on['cores']} cores ({on['processor']}), {on['memory_gib']} GiB, "
        f"Linux {on['kernel']}, {on['file_system']}, read-ahead {on['read_ahead']}; "
        f"Python {on['python']}, NumPy {on['numpy']}. "
        f"Files of {format_size(setting['size'])}, medians of {setting['rounds']} rounds, "
        f"load average before, between and after: {load}."
    )


def notes(message: Mapping[str, Any], work: str) -> list[str]:
    """What a reader of a table should know that its cells cannot hold."""
    rows = [row for row in message["peers"] if row["name"].startswith(f"{work}/") and row["cold_read"]]
    asked = max((row["cold_read"] for row in rows), default=0)
    # Windows that are cut off at the end of a file make a percent of difference.
    short = [f"{row['title']} {_mib(row['cold_read'])}" for row in rows if row["cold_read"] < 0.95 * asked]
    if not short:
        return []
    return [
        f"Read in the cold run, after which the page cache was looked at: {_mib(asked)} MiB, or as much as "
        f"came in 4 s: {', '.join(short)} MiB."
    ]


def text(message: Mapping[str, Any]) -> str:
    """Both tables for a terminal."""
    parts = [about(message)]
    for work, title in WORKS.items():
        headings, rows = _cells(message, work)
        if not rows:
            continue
        whole = [row for row in [headings, *rows] if len(row) == len(headings)]
        widths = [max(len(row[column]) for row in whole) for column in range(len(headings))]
        widths[0] = max(len(row[0]) for row in rows)
        parts.append(title)
        for row in [headings, *rows]:
            left, *right = row
            cells = [cell if len(row) < len(headings) else cell.rjust(width)
                     for cell, width in zip(right, widths[1:], strict=False)]  # fmt: skip
            parts.append("  ".join([left.ljust(widths[0]), *cells]).rstrip())
        parts += [*notes(message, work), ""]
    return "\n".join(parts)


def markdown(message: Mapping[str, Any]) -> str:
    """Both tables in Markdown."""
    parts = [f"Measured {about(message)}", ""]
    for work, title in WORKS.items():
        headings, rows = _cells(message, work)
        if not rows:
            continue
        parts += [f"**{title}**", "", _line(headings), "|---|---|" + "--:|" * (len(headings) - 2)]
        for row in rows:
            parts.append(_line(row + [""] * (len(headings) - len(row))))
        parts += ["", *notes(message, work), ""]
    return "\n".join(parts)


def put(message: Mapping[str, Any], path: str) -> None:
    """Write the tables to a file; in a page with the two marks, between them."""
    page, tables = Path(path), markdown(message)
    text = page.read_text() if page.exists() else ""
    if START in text and END in text:
        before, after = text.partition(START)[0], text.partition(END)[2]
        tables = f"{before}{START}\n\n{tables}\n{END}{after}"
    page.write_text(tables)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
