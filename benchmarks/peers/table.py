"""The figures of one machine as two tables, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.harness import MIB
from lowtide._sizes import format_size

Row = Mapping[str, Any]
WORKS = {
    "tokens": "Token batches: 64 windows of 1,024 tokens, shuffled",
    "rows": "Rows of a matrix: 4,096 rows of 1 KiB at a time, shuffled",
}
UNKNOWN = "–"
"""Not measured."""


def speed(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    digits = 0 if value >= 10 else 1 if value >= 0.1 else 2
    return f"{value:,.{digits}f}"


def ratio(value: float) -> str:
    """Two digits that mean something."""
    digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2 if value >= 0.0995 else 3
    return f"{value:,.{digits}f}"


def mib(value: float | None) -> str:
    return UNKNOWN if value is None else speed(max(value, 0) / MIB) if value >= MIB / 20 else "0"


def _of_best(key: str) -> Callable[[Row], str]:
    """A speed, and what part it is of the best possible in the same run."""

    def cell(row: Row) -> str:
        possible = row["best"].get(key)
        if row[key] is None or not possible:
            return speed(row[key]) if row[key] is not None else row.get(f"{key}_how") or UNKNOWN
        return f"{speed(row[key])} ({ratio(row[key] / possible)})"

    return cell


def _conversion(row: Row) -> str:
    if row["convert_nbytes"] is None:
        return "no"
    return f"{row['convert_seconds']:.1f} s, {format_size(row['convert_nbytes'])}"


def _limited(row: Row) -> str:
    if row["limited"] is None:
        return str(row["limited_how"])
    times = row["cold"] / row["limited"]
    return speed(row["limited"]) + (f" ({times:,.0f}x slower)" if times >= 2 else "")


COLUMNS: dict[str, Callable[[Row], str]] = {
    "warm, MiB/s (of RAM)": _of_best("warm"),
    "in order, MiB/s (of RAM)": _of_best("in_order"),
    "cold, MiB/s (of fio)": _of_best("cold"),
    "in 256 MiB, MiB/s": _limited,
    "and a cloud disk, MiB/s (of fio)": _of_best("cloud"),
    "peak RSS, MiB": lambda row: mib(row["peak"]),
    "page cache left, MiB": lambda row: mib(row["cached"]),
    "start-up, ms": lambda row: f"{1000 * row['start_up']:,.0f}",
    "conversion": _conversion,
    "exact resume": lambda row: row["resume"],
    "same on 2 ranks": lambda row: row["ranks"],
}


def _cells(message: Mapping[str, Any], work: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; a peer that is missing has its reason in the place of its figures."""
    columns = {
        name: cell for name, cell in COLUMNS.items() if work == "rows" or not name.startswith("in order")
    }
    result = []
    for row in of(message, work):
        cells = [row["missing"]] if row["missing"] else [cell(row) for cell in columns.values()]
        result.append([row["title"], row["version"] or UNKNOWN, *cells])
    return ["", "version", *columns], result


def of(message: Mapping[str, Any], work: str) -> list[Row]:
    """The rows of one kind of work."""
    return [row for row in message["peers"] if row["name"].startswith(f"{work}/")]


def about(message: Mapping[str, Any]) -> str:
    """What the figures were measured on, in a line."""
    on, setting = message["machine"], message["setting"]
    loads = setting["load"]
    disk = "" if on["disk"] == "unknown" else f" on {on['disk']}"
    return (
        f"{on['date']}; {on['cores']} cores ({on['processor']}), {on['memory_gib']} GiB, "
        f"Linux {on['kernel']}, {on['file_system']}{disk}, read-ahead {on['read_ahead']}; "
        f"Python {on['python']}, NumPy {on['numpy']}. "
        f"Files of {format_size(setting['size'])}, medians of {setting['rounds']} rounds, "
        f"load average before each part: {min(loads):.1f} to {max(loads):.1f}."
    )


def possible(message: Mapping[str, Any], work: str) -> str:
    """The best possible, in a line: the median of the parts of a run."""
    parts = {tuple(row["best"].items()): row["best"] for row in of(message, work) if row["best"]}
    names = {
        "warm": "a gather from RAM",
        "in_order": "a copy from RAM in order",
        "dd": "dd from the page cache",
        "cold": "fio, random reads of one sample",
        "cloud": "the same on the cloud disk",
    }
    result = []
    for key, name in names.items():
        values = [best[key] for best in parts.values() if key in best]
        if values:
            result.append(f"{name} {speed(median(values))}")
    if not result:
        return "The best possible was not measured."
    missing = "" if any("cold" in best for best in parts.values()) else " fio was not installed."
    return f"The best possible, MiB/s: {', '.join(result)}.{missing}"


def notes(message: Mapping[str, Any], work: str) -> list[str]:
    """What a reader of a table should know that its cells cannot hold."""
    rows = [row for row in of(message, work) if row["cold_read"]]
    asked = max((row["cold_read"] for row in rows), default=0)
    result = [possible(message, work)]
    # Windows that are cut off at the end of a file make a percent of difference.
    short = [f"{row['title']} {mib(row['cold_read'])}" for row in rows if row["cold_read"] < 0.95 * asked]
    if short:
        result.append(
            f"Read in the cold run, after which the page cache was looked at: {mib(asked)} MiB, or as much "
            f"as came in 4 s: {', '.join(short)} MiB."
        )
    return result


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
        parts += [f"**{title}**", "", line(headings), "|---|---|" + "--:|" * (len(headings) - 2)]
        for row in rows:
            parts.append(line(row + [""] * (len(headings) - len(row))))
        for note in notes(message, work):
            parts += ["", note]
        parts.append("")
    return "\n".join(parts)


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
