"""Files that ``lowtide report`` is given by mistake, by their first bytes."""

from __future__ import annotations

_BEGINNINGS = {
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


def kind(head: bytes) -> str | None:
    """What a file is that begins with ``head``, or None where it may be a recording.

    >>> kind(b"\\x89PNG"), kind(b"MEM 1.0 2.0")
    ('a PNG picture', None)
    """
    text = head.lstrip()
    for beginning, name in _BEGINNINGS.items():
        if text[: len(beginning)].lower() == beginning.lower():
            return name
    if text.startswith(b"{") and b'"lowtide_profile"' not in head:
        return next((name for key, name in _KEYS.items() if key in head), None)
    return None
