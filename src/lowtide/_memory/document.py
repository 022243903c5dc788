"""A recording and its verdict as one plain document: what ``--json`` writes and the report shows."""

from __future__ import annotations

import json
import os
from types import NoneType
from typing import Any

from lowtide._io import jsonfiles
from lowtide._io.store import Store, opened
from lowtide._memory import dat, foreign
from lowtide._memory.recording import Recording
from lowtide._memory.verdict import Verdict, judge
from lowtide._printable import brief
from lowtide.errors import FormatError, writing

VERSION = 1
MAX_JSON = 16 * 2**20
"""Bytes of a document that are read; one that lowtide wrote has about a million."""
MAX_DAT = 256 * 2**20
"""Bytes of a ``.dat`` file that are read: a week at ten samples per second."""
_MAX_LINE = 4 * 2**20  # the longest is the command
_HEAD = 4096  # bytes that tell what a file is
_REMEDY = "write it again with `lowtide profile --json`"
_NUMBERS = (
    *("mib_per_gib_read", "page_cache_growth_mib", "started", "seconds", "status", "processes"),
    *("budget", "cgroup_limit"),
)  # which may be null
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
        # A path that is not UTF-8 has characters that JSON cannot hold.
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump(found, file, indent=1, ensure_ascii=False)
            file.write("\n")
    except OSError as error:
        raise writing(path, error) from error


def load(path: str) -> Document:
    """Read a document, or a ``.dat`` file of memory_profiler.

    Raises
    ------
    FormatError
        The file is neither; the message says what it is, where that is known.
    """
    with opened(path) as source:
        head = source.read(0, min(source.size, _HEAD), "recording")
        kind = foreign.kind(head)
        if kind is not None:
            raise FormatError(
                f"{path}: is {kind}, not a recording of memory; pass the JSON of `lowtide profile --json`, "
                "or a .dat file of memory_profiler"
            )
        if not head.lstrip().startswith(b"{"):
            return document(_dat(source))
    found = jsonfiles.load(path, limit=MAX_JSON, what="JSON of `lowtide profile --json`")
    if not isinstance(found, dict) or found.get("lowtide_profile") != VERSION:
        version = brief(found.get("lowtide_profile") if isinstance(found, dict) else None)
        raise FormatError(
            f"{path}: JSON, but not of `lowtide profile --json` (lowtide_profile is {version}, expected "
            f"{VERSION}); pass such a file, or a .dat file of memory_profiler"
        )
    _check(path, found)
    return found


def _dat(source: Store) -> Recording:
    if source.size > MAX_DAT:
        raise FormatError(
            f"{source.path}: too large for a .dat file ({source.size} bytes, expected at most {MAX_DAT}); "
            "pass a part of its lines"
        )
    with source.stream() as file:
        return dat.parse_lines(iter(lambda: file.readline(_MAX_LINE), b""), source.path)


def _check(path: str, found: Document) -> None:
    """Refuse a document that lacks what the report shows, and say what it lacks."""
    for name, kind in (("verdict", str), ("command", list), ("samples", list), ("mappings", list)):
        if not isinstance(found.get(name), kind):
            raise _wrong(path, name, f"a {kind.__name__}", found.get(name))
    for index, sample in enumerate(found["samples"]):
        missing = [
            name for name in _COLUMNS if not isinstance(sample, dict) or not _is_number(sample.get(name))
        ]
        if missing:
            raise FormatError(f"{path}: sample {index} has no number for {', '.join(missing)}; {_REMEDY}")
    for index, row in enumerate(found["mappings"]):
        if not isinstance(row, dict) or not isinstance(row.get("path"), str):
            raise _wrong(path, f"mappings[{index}]", "an object with a path", row)
        for name in ("resident", "page_cache", "size"):
            if row.get(name) is not None and not (_is_number(row[name]) and row[name] >= 0):
                raise _wrong(path, f"mappings[{index}].{name}", "a number >= 0", row[name])
    for name in ("base_mib", "peak_mib", "bytes_read", *_NUMBERS):
        value = found.get(name)
        if not _is_number(value) and not (value is None and name in _NUMBERS):
            raise _wrong(path, name, "a number", value)
    if not 0 <= (found.get("started") or 0) <= dat.MOST_TIME:
        raise _wrong(path, "started", f"seconds from 0 to {dat.MOST_TIME}", found["started"])
    for name in ("grows", "split"):
        if not isinstance(found.get(name), bool):
            raise _wrong(path, name, "a bool", found.get(name))
    if not isinstance(found.get("cause"), str | NoneType):
        raise _wrong(path, "cause", "a str", found["cause"])
    notes = found.get("not_seen", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise _wrong(path, "not_seen", "a list of str", notes)


def _is_number(value: object) -> bool:
    """Whether it is one, and of a size that a figure of memory or time can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**64


def _wrong(path: str, name: str, expected: str, found: object) -> FormatError:
    return FormatError(f"{path}: {name!r} should be {expected}, got {brief(found, 60)}; {_REMEDY}")
