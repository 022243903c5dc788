"""lowtide's own corpora: ``corpus.json`` and the files that it lists.

::

    {
      "format": "lowtide corpus", "version": 1,
      "layout": "shards",              raw tokens; "nanogpt" the same in one file; "llmc" with llm.c's header
      "dtype": "uint16",               or "uint32", little-endian
      "vocab_size": 50257,             or null; ids are below it
      "eos": 50256,                    or null; the last token of every document
      "tokenizer": {"name": "gpt2", "sha256": "9f86...", "file": "tokenizer.json"},
      "splits": {"train": [{
          "file": "train-00000.bin", "tokens": 100000000, "sha256": "60303...",
          "documents": 81234, "ends": "train-00000.ends", "ends_sha256": "fd61a..."}, ...]},
      "sources": [...], "settings": {...}      any JSON, for people
    }

``ends`` is a file of uint64: for each document that ends in this shard the number of tokens, from the
shard's first one, up to and with its last. A document may start in one shard and end in a later one; the last
shard of a split ends with a document. A split has ``ends`` for all of its shards or for none (then
``documents``, ``ends`` and ``ends_sha256`` are null). Names are plain file names in the folder of
``corpus.json``. Any other key is refused: a later version that needs one will say version 2.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import numpy as np

from lowtide._io import jsonfiles
from lowtide._io.jsonfiles import invalid
from lowtide._io.store import absolute, peek
from lowtide._printable import brief
from lowtide._tokens.formats import llmc
from lowtide._tokens.formats.documents import END, Column, Documents, integers
from lowtide._tokens.formats.index import MAX_INDEX, Inside, agree, no_split, read_json, whole
from lowtide._tokens.formats.tokens import Segment, Selection, TokenFormat, Tokens
from lowtide.errors import FormatError

NAME = "corpus.json"
FORMAT = "lowtide corpus"
VERSION = 1

LayoutName = Literal["shards", "nanogpt", "llmc"]

_LAYOUTS = ("shards", "nanogpt", "llmc")
_DTYPES: dict[str, np.dtype[np.uint16] | np.dtype[np.uint32]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
_REMEDY = "restore it or prepare the corpus again"
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_T = TypeVar("_T")

# What the fields of a shard and of the tokenizer must be; where there is no pattern, a count. File names are
# plain: a corpus is one folder, which may be copied as it is.
_FILE = re.compile(r"(?!\.\.?\Z)[^/\\\0:\ud800-\udfff]{1,255}"), "a plain file name"
_SUM = re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits in lower case"
_COUNT = None, "an integer from 0 to 2**60"
_CHECKS: dict[str, tuple[re.Pattern[str] | None, str]] = {
    "file": _FILE,
    "tokens": _COUNT,
    "sha256": _SUM,
    "ends": _FILE,
    "documents": _COUNT,
    "ends_sha256": _SUM,
    "name": (re.compile("(?s).+"), "a name"),
}


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of tokens, and the file of its documents' ends."""

    file: str
    tokens: int
    sha256: str
    documents: int | None = None
    ends: str | None = None
    ends_sha256: str | None = None

    @property
    def files(self) -> list[tuple[str, str | None]]:
        """Its files, each with its digest."""
        return [(self.file, self.sha256), *([] if self.ends is None else [(self.ends, self.ends_sha256)])]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of the tokens; ``file`` is beside ``corpus.json``."""

    name: str
    sha256: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``corpus.json``.

    >>> shard = Shard("train-00000.bin", tokens=3, sha256="0" * 64)
    >>> manifest = Manifest("uint16", {"train": [shard]}, vocab_size=256)
    >>> Manifest.from_json(json.loads(manifest.to_json()), "corpus.json") == manifest
    True
    """

    dtype: str
    splits: Mapping[str, Sequence[Shard]]
    layout: LayoutName = "shards"
    vocab_size: int | None = None
    eos: int | None = None
    tokenizer: Tokenizer | None = None
    sources: Sequence[object] = field(default_factory=list)
    settings: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of ``corpus.json``; checked first, so that nothing is written that cannot be read."""
        content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        encoded = text.encode()
        if len(encoded) > MAX_INDEX:
            raise FormatError(
                f"{NAME}: is too large ({len(encoded)} bytes, expected at most {MAX_INDEX}); write fewer, "
                "larger shards, from fewer inputs"
            )
        Manifest.from_json(cast("dict[str, object]", jsonfiles.parse(encoded, NAME, "index")), NAME)
        return text

    @classmethod
    def from_json(cls, content: Mapping[str, object], where: str) -> Manifest:
        """Check every field; ``where`` is the file, for errors."""
        if content.get("format") != FORMAT:
            raise invalid(f"{where}: format", content.get("format"), repr(FORMAT))
        if content.get("version") != VERSION:
            raise FormatError(
                f"{where}: version {brief(content.get('version'))} is not known, {VERSION} is; written by a "
                "newer lowtide: update this one"
            )
        _check_keys(content, {"format", "version", *cls.__dataclass_fields__}, where)
        values: dict[str, Any] = {name: content[name] for name in cls.__dataclass_fields__}
        for name, known in (("dtype", tuple(_DTYPES)), ("layout", _LAYOUTS)):
            if values[name] not in known:
                raise invalid(f"{where}: {name}", values[name], " or ".join(map(repr, known)))
        most = int(np.iinfo(_DTYPES[values["dtype"]]).max) + 1
        if values["vocab_size"] is not None:
            most = whole(values["vocab_size"], f"{where}: vocab_size", least=1, most=most)
        if values["eos"] is not None:
            whole(values["eos"], f"{where}: eos", most=most - 1)
        splits = values["splits"]
        if not isinstance(splits, dict) or not all(_SPLIT.fullmatch(name) for name in splits):
            raise invalid(f"{where}: splits", splits, "an object of names such as 'train'")
        if not isinstance(values["sources"], list):
            raise invalid(f"{where}: sources", values["sources"], "a list")
        if not isinstance(values["settings"], dict):
            raise invalid(f"{where}: settings", values["settings"], "an object")
        values["splits"] = {name: _shards(splits[name], f"{where}: splits.{name}") for name in splits}
        if values["tokenizer"] is not None:
            values["tokenizer"] = _record(Tokenizer, values["tokenizer"], f"{where}: tokenizer")
        manifest = cls(**values)
        names = [name for shards in manifest.splits.values() for shard in shards for name, _ in shard.files]
        if manifest.layout == "nanogpt" and any(len(shards) != 1 for shards in manifest.splits.values()):
            raise FormatError(f"{where}: the layout 'nanogpt' has one file a split, found {brief(names)}")
        if len(set(names)) < len(names):
            [(twice, _)] = Counter(names).most_common(1)
            raise FormatError(f"{where}: splits list the file {brief(twice)} twice; each may come once")
        return manifest

    @property
    def files(self) -> list[tuple[str, str | None]]:
        """Every file except the index, each with its digest; None for one that is not known."""
        files = [file for shards in self.splits.values() for shard in shards for file in shard.files]
        if self.tokenizer is not None and self.tokenizer.file is not None:
            files.append((self.tokenizer.file, self.tokenizer.sha256))
        return files


def write(folder: str | os.PathLike[str], manifest: Manifest) -> None:
    """Publish ``corpus.json``, whole or not at all. It comes last: it makes the files beside it a corpus.

    >>> write(tmp, Manifest("uint16", {"train": [Shard("train-00000.bin", 3, "0" * 64)]}))
    >>> read(tmp / "corpus.json").splits["train"][0].tokens
    3
    """
    from lowtide._io.atomic import write_file

    write_file(os.path.join(os.fspath(folder), NAME), manifest.to_json().encode())


def read(path: str | os.PathLike[str]) -> Manifest:
    """The content of a ``corpus.json``; the files that it lists are not checked."""
    name = absolute(path)
    return Manifest.from_json(read_json(name), name)


class Own(TokenFormat):
    """The tokens of a split; every file is there and has the size that ``corpus.json`` promises."""

    name = "lowtide"
    index = NAME
    signature = f"format {FORMAT!r}"

    def find(self, selection: Selection) -> Tokens:
        path, split = selection.path, selection.split
        manifest = Manifest.from_json(selection.index.content, path)
        if split not in manifest.splits:
            raise no_split(path, split, list(manifest.splits))
        dtype = agree(_DTYPES[manifest.dtype], selection.dtype, path)
        inside = Inside(path)
        segments, parts = [], []
        for i, shard in enumerate(manifest.splits[split]):
            where = f"splits.{split}[{i}]"
            segments.append(_segment(inside, where, shard, dtype, manifest.layout))
            if shard.ends is not None and shard.documents is not None:
                size, what = shard.documents * END.itemsize, f"{where}.documents {shard.documents}"
                ends, identity = inside.sized(shard.ends, f"{where}.ends", size, what, _REMEDY)
                parts.append(Column(integers(ends, identity, shard.documents)))
        documents = Documents.of_ends(parts, [segment.count for segment in segments]) if parts else None
        tokenizer = manifest.tokenizer
        metadata = {
            "tokenizer": dataclasses.asdict(tokenizer) if tokenizer else None,
            "layout": manifest.layout,
            "splits": tuple(manifest.splits),
            "sources": manifest.sources,
            "settings": manifest.settings,
        }
        return Tokens(
            self.name,
            dtype,
            tuple(segments),
            documents,
            eos=manifest.eos,
            vocab_size=manifest.vocab_size,
            metadata=metadata,
        )


def _segment(inside: Inside, where: str, shard: Shard, dtype: np.dtype[np.integer], layout: str) -> Segment:
    offset = llmc.HEADER if layout == "llmc" else 0
    expected = offset + shard.tokens * dtype.itemsize
    what = f"{where}.tokens {shard.tokens}"
    path, identity = inside.sized(shard.file, f"{where}.file", expected, what, _REMEDY)
    if layout == "llmc" and not identity.is_remote:
        count, kind = llmc.check(peek(path))
        if count != shard.tokens or np.dtype(kind.dtype) != dtype:
            raise FormatError(
                f"{path}: its header and {inside.index} are of different corpora ({count} tokens of "
                f"{np.dtype(kind.dtype)}, expected {shard.tokens} of {dtype} by {where}); write them again"
            )
    return Segment(path, offset, shard.tokens, file_size=expected, identity=identity)


def _shards(content: object, where: str) -> list[Shard]:
    if not isinstance(content, list):
        raise invalid(where, content, "a list of shards")
    shards = [_record(Shard, entry, f"{where}[{i}]") for i, entry in enumerate(content)]
    for i, shard in enumerate(shards):
        if len({value is None for value in (shard.documents, shard.ends, shard.ends_sha256)}) > 1:
            raise invalid(f"{where}[{i}]", content[i], "documents, ends and ends_sha256, or none of them")
    if len({shard.ends is None for shard in shards}) > 1:
        raise invalid(where, "both", "ends for all shards or for none")
    return shards


def _record(kind: type[_T], content: object, where: str) -> _T:
    """A ``Shard`` or ``Tokenizer`` whose every field was checked."""
    if not isinstance(content, dict):
        raise invalid(where, content, "an object")
    defaults = {one.name: one.default for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    _check_keys(content, set(defaults), where)
    for name, value in content.items():
        if value is not None or defaults[name] is not None:  # null where None is the default
            pattern, expected = _CHECKS[name]
            if not _matches(pattern, value):
                raise invalid(f"{where}.{name}", value, expected)
    return kind(**content)


def _check_keys(content: Mapping[str, object], expected: set[str], where: str) -> None:
    if content.keys() != expected:
        missing, unknown = expected - content.keys(), content.keys() - expected
        raise FormatError(
            f"{where} must have the keys {', '.join(sorted(expected))}; missing: "
            f"{', '.join(sorted(missing)) or 'none'}, unknown: {brief(sorted(unknown))}"
        )


def _matches(pattern: re.Pattern[str] | None, value: object) -> bool:
    if pattern is None:
        return type(value) is int and 0 <= value <= 2**60
    return isinstance(value, str) and pattern.fullmatch(value) is not None
