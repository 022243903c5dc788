"""One HTML page for a recording, complete in itself.

The charts are Vega-Lite. Its JavaScript comes from vl-convert, which carries it in its wheel, so nothing is
fetched when the page is made and nothing when it is opened.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

from lowtide._memory.document import Document
from lowtide._memory.verdict import rate
from lowtide._pages import escape, fill
from lowtide._sizes import format_size
from lowtide.errors import MissingExtraError, writing

_POINTS = 900  # drawn at most: more than a screen has columns for
_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_HINT = 'the HTML report is drawn with Vega-Lite: pip install "lowtide[report]"'

_ADVICE = {
    "heap": "The program keeps more and more memory of its own: look for lists, caches or arrays "
    "that only ever get longer.",
    "file-mapped": "Pages of a mapped file stay resident once touched. Read the file in chunks "
    "instead of through one kept mapping, or let pages go after use.",
    "page cache": "Page cache that the container is charged for grows with what is read. Let it go "
    "behind the reader, or raise the limit.",
}


def require() -> None:
    """Say how to install what the report needs, before a long command is run for it."""
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(_HINT) from error


def render(found: Document) -> str:
    """The page for a document."""
    require()
    parts = {
        "title": escape(f"{found['verdict'].split(':')[0]} – {_command(found)[:60]}"),
        "command": escape(_command(found)),
        "when": time.strftime("%Y-%m-%d %H:%M", time.localtime(found.get("started") or 0)),
        "state": "grows" if found.get("grows") else "bounded",
        "verdict": escape(found["verdict"]),
        "words": escape(_words(found)),
        "tiles": _tiles(found),
        "mappings": _table(found),
        "not_seen": "".join(f"<li>{escape(line)}</li>" for line in found.get("not_seen") or []),
        "library": _library(),
        "data": _script_json(_chart_data(found)),
    }
    return fill(_TEMPLATE, parts)


@functools.cache
def _library() -> str:
    """Vega-Lite with all that it needs; a second to put together."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def save(path: str, found: Document) -> None:
    """Write the page for a document."""
    text = render(found)
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise writing(path, error) from error


def _command(found: Document) -> str:
    return " ".join(map(str, found["command"])) or "(unknown command)"


def _words(found: Document) -> str:
    """The verdict for somebody who has not read the manual."""
    peak = found["peak_mib"] - found["base_mib"]
    if not found["grows"]:
        said = f"Memory stayed within {peak:.0f} MiB of where it was when reading began"
        was_read = found.get("mib_per_gib_read") is not None
        said += f", over {format_size(found['bytes_read'])} read." if was_read else "."
        if (found.get("page_cache_growth_mib") or 0) >= 64:
            said += " Page cache filled up beside it; the kernel takes that back when memory is needed."
        return said
    return _ADVICE.get(
        found.get("cause") or "",
        "Memory rises all the way. Run the command with `lowtide profile` to see what grows.",
    )


def _tiles(found: Document) -> str:
    status = found.get("status")
    ended = "–" if status is None else f"signal {-status}" if status < 0 else f"status {status}"
    slope = found.get("mib_per_gib_read")
    tiles = [
        ("peak", f"{found['peak_mib']:,.0f} MiB", "highest memory of all processes"),
        (
            "base",
            f"{found['base_mib']:,.0f} MiB",
            "when reading began" if found.get("split", True) else "at the start",
        ),
        (
            "per GiB read",
            "–" if slope is None else rate(slope / 1024),
            "slope of memory over bytes read",
        ),
        ("read", format_size(found["bytes_read"]) if found.get("split", True) else "–", "calls and mappings"),
        ("time", _duration(found.get("seconds") or 0), f"ended with {ended}" if status is not None else ""),
        ("processes", str(found.get("processes") or 1), "at once, at most"),
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


def _table(found: Document) -> str:
    rows = found["mappings"][:12]
    if not rows:
        return '<tr><td colspan="4" class="none">no data file was seen mapped or open</td></tr>'
    largest = max(max(row.get("resident") or 0, 1) for row in rows)
    cells = []
    for row in rows:
        path, resident = str(row["path"]), row.get("resident") or 0
        folder, name = os.path.split(path)
        cells.append(
            f'<tr><td class="path" title="{escape(path)}"><b>{escape(name)}</b>'
            f"<span>{escape(folder)}</span></td>"
            f'<td class="bar"><i style="width:{100 * resident / largest:.1f}%"></i>'
            f"<em>{format_size(resident) if resident else '–'}</em></td>"
            f"<td>{_size(row.get('page_cache'))}</td><td>{_size(row.get('size'))}</td></tr>"
        )
    return "".join(cells)


def _size(size: int | None) -> str:
    return "–" if size is None else format_size(size)


def _chart_data(found: Document) -> dict[str, Any]:
    samples = _thinned(found["samples"])
    rows = []
    for before, now in zip([None, *samples], samples, strict=False):
        row = {name: now[name] for name in ("time", "bytes_read", "heap", "mapped", "page_cache")}
        span = now["time"] - before["time"] if before else 0.0
        # Times are kept to a tenth of a millisecond; between two that are equal there is no rate.
        rated = before is not None and span > 1e-6
        row["rate"] = (now["bytes_read"] - before["bytes_read"]) / span if before and rated else 0.0
        row["faults"] = (now["major_faults"] - before["major_faults"]) / span if before and rated else 0.0
        rows.append(row)
    return {
        "rows": rows,
        "budget": found.get("budget"),
        "limit": found.get("cgroup_limit"),
        "split": found.get("split", True),
    }


def _thinned(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many samples as are worth drawing: of each group the one with most memory."""
    group = -(-len(samples) // _POINTS)
    if group <= 1:
        return samples
    parts = [samples[start : start + group] for start in range(0, len(samples), group)]
    return [max(part, key=lambda sample: sample["heap"] + sample["mapped"]) for part in parts]


def _script_json(data: Any) -> str:
    """JSON that can stand in a script element, whatever names are in it."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
