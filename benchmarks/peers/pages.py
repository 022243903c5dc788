"""The pages that show the figures: machines side by side, and the short table of the README.

Both are written between two marks of a page, and a test compares what is there with the files of figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import MIB
from benchmarks.peers import table
from benchmarks.peers.measure import LIMITED_SECONDS, TOO_SLOW
from benchmarks.peers.table import UNKNOWN, Row, line, of, ratio
from benchmarks.peers.work import USEFUL
from benchmarks.peers.worker import PEERS

START, END = "<!-- peers: start -->", "<!-- peers: end -->"
RATIOS = {"warm": "warm", "in_order": "in order", "cold": "cold", "limited": "in 256 MiB"}
README = {
    "tokens": (
        "memmap",
        "memmap-recreated",
        "nanogpt",
        "dataloader",
        "huggingface",
        "litdata",
        "spdl",
        "lowtide",
        "lowtide-drop",
        "lowtide-blocks",
    ),
    "rows": (
        "memmap",
        "memmap-recreated",
        "h5py",
        "tensorstore",
        "lowtide",
        "lowtide-budget",
        "lowtide-blocks",
    ),
}


def put(text: str, path: str) -> None:
    """Write to a file; in a page with the two marks, between them."""
    page = Path(path)
    before = page.read_text() if page.exists() else ""
    if START in before and END in before:
        text = f"{before.partition(START)[0]}{START}\n\n{text}\n{END}{before.partition(END)[2]}"
    page.write_text(text)


def between_marks(path: str) -> str:
    """What ``put`` wrote there."""
    return (
        Path(path).read_text().partition(START)[2].partition(END)[0].removeprefix("\n\n").removesuffix("\n")
    )


def markdown(messages: Sequence[Mapping[str, Any]]) -> str:
    """The ratios of all machines side by side, then the tables of each, the newest first."""
    parts = [_side_by_side(messages)] if len(messages) > 1 else []
    for message in reversed(messages):
        if len(messages) > 1:
            parts.append(f"### {_name(message)}\n")
        parts.append(table.markdown(message))
    return "\n".join(parts)


def _name(message: Mapping[str, Any]) -> str:
    """AMD EPYC, 2026-11-16."""
    on = message["machine"]
    plain = on["processor"].replace("(R)", "").replace(" Processor", "").partition(" @")[0]
    return f"{plain}, {on['date'].split()[0]}"


def _side_by_side(messages: Sequence[Mapping[str, Any]]) -> str:
    letters = "ABCDEFGH"[: len(messages)]
    machines = "; ".join(f"{a}: {_name(message)}" for a, message in zip(letters, messages, strict=True))
    parts = [
        "### Side by side\n",
        f"Speed as a multiple of that of a kept np.memmap on the same machine. {machines}.\n",
    ]
    for work, title in table.WORKS.items():
        keys = [key for key in RATIOS if work == "rows" or key != "in_order"]
        there = {row["name"]: row for message in messages for row in of(message, work)}
        names = sorted(there, key=lambda name: list(PEERS).index(name) if name in PEERS else len(PEERS))
        parts += [f"**{title}**", "", line(["", *(f"{RATIOS[key]}: {a}" for key in keys for a in letters)])]
        parts.append("|---|" + "--:|" * len(keys) * len(letters))
        for name in names:
            cells = [_times(message, name, key) for key in keys for message in messages]
            parts.append(line([there[name]["title"], *cells]))
        parts.append("")
    return "\n".join(parts)


def _times(message: Mapping[str, Any], name: str, key: str) -> str:
    """How many times the speed of a kept map; "<" and ">" where one of the two gave no batch in time."""
    rows = {row["name"]: row for row in message["peers"]}
    row, reference = rows.get(name), rows.get(f"{name.partition('/')[0]}/memmap")
    if row is None or reference is None or row["missing"] or reference["missing"]:
        return UNKNOWN
    if row["limited_how"] == "killed" and key == "limited":
        return "killed"
    both = (
        key in row["best"] and key in reference["best"]
    )  # then each is taken as a ratio to the best of its run
    (above, over), (below, under) = _amount(row, key, both), _amount(reference, key, both)
    if above is None or below is None or (over and under):
        return UNKNOWN if row is not reference or above is None else "1"
    return ("<" if over else ">" if under else "") + ("1" if row is reference else ratio(above / below))


def _amount(row: Row, key: str, of_best: bool) -> tuple[float | None, bool]:
    """A speed, or what part it is of the best possible in the same run; whether it is a bound."""
    if row[key] is None:
        if key == "limited" and row["limited_how"] == TOO_SLOW:
            useful = USEFUL["tokens" if row["name"].startswith("tokens/") else "rows"]
            return useful / LIMITED_SECONDS / MIB, True
        return None, False
    return row[key] / (row["best"][key] if of_best else 1), False


def newest(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last machine on which lowtide itself was measured."""
    ours = [
        one for one in messages for row in one["peers"] if "/lowtide" in row["name"] and not row["missing"]
    ]
    return ours[-1] if ours else messages[-1]


def short(message: Mapping[str, Any]) -> str:
    """A few peers of one machine: warm, in the container, on a cloud disk, and what they hold."""
    rows = {row["name"]: row for row in message["peers"]}
    parts = []
    for work, title in (("tokens", "shuffled token batches"), ("rows", "shuffled rows of 1 KiB")):
        parts += [
            line([f"{title}, MiB/s", "warm", "in a 256 MiB container", "and on a cloud disk", "peak memory"])
        ]
        parts.append("|---|--:|--:|--:|--:|")
        for name in README[work]:
            row = rows.get(f"{work}/{name}")
            if row is None or row["missing"]:
                continue
            parts.append(line([_emphasis(row, cell) for cell in _short(row)]))
        parts.append("")
    return "\n".join(parts)


def _short(row: Row) -> list[str]:
    converted = ", converted" if row["convert_nbytes"] is not None else ""
    contained = (
        table.speed(row[key]) if row[key] is not None else row[f"{key}_how"] for key in ("limited", "cloud")
    )
    return [
        f"{row['title']}{converted}",
        table.speed(row["warm"]),
        *contained,
        f"{table.mib(row['peak'])} MiB",
    ]


def _emphasis(row: Row, cell: str) -> str:
    return f"**{cell}**" if row["title"].startswith("lowtide") else cell
