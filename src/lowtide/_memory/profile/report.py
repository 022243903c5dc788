"""The report: one self-contained HTML page for a recording.

A script in the template draws the charts in the browser, so that writing the page takes no more memory than
its text: it must fit into a container in which a job has just been killed.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from lowtide._memory.profile.document import Document, write_text
from lowtide._memory.profile.verdict import rate
from lowtide._memory.samples import thin
from lowtide._pages import escape, fill
from lowtide._printable import signal_name
from lowtide._sizes import format_size

_POINTS = 900  # drawn at most: more than a screen has columns for
_EVENTS = 12  # in words at most; the chart has them all
_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")

_ADVICE = {
    "heap": "The program allocates more and more memory: look for lists, caches or arrays "
    "that only ever get longer. Memory that was freed and is kept by malloc looks alike from outside and "
    "is not a leak: what lowtide.memory.trim() gives back in the program was never lost.",
    "mapped": "Pages of a mapped file stay resident once touched. Read the file in chunks "
    "instead of through one kept mapping, or release pages after use.",
    "shared memory / tmpfs": "Shared memory and files in memory file systems (/dev/shm, a tmpfs, an emptyDir "
    "of medium Memory) are memory until they are deleted, mapped or not, and cannot be reclaimed. Unlink "
    "them after use, or write to a disk.",
    "written, not yet on disk": "Pages that were written through a mapping stay until they are on disk. Call "
    "flush() now and then, or write with lowtide.create, which keeps few unwritten pages.",
    "kernel memory": "The kernel holds memory for the command: unread socket and pipe buffers, open files, "
    "page tables, directory entries. Look for sockets that nobody reads and files that are not closed.",
    "page cache": "Page cache that the container is charged for grows with what is read. Drop it "
    "after each read, or raise the limit.",
}


def render(document: Document) -> str:
    """The page for a document."""
    parts = {
        "title": escape(f"{document['verdict'].split(':')[0]} – {_command(document)[:60]}"),
        "command": escape(_command(document)),
        "when": time.strftime("%Y-%m-%d %H:%M", time.localtime(document.get("started") or 0)),
        "state": _state(document),
        "verdict": escape(document["verdict"]),
        "words": escape(_words(document)),
        "events": "".join(
            f'<p class="event {escape(kind)}">{escape(text)}</p>' for kind, text in _alarms(document)
        ),
        "tiles": _tiles(document),
        "mappings": _table(document),
        "not_seen": "".join(f"<li>{escape(line)}</li>" for line in document.get("not_seen") or []),
        "data": _script_json(_chart_data(document)),
    }
    return fill(_TEMPLATE, parts)


def save(path: str, document: Document) -> None:
    """Write the page for a document."""
    write_text(path, render(document))


def _command(document: Document) -> str:
    return " ".join(map(str, document["command"])) or "(unknown command)"


def _state(document: Document) -> str:
    """Classes of the verdict: its colour, and that of its edge."""
    killed = any(event["kind"] == "oom_kill" for event in _events(document))
    state = document.get("state") or ("grows" if document.get("grows") else "bounded")
    return state + (" killed" if killed else "")


def _alarms(document: Document) -> list[tuple[str, str]]:
    """What stands below the verdict: events and a budget that was exceeded, with their kinds."""
    alarms = [(event["kind"], event["text"]) for event in _events(document)[:_EVENTS]]
    budget, peak = document.get("budget"), document["peak_mib"] * 2**20
    if budget and peak > budget:
        text = f"over budget: peak {format_size(peak)}, the budget is {format_size(budget)}"
        alarms.append(("over_budget", text))
    return alarms


def _words(document: Document) -> str:
    """The verdict for somebody who has not read the manual."""
    peak = document["peak_mib"] - document["base_mib"]
    if document.get("state") == "unclear" and any(kind == "oom_kill" for kind, _ in _alarms(document)):
        return "A process was killed before the curve decided it; the line above says what filled the limit."
    if document.get("state") == "unclear":
        return "The curve does not decide it. The line above says why, and how to find out."
    if not document["grows"]:
        text = f"Memory stayed within {peak:.0f} MiB of where it was {_start(document)}"
        text += f", over {format_size(document['bytes_read'])} read." if _was_read(document) else "."
        if (document.get("page_cache_growth_mib") or 0) >= 64:
            text += " Page cache filled up beside it; the kernel reclaims that when memory is needed."
        return text
    return _ADVICE.get(
        document.get("cause") or "",
        "Memory rises all the way. Run the command with `lowtide profile` to see what grows.",
    )


def _was_read(document: Document) -> bool:
    return document.get("mib_per_gib_read") is not None


def _start(document: Document) -> str:
    """When memory was at its base, in words."""
    if _was_read(document):
        return "when reading started"
    return "when the program was loaded" if document.get("split", True) else "at the start"


def _tiles(document: Document) -> str:
    status = document.get("status") or 0
    ended = f"ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    slope = document.get("mib_per_gib_read")
    split = document.get("split", True)
    duration = _duration(document.get("seconds") or 0)
    tiles = [
        ("peak", f"{document['peak_mib']:,.0f} MiB", "highest memory of all processes"),
        ("base", f"{document['base_mib']:,.0f} MiB", _start(document)),
        ("per GiB read", "–" if slope is None else rate(slope / 1024), "added to memory"),
        ("read", format_size(document["bytes_read"]) if split else "–", "by calls and through mappings"),
        ("time", duration, "" if document.get("status") is None else ended),
        ("processes", str(document.get("processes") or 1) if split else "–", "most at one time"),
    ]
    return "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd>'
        f"<small>{escape(note)}</small></div>"
        for name, value, note in tiles
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _table(document: Document) -> str:
    rows = document["mappings"][:12]
    if not rows:
        return '<tr><td colspan="4" class="none">no data file was seen mapped or open</td></tr>'
    largest = max(max(row.get("resident") or 0, 1) for row in rows)
    cells = []
    for row in rows:
        path, resident = str(row["path"]), row.get("resident") or 0
        folder, name = os.path.split(path)
        at = row.get("resident_at")
        when = f"<small>at {_duration(at)}</small>" if resident and at is not None else ""
        cells.append(
            f'<tr><td class="path" title="{escape(path)}"><b>{escape(name)}</b>'
            f"<span>{escape(folder)}</span></td>"
            f'<td class="bar"><i style="width:{100 * resident / largest:.1f}%"></i>'
            f"<em>{format_size(resident) if resident else '–'}{when}</em></td>"
            f"<td>{_size(row.get('page_cache'))}</td><td>{_size(row.get('size'))}</td></tr>"
        )
    return "".join(cells)


def _size(size: int | None) -> str:
    return "–" if size is None else format_size(size)


def _chart_data(document: Document) -> dict[str, Any]:
    samples = thin(document["samples"], _POINTS, lambda sample: float(sample["heap"] + sample["mapped"]))
    container = document.get("container") or []
    rows = []
    for before, now in zip([None, *samples], samples, strict=False):
        row = {name: now[name] for name in ("time", "bytes_read", "heap", "mapped", "page_cache")}
        row["shared"] = now.get("shared", 0)
        if container:  # the machine's page cache is not what the limit is for
            row["page_cache"] = 0
        span = now["time"] - before["time"] if before else 0.0
        # Times are kept to a tenth of a millisecond; between two that are equal there is no rate.
        rated = before is not None and span > 1e-6
        for name, counter in (("rate", "bytes_read"), ("faults", "major_faults")):
            row[name] = max(0.0, (now[counter] - before[counter]) / span) if before and rated else 0.0
        rows.append(row)
    return {
        "rows": rows,
        "budget": document.get("budget"),
        "limit": document.get("cgroup_limit"),
        "split": document.get("split", True),
        "started": document.get("started"),
        "events": [event for event in _events(document) if event["kind"] != "stalled"],
        "container": [
            {name: look[name] for name in ("time", "usage", "working_set", "shared", "kernel")}
            for look in thin(container, _POINTS, lambda look: float(look["usage"]))
        ],
    }


def _events(document: Document) -> list[dict[str, Any]]:
    """Kills, throttling and waiting; what else a file may call an event is left out."""
    kinds = ("oom_kill", "throttled", "stalled")
    return [event for event in document.get("events") or [] if event.get("kind") in kinds][:_POINTS]


def _script_json(data: Any) -> str:
    """JSON that is safe in a script element, whatever names are in it."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
