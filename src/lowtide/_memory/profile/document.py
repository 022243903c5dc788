"""A recording and its verdict as one plain document: what ``--save`` writes and the report shows."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from lowtide._io import jsonfiles
from lowtide._io.store import Store, opened
from lowtide._memory.profile import dat, journal
from lowtide._memory.profile.recording import Charges, Recording
from lowtide._memory.profile.verdict import Verdict, judge
from lowtide._printable import brief
from lowtide.errors import FormatError, write_errors

VERSION = 1
MAX_JSON = 16 * 2**20
"""Bytes of a document that are read; one that lowtide wrote has about a million."""
MAX_DAT = 256 * 2**20
"""Bytes of a ``.dat`` file that are read: a week at ten samples per second."""
_MAX_LINE = 4 * 2**20  # the longest is the command
_HEAD = 4096  # bytes by which other kinds of files are recognised
_REMEDY = "write it again with `lowtide profile --save`"
_TYPES = {
    "verdict": str,
    "command": list,
    "samples": list,
    "mappings": list,
    "grows": bool,
    "split": bool,
    "cause": str,
}
_NUMBERS = (
    *("mib_per_gib_read", "page_cache_growth_mib", "started", "seconds", "status", "processes"),
    *("budget", "cgroup_limit"),
)  # which may be null
_COLUMNS = ("time", "bytes_read", "heap", "mapped", "page_cache", "major_faults", "from_device")
_NEWER = ("shared",)  # columns that recordings of version 0.1 lack
_OLD = dict.fromkeys(_NEWER, 0)
_STATES = ("grows", "bounded", "unclear")
Document = dict[str, Any]

# Files that are passed by mistake: by their first bytes, and by a key of their JSON.
_MAGIC = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive (as .npz files and PyTorch's checkpoints are)",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip file, which must be decompressed first",
    b"\x28\xb5\x2f\xfd": "a zstd file, which must be decompressed first",
    b"SQLite format 3": "an SQLite database",
    b"\x7fELF": "a program",
    b"memray": "a capture file of memray, which `memray flamegraph` reads",
    b"desc:": "an output file of Valgrind's massif, which `ms_print` reads",
    b"# Elapsed time": "a log of psrecord",
    b"<!doctype html": "an HTML page, perhaps a report already",
    b"<html": "an HTML page, perhaps a report already",
    b"<?xml": "an XML document",
    b"#!": "a script",
}
_KEYS = {
    b'"train_loss"': "the metrics of a training run, which are drawn in its training.png",
    b'"gradient_accumulation_steps"': "the settings of a training run",
    b'"lowtide corpus"': "the index of a token corpus, which `lowtide info` reads",
    b'"traceEvents"': "a trace for Chrome or Perfetto",
    b'"alloc_samples"': "a profile of scalene",
    b'"cells"': "a notebook",
}


def of(recording: Recording, verdict: Verdict | None = None) -> Document:
    """Everything worth keeping of a recording; sizes in bytes, times in seconds from ``started``."""
    verdict = verdict or judge(recording)
    series = recording.series()
    columns = (
        series.time, series.read, series.heap, series.mapped, series.cache, series.major, series.device,
        series.shared,
    )  # fmt: skip
    samples = [
        {"time": round(time, 4), **dict(zip(_COLUMNS[1:] + _NEWER, map(round, row), strict=True))}
        for time, *row in zip(*(column.tolist() for column in columns), strict=True)
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
        "container": [look._asdict() for look in recording.charges],
        "events": [event._asdict() for event in recording.events],
        "not_seen": recording.blind,
        "samples": samples,
    }


def _mappings(recording: Recording) -> list[dict[str, Any]]:
    """The data files, mapped or read, with the highest that was seen of each, and when.

    Looks at files are rarer than points: the curve may have risen since.
    """
    rows: dict[str, dict[str, Any]] = {}
    for detail in recording.details:
        for name, figures in (("resident", detail.mapped), ("page_cache", detail.cached)):
            for path, size in figures.items():
                row = rows.setdefault(
                    path, {"path": path, "resident": 0, "resident_at": None, "page_cache": None}
                )
                if name == "resident" and size > row[name]:
                    row["resident_at"] = round(detail.time, 2)
                row[name] = max(row[name] or 0, size)
    ranked = sorted(rows.values(), key=lambda row: -max(row["resident"], row["page_cache"] or 0))
    for row in ranked[:20]:
        sizes = [detail.sizes.get(row["path"], 0) for detail in recording.details]
        row["size"] = max(sizes, default=0) or None
    return [row for row in ranked[:20] if max(row["resident"], row["page_cache"] or 0) >= 2**20]


def save(path: str, document: Document) -> None:
    """Write a document as JSON."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Write a file, or a pipe or device such as ``/dev/stdout``. A file is replaced when it is complete."""
    beside = f"{path}.{os.getpid()}" if os.path.isfile(path) and not os.path.islink(path) else path
    try:
        # A path that is not UTF-8 has characters that cannot be written.
        with write_errors(path), open(beside, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        if beside != path:
            os.replace(beside, path)
    except BaseException:
        if beside != path:
            with contextlib.suppress(OSError):
                os.unlink(beside)
        raise


def load(path: str) -> Document:
    """Read a document, or a ``.dat`` file of memory_profiler."""
    with opened(path) as source:
        head = source.read(0, min(source.size, _HEAD), "recording")
        kind = _foreign(head)
        if kind is not None:
            raise FormatError(
                f"{path}: is {kind}, not a recording of memory; pass the JSON of `lowtide profile --save`, "
                "or a .dat file of memory_profiler"
            )
        if head.startswith(journal.MAGIC):
            with source.stream() as file:
                return of(journal.load(iter(lambda: file.readline(_MAX_LINE), b""), path))
        if not head.lstrip().startswith(b"{"):
            return of(_dat(source))
    document = jsonfiles.load(path, limit=MAX_JSON, what="JSON of `lowtide profile --save`")
    if not isinstance(document, dict) or document.get("lowtide_profile") != VERSION:
        version = brief(document.get("lowtide_profile") if isinstance(document, dict) else None)
        raise FormatError(
            f"{path}: JSON, but not of `lowtide profile --save` (lowtide_profile is {version}, expected "
            f"{VERSION}); pass such a file, or a .dat file of memory_profiler"
        )
    _check(path, document)
    return document


def _foreign(head: bytes) -> str | None:
    """What a file that starts with ``head`` is, or ``None`` where it may be a recording."""
    text = head.lstrip()
    for magic, name in _MAGIC.items():
        if text[: len(magic)].lower() == magic.lower():
            return name
    if text.startswith(b"{") and b'"lowtide_profile"' not in head:
        return next((name for key, name in _KEYS.items() if key in head), None)
    return None


def _dat(source: Store) -> Recording:
    if source.size > MAX_DAT:
        raise FormatError(
            f"{source.path}: too large for a .dat file ({source.size} bytes, expected at most {MAX_DAT}); "
            "pass a part of its lines"
        )
    with source.stream() as file:
        return dat.parse(iter(lambda: file.readline(_MAX_LINE), b""), source.path)


def _check(path: str, document: Document) -> None:
    """Raise for a document that lacks what the report shows."""
    for name, kind in _TYPES.items():
        value = document.get(name)
        if not isinstance(value, kind) and not (value is None and name == "cause"):
            raise _wrong(path, name, f"a {kind.__name__}", value)
    for index, sample in enumerate(document["samples"]):
        row = sample if isinstance(sample, dict) else {}
        if missing := [
            name for name in (*_COLUMNS, *_NEWER) if not _is_number(row.get(name, _OLD.get(name)))
        ]:
            raise FormatError(f"{path}: sample {index} has no number for {', '.join(missing)}; {_REMEDY}")
    if document.get("state", "grows") not in _STATES:
        raise _wrong(path, "state", f"one of {', '.join(_STATES)}", document["state"])
    looks = document.get("container", [])
    for index, look in enumerate(looks if isinstance(looks, list) else [looks]):
        if not isinstance(look, dict) or not all(_is_number(look.get(name)) for name in Charges._fields):
            raise _wrong(path, f"container[{index}]", f"numbers for {', '.join(Charges._fields)}", look)
    for index, row in enumerate(document["mappings"]):
        if not isinstance(row, dict) or not isinstance(row.get("path"), str):
            raise _wrong(path, f"mappings[{index}]", "an object with a path", row)
        for name in ("resident", "resident_at", "page_cache", "size"):
            if row.get(name) is not None and not (_is_number(row[name]) and row[name] >= 0):
                raise _wrong(path, f"mappings[{index}].{name}", "a number >= 0", row[name])
    for name in ("base_mib", "peak_mib", "bytes_read", *_NUMBERS):
        value = document.get(name)
        if not _is_number(value) and not (value is None and name in _NUMBERS):
            raise _wrong(path, name, "a number", value)
    if not 0 <= (document.get("started") or 0) <= dat.MOST_TIME:
        raise _wrong(path, "started", f"seconds from 0 to {dat.MOST_TIME}", document["started"])
    events = document.get("events", [])
    for event in events if isinstance(events, list) else [events]:
        row = event if isinstance(event, dict) else {}
        if not isinstance(row.get("text"), str) or not all(_is_number(row.get(x)) for x in ("time", "until")):
            raise _wrong(path, "events", "a list of objects with text, time and until", event)
    notes = document.get("not_seen", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise _wrong(path, "not_seen", "a list of str", notes)


def _is_number(value: object) -> bool:
    """Whether it is a number that a figure of memory or time can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**64


def _wrong(path: str, name: str, expected: str, value: object) -> FormatError:
    return jsonfiles.invalid(f"{path}: {name!r}", value, expected, _REMEDY)
