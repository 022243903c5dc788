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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from lowtide._arrays.formats.layout import Layout, size_error
from lowtide._io import jsonfiles
from lowtide._io.store import Neighbours, Peek, absolute, peek
from lowtide._printable import brief
from lowtide._tokens.formats import llmc
from lowtide._tokens.formats.documents import Column, Documents
from lowtide._tokens.formats.index import MAX_INDEX, Inside, agree, read_json, whole
from lowtide._tokens.formats.tokens import IndexFile, Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError

if TYPE_CHECKING:
    pass

NAME = "corpus.json"
FORMAT = "lowtide corpus"
VERSION = 1

LayoutName = Literal["shards", "nanogpt", "llmc"]

_LAYOUTS = ("shards", "nanogpt", "llmc")
_DTYPES: dict[str, np.dtype[np.uint16] | np.dtype[np.uint32]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
_END = np.dtype("<u8")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of tokens, and the file of its documents' ends."""

    file: str
    tokens: int
    sha256: str
    documents: int | None = None
    ends: str | None = None
    ends_sha256: str | None = None


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
    sources: Sequence[object] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Plain containers, so that what was read equals what was written.
        object.__setattr__(self, "splits", {name: list(shards) for name, shards in self.splits.items()})
        object.__setattr__(self, "sources", list(self.sources))
        object.__setattr__(self, "settings", dict(self.settings))

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
            raise FormatError(f"{where}: format must be {FORMAT!r}, found {brief(content.get('format'))}")
        if content.get("version") != VERSION:
            raise FormatError(
                f"{where}: version {brief(content.get('version'))} is not known, {VERSION} is; written by a "
                "newer lowtide: update this one"
            )
        _keys(content, {"format", "version", *cls.__dataclass_fields__}, where)
        dtype = _one_of(content["dtype"], tuple(_DTYPES), f"{where}: dtype")
        most = int(np.iinfo(_DTYPES[dtype]).max) + 1
        vocab_size, eos = content["vocab_size"], content["eos"]
        if vocab_size is not None:
            vocab_size = most = whole(vocab_size, f"{where}: vocab_size", least=1, most=most)
        if eos is not None:
            eos = whole(eos, f"{where}: eos", most=most - 1)
        splits = content["splits"]
        if not isinstance(splits, dict) or not all(_SPLIT.fullmatch(name) for name in splits):
            raise FormatError(
                f"{where}: splits must be an object of names such as 'train', found {brief(splits)}"
            )
        sources, settings = content["sources"], content["settings"]
        if not isinstance(sources, list) or not isinstance(settings, dict):
            raise FormatError(
                f"{where}: sources must be a list and settings an object, found {brief(sources)}"
            )
        layout = cast("LayoutName", _one_of(content["layout"], _LAYOUTS, f"{where}: layout"))
        manifest = cls(
            dtype=dtype,
            splits={name: _shards(shards, f"{where}: splits.{name}") for name, shards in splits.items()},
            layout=layout,
            vocab_size=vocab_size,
            eos=eos,
            tokenizer=_tokenizer(content["tokenizer"], f"{where}: tokenizer"),
            sources=sources,
            settings=settings,
        )
        names = [
            name
            for shards in manifest.splits.values()
            for shard in shards
            for name in (shard.file, shard.ends)
        ]
        if layout == "nanogpt" and any(len(shards) != 1 for shards in manifest.splits.values()):
            raise FormatError(f"{where}: the layout 'nanogpt' has one file a split, found {brief(names)}")
        seen: set[str | None] = set()
        for name in names:
            if name is not None and name in seen:
                raise FormatError(f"{where}: splits list the file {brief(name)} twice; each may come once")
            seen.add(name)
        return manifest


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

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return isinstance(file, IndexFile) and os.path.basename(file.path) == NAME

    def find(self, selection: Selection) -> Tokens:
        [index] = selection.files
        assert isinstance(index, IndexFile)
        path, split = index.path, selection.split
        manifest = Manifest.from_json(index.content, path)
        if split not in manifest.splits:
            raise ArgumentError(
                f"{path}: has no split {split!r}, found {brief(list(manifest.splits))}; pass split="
            )
        dtype = agree(_DTYPES[manifest.dtype], selection.dtype, path)
        inside = Inside(path)
        segments, parts = [], []
        for i, shard in enumerate(manifest.splits[split]):
            where = f"splits.{split}[{i}]"
            segments.append(_segment(inside, where, shard, dtype, manifest.layout))
            if shard.ends is not None and shard.documents is not None:
                ends, identity = inside.stat(shard.ends, f"{where}.ends")
                expected = shard.documents * _END.itemsize
                _check_size(ends, identity.size, expected, f"{where}.documents {shard.documents}", path)
                layout = Layout(
                    ends, self.name, 0, _END, (shard.documents,), file_size=expected, identity=identity
                )
                parts.append(Column(layout, "document ends"))
        documents = None
        if parts:
            documents = Documents("ends", parts, [segment.count for segment in segments])
            if documents.tokens:
                documents.at(documents.tokens - 1)  # so the last document ends where the tokens do
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
    path, identity = inside.stat(shard.file, f"{where}.file")
    offset = llmc.HEADER if layout == "llmc" else 0
    expected = offset + shard.tokens * dtype.itemsize
    _check_size(path, identity.size, expected, f"{where}.tokens {shard.tokens}", inside.index)
    if layout == "llmc":
        count, kind = llmc.check(peek(path))
        if count != shard.tokens or np.dtype(kind.dtype) != dtype:
            raise FormatError(
                f"{path}: its header and {inside.index} are of different corpora ({count} tokens of "
                f"{np.dtype(kind.dtype)}, expected {shard.tokens} of {dtype} by {where}); write them again"
            )
    return Segment(path, offset, shard.tokens, file_size=expected, identity=identity)


def _check_size(path: str, size: int, expected: int, what: str, index: str) -> None:
    if size != expected:
        remedy = "restore it or prepare the corpus again"
        raise size_error(path, size, expected, f"{what} in {index}", remedy)


def _shards(content: object, where: str) -> list[Shard]:
    if not isinstance(content, list):
        raise FormatError(f"{where} must be a list of shards, found {brief(content)}")
    shards = [_shard(entry, f"{where}[{i}]") for i, entry in enumerate(content)]
    if len({shard.ends is None for shard in shards}) > 1:
        raise FormatError(f"{where} must have ends for all shards or for none, found both")
    return shards


def _shard(entry: object, where: str) -> Shard:
    if not isinstance(entry, dict):
        raise FormatError(f"{where} must be an object, found {brief(entry)}")
    _keys(entry, _SHARD_KEYS, where)
    documents, ends, ends_sha256 = entry["documents"], entry["ends"], entry["ends_sha256"]
    known = [value is not None for value in (documents, ends, ends_sha256)]
    if any(known) and not all(known):
        raise FormatError(
            f"{where} must have documents, ends and ends_sha256 or none of them, found {brief(entry)}"
        )
    return Shard(
        file=_name(entry["file"], where, "file"),
        tokens=whole(entry["tokens"], f"{where}.tokens", most=2**60),
        sha256=_digest(entry["sha256"], where, "sha256"),
        documents=None if documents is None else whole(documents, f"{where}.documents", most=2**60),
        ends=None if ends is None else _name(ends, where, "ends"),
        ends_sha256=None if ends is None else _digest(ends_sha256, where, "ends_sha256"),
    )


def _tokenizer(content: object, where: str) -> Tokenizer | None:
    if content is None:
        return None
    if not isinstance(content, dict):
        raise FormatError(f"{where} must be an object or null, found {brief(content)}")
    _keys(content, set(Tokenizer.__dataclass_fields__), where)
    name, sha256, file = content["name"], content["sha256"], content["file"]
    if not isinstance(name, str) or not name:
        raise FormatError(f"{where}.name must be a name, found {brief(name)}")
    return Tokenizer(
        name,
        None if sha256 is None else _digest(sha256, where, "sha256"),
        None if file is None else _name(file, where, "file"),
    )


def _keys(content: Mapping[str, object], expected: set[str], where: str) -> None:
    if content.keys() != expected:
        missing, unknown = expected - content.keys(), content.keys() - expected
        raise FormatError(
            f"{where} must have the keys {', '.join(sorted(expected))}; missing: "
            f"{', '.join(sorted(missing)) or 'none'}, unknown: {brief(sorted(unknown))}"
        )


def _one_of(value: object, known: tuple[str, ...], where: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise FormatError(f"{where} must be {' or '.join(map(repr, known))}, found {brief(value)}")
    return value


def _name(value: object, where: str, key: str) -> str:
    # Plain names only: a corpus is one folder, which may be copied as it is.
    if (
        not isinstance(value, str)
        or not value
        or len(value) > 255
        or value in (".", "..")
        or _UNPLAIN.search(value)
    ):
        raise FormatError(f"{where}.{key} must be a plain file name, found {brief(value)}")
    return value


def _digest(value: object, where: str, key: str) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise FormatError(f"{where}.{key} must be 64 hexadecimal digits in lower case, found {brief(value)}")
    return value


_SHARD_KEYS = set(Shard.__dataclass_fields__)
_UNPLAIN = re.compile(r"[/\\\0:\ud800-\udfff]")
