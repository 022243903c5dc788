"""A recording and its verdict as one plain document: what ``--json`` writes and the report shows."""

from __future__ import annotations

import json
import os
from typing import Any

from lowtide.errors import FormatError, reading, writing
from lowtide.memory import dat
from lowtide.memory.recording import Recording
from lowtide.memory.verdict import Verdict, judge

VERSION = 1
_COLUMNS = ("time", "bytes_read", "heap", "mapped", "page_cache", "major_faults", "from_device")
Document = dict[str, Any]


def document(recording: Recording, verdict: Verdict | None = None) -> Document:
    """Everything worth keeping of a recording; sizes in bytes, times in seconds from ``started``."""
    verdict = verdict or judge(recording)
    series = recording.series()
    columns = (
        series.time, series.read, series.heap, series.mapped, series.cache, series.major, series.device,
    )  # fmt: skip
    samples = [
        {
            "time": round(row[0], 4),
            **{name: round(value) for name, value in zip(_COLUMNS[1:], row[1:], strict=True)},
        }
        for row in zip(*columns, strict=True)
    ]
    return {
        "lowtide_profile": VERSION,
        **verdict.as_json(),
        "command": recording.command,
        "started": recording.started,
        "seconds": round((recording.ended or recording.started) - recording.started, 3),
        "status": recording.status,
        "interval": recording.interval,
        "budget": recording.budget,
        "cgroup_limit": recording.limit,
        "processes": recording.most_processes,
        "split": recording.split,
        "minor_faults": recording.points[-1].minor if recording.points else None,
        "mappings": _mappings(recording),
        "not_seen": recording.blind,
        "samples": samples,
    }


def _mappings(recording: Recording) -> list[dict[str, Any]]:
    """The data files, mapped or read, with the highest that was seen of each."""
    rows: dict[str, dict[str, Any]] = {}
    for detail in recording.details:
        for name, figures in (("resident", detail.mapped), ("page_cache", detail.cached)):
            for path, size in figures.items():
                row = rows.setdefault(path, {"path": path, "resident": 0, "page_cache": None})
                row[name] = max(row[name] or 0, size)
    ranked = sorted(rows.values(), key=lambda row: -max(row["resident"], row["page_cache"] or 0))
    for row in ranked[:20]:
        try:
            row["size"] = os.path.getsize(row["path"])
        except OSError:
            row["size"] = None
    return [row for row in ranked[:20] if max(row["resident"], row["page_cache"] or 0) >= 2**20]


def save(path: str, found: Document) -> None:
    """Write a document as JSON."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise writing(path, error) from error


def load(path: str) -> Document:
    """Read a document, or a ``.dat`` file of memory_profiler.

    Raises
    ------
    FormatError
        The file is neither.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise reading(path, error) from error
    if data.lstrip().startswith(b"{"):
        try:
            found = json.loads(data)
        except ValueError as error:
            raise FormatError(
                f"{path}: not the JSON that `lowtide profile --json` writes: {error}"
            ) from error
        if not isinstance(found, dict) or found.get("lowtide_profile") != VERSION:
            raise FormatError(
                f"{path}: JSON, but not of `lowtide profile --json` (version {VERSION}): "
                f"lowtide_profile is {found.get('lowtide_profile') if isinstance(found, dict) else None!r}"
            )
        _check(path, found)
        return found
    return document(dat.parse(data, path))


def _check(path: str, found: Document) -> None:
    """Refuse a document that lacks what the report shows, and say what it lacks."""
    for name, kind in (("verdict", str), ("command", list), ("samples", list), ("mappings", list)):
        if not isinstance(found.get(name), kind):
            raise FormatError(f"{path}: {name!r} should be a {kind.__name__}, got {found.get(name)!r:.60}")
    for name in ("peak_mib", "base_mib", "bytes_read", "seconds", "started"):
        if not isinstance(found.get(name), int | float):
            raise FormatError(f"{path}: {name!r} should be a number, got {found.get(name)!r:.60}")
    for name in ("mib_per_gib_read", "status", "budget", "cgroup_limit", "page_cache_growth_mib"):
        if not isinstance(found.setdefault(name, None), int | float | None):
            raise FormatError(f"{path}: {name!r} should be a number or null, got {found[name]!r:.60}")
    for row in found["mappings"]:
        sizes = (
            [row.get(name) for name in ("resident", "page_cache", "size")] if isinstance(row, dict) else []
        )
        if not sizes or not all(isinstance(size, int | float | None) for size in sizes) or "path" not in row:
            raise FormatError(f"{path}: a mapping should be a path and its sizes, got {row!r:.60}")
    for index, sample in enumerate(found["samples"]):
        missing = [
            name
            for name in _COLUMNS
            if not isinstance(sample, dict) or not isinstance(sample.get(name), int | float)
        ]
        if missing:
            raise FormatError(f"{path}: sample {index} has no number for {', '.join(missing)}")
