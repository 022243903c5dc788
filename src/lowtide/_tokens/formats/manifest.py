"""A manifest of a corpus of any format: what opening it found out, so that others need not look again.

``lowtide info --manifest`` writes ``lowtide-manifest.json`` beside the files of a corpus:

    {
      "format": "lowtide manifest", "version": 1, "of": "megatron",
      "splits": {"train": {
          "dtype": "uint16", "eos": 50256, "marks": "end", "vocab_size": null,
          "files": [["x.bin", 123456, "etag or null", 0], ...],      name, bytes, ETag, modified (ns)
          "segments": [[0, 0, 61728, 0, 0], ...],                    file, byte, tokens, record, stride
          "documents": {"file": "lowtide-manifest-train.ends", "count": 1234}}}       or null
    }

``documents`` is a file of uint64: how many tokens there are up to the end of each document. A corpus in a
bucket is opened from it with a few requests, whatever the number of its files; each is compared with its size
and ETag when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide._io import jsonfiles
from lowtide._io.identity import Identity
from lowtide._io.jsonfiles import invalid
from lowtide._io.sinks import sink
from lowtide._io.store import is_address
from lowtide._tokens.formats.documents import END, Column, Documents, integers
from lowtide._tokens.formats.index import Inside, agree, no_split, whole
from lowtide._tokens.formats.tokens import Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError, UnsupportedError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus

NAME = "lowtide-manifest.json"
FORMAT = "lowtide manifest"
VERSION = 1

_REMEDY = "write the manifest again, with `lowtide info --manifest`"
_ENDS_AT_ONCE = 2**17  # documents


class Manifested(TokenFormat):
    """The tokens of a split, as a manifest lists them."""

    name = "manifest"
    index = NAME
    signature = f"format {FORMAT!r}"

    def find(self, selection: Selection) -> Tokens:
        path, content = selection.path, selection.index.content
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            actual = content.get("format"), content.get("version")
            raise invalid(f"{path}: format and version", actual, repr((FORMAT, VERSION)))
        splits = content.get("splits")
        if not isinstance(splits, dict) or selection.split not in splits:
            names = list(splits) if isinstance(splits, dict) else splits
            raise no_split(path, selection.split, names)
        where = f"{path}: splits.{selection.split}"
        split = splits[selection.split]
        if not isinstance(split, dict):
            raise invalid(where, split, "an object")
        dtype = agree(str(split.get("dtype")), selection.dtype, where)
        inside = Inside(path)
        files = [_file(inside, entry, i) for i, entry in enumerate(_list(split, "files", where))]
        segments = tuple(
            _segment(files, entry, dtype.itemsize, f"{where}.segments[{i}]")
            for i, entry in enumerate(_list(split, "segments", where))
        )
        eos, vocab_size, marks = split.get("eos"), split.get("vocab_size"), split.get("marks", "end")
        if marks not in ("end", "start"):
            raise invalid(f"{where}.marks", marks, "'end' or 'start'")
        return Tokens(
            str(content.get("of")),
            dtype,
            segments,
            _documents(inside, split.get("documents"), sum(one.count for one in segments), where),
            eos=None if eos is None else whole(eos, f"{where}.eos"),
            vocab_size=None if vocab_size is None else whole(vocab_size, f"{where}.vocab_size", least=1),
            marks=marks,
            metadata={"manifest": path},
        )


def write(corpora: dict[str, Corpus]) -> str:
    """Write the manifest of the splits of a corpus beside its files, and return its path.

    Parameters
    ----------
    corpora
        The corpus of each split.
    """
    first = next(iter(corpora.values()))
    folder = os.path.dirname(first.paths[0])
    if first.format == "lowtide":
        raise ArgumentError(f"{first.name}: has a corpus.json, which is a manifest; leave --manifest out")
    splits = {name: _described(corpus, folder, name) for name, corpus in corpora.items()}
    content = {"format": FORMAT, "version": VERSION, "of": first.format, "splits": splits}
    path = f"{folder}/{NAME}"
    text = json.dumps(content, separators=(",", ":"))
    jsonfiles.parse(text.encode(), NAME, "index")
    _write(path, iter([np.frombuffer(text.encode(), np.uint8)]))
    return path


def _described(corpus: Corpus, folder: str, split: str) -> dict[str, Any]:
    layout = corpus._layout
    identities = {segment.path: segment.identity for segment in layout.segments}
    outside = [path for path in identities if not path.startswith(f"{folder}/")]
    if outside:
        raise UnsupportedError(
            f"{outside[0]}: is not below {folder}, where the manifest of its corpus would be; move the files "
            "below one folder"
        )
    numbers = {path: number for number, path in enumerate(identities)}
    ends = None
    if corpus.has_documents:
        name = f"{NAME.removesuffix('.json')}-{split}.ends"
        _write(f"{folder}/{name}", _ends(corpus.documents))
        ends = {"file": name, "count": corpus.documents.count}
    return {
        "dtype": str(corpus.dtype),
        "eos": corpus.eos,
        "marks": layout.marks,
        "vocab_size": corpus.vocab_size,
        "files": [
            [path[len(folder) + 1 :], one.size, one.etag, one.mtime_ns]
            for path, one in identities.items()
            if one is not None
        ],
        "segments": [
            [numbers[one.path], one.offset, one.count, one.record, one.stride] for one in layout.segments
        ],
        "documents": ends,
    }


def _ends(documents: Documents) -> Iterator[Any]:
    for start in range(0, documents.count, _ENDS_AT_ONCE):
        bounds = documents.bounds(start, min(documents.count, start + _ENDS_AT_ONCE))
        yield bounds[:, 1].astype(END).view(np.uint8)


def _write(path: str, pieces: Iterator[Any]) -> None:
    with sink(path) as out:
        for piece in pieces:
            out.write(piece)


def _list(split: dict[str, Any], name: str, where: str) -> list[Any]:
    entries = split.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, list) for entry in entries):
        raise invalid(f"{where}.{name}", entries, "a list of lists")
    return entries


def _file(inside: Inside, entry: list[Any], number: int) -> tuple[str, Identity]:
    where = f"{inside.index}: files[{number}]"
    if len(entry) != 4 or not isinstance(entry[2], str | None):
        raise invalid(where, entry, "a name, a size, an ETag or null, and a time")
    size, modified = whole(entry[1], f"{where}[1]"), whole(entry[3], f"{where}[3]")
    path, identity = inside.sized(entry[0], f"files[{number}]", size, f"files[{number}]", _REMEDY)
    if is_address(path):
        identity = identity._replace(etag=entry[2], mtime_ns=modified)
    return path, identity


def _segment(files: list[tuple[str, Identity]], entry: list[Any], itemsize: int, where: str) -> Segment:
    if len(entry) != 5:
        raise invalid(where, entry, "five integers")
    number, offset, count, record, stride = (whole(value, where) for value in entry)
    if number >= len(files):
        raise invalid(where, entry, f"a file below {len(files)}")
    path, identity = files[number]
    last = offset + count * itemsize
    if record:
        if count % record or stride < record * itemsize:
            raise invalid(where, entry, "whole records, which do not overlap")
        last = offset + max(0, count // record - 1) * stride + record * itemsize
    if last > identity.size:
        raise FormatError(
            f"{where} ends beyond its file (byte {last}, expected at most {identity.size}); {_REMEDY}"
        )
    return Segment(path, offset, count, record, stride, identity.size, identity)


def _documents(inside: Inside, entry: Any, tokens: int, where: str) -> Documents | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise invalid(f"{where}.documents", entry, "an object or null")
    count = whole(entry.get("count"), f"{where}.documents.count")
    field, what, remedy = f"{where}.documents.file", f"{count} documents", "copy or write it again"
    path, identity = inside.sized(entry.get("file"), field, count * END.itemsize, what, remedy)
    return Documents.of_ends([Column(integers(path, identity, count))], [tokens])
