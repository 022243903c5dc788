"""Token corpora: what a path holds, and where its tokens and documents lie.

``find`` takes a folder, a file, a list of files or a glob. It goes by content; where content cannot tell it
asks, and never guesses: a raw file needs its dtype, a folder with two kinds of corpora needs a name.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from lowtide import errors
from lowtide._arrays.formats import FORMATS, foreign
from lowtide._arrays.formats.npy import MAGIC as NPY_MAGIC
from lowtide._io import store
from lowtide._io.identity import Identity
from lowtide._io.store import Peek, absolute, opened, peek
from lowtide._printable import brief
from lowtide._tokens.formats.index import TokenDtype, in_order, read_json
from lowtide.errors import ArgumentError, FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._tokens.formats.documents import Documents, Ints

Path = str | os.PathLike[str]

_GLOB = re.compile(r"[*?\[]")
_WORD = re.compile(r"(?:^|[^a-z])(train|training|val|valid|validation|test|dev|eval)(?![a-z])")
_SAME = {"training": "train", "valid": "val", "validation": "val"}
MEGATRON_MAGIC = b"MMIDIDX\0\0"
LLMC_MAGICS = {struct.pack("<i", number): number for number in (20240520, 20240801)}
_SUFFIXES = (".bin", ".idx", ".ds", ".npy")
_INDEXES = ("corpus.json", "index.json")
UNFINISHED = ".prepare"
"""What ``lowtide prepare`` keeps in the output folder until the corpus is complete."""
_MODULES = {
    "npy": "npytokens",
    "megatron": "megatron",
    "llm.c": "llmc",
    "datatrove": "datatrove",
    "olmo": "olmo",
    "raw": "nanogpt",
}
_BY_SUFFIX = {".idx": "megatron", ".ds": "datatrove", ".npy": "olmo"}
_LISTED = 5  # names that an error shows


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens in one file."""

    path: str
    offset: int
    """Byte of the first token."""
    count: int
    """Tokens in it."""
    record: int = 0
    """0 where they lie one behind the other; else they come in records of so many tokens ..."""
    stride: int = 0
    """... that begin so many bytes apart."""
    file_size: int = 0
    """Size of the file when it was looked at."""
    identity: Identity | None = None
    """The file when it was looked at, to notice that it was replaced or written to since."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A corpus: its tokens in order, and how its documents are known."""

    format: str
    """lowtide, nanogpt, llm.c, megatron, datatrove, olmo, npy, litdata or mds; raw for files that only the
    caller's dtype describes."""
    dtype: TokenDtype
    segments: tuple[Segment, ...]
    documents: Documents | None = None
    """None where they must be found by a scan: for ``index`` if that is set, else for ``eos``."""
    eos: int | None = None
    vocab_size: int | None = None
    marks: Literal["end", "begin"] = "end"
    """Whether ``eos`` is the last token of a document or the first; a document may cross segments."""
    index: Callable[[], Iterator[Ints]] | None = None
    """Blocks of document ends in global tokens, for an index that can only be read from front to back."""
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """All tokens."""
        return sum(segment.count for segment in self.segments)


def find(path: Path | Iterable[Path], *, split: str = "train", dtype: npt.DTypeLike | None = None) -> Tokens:
    """What ``path`` holds and where its tokens lie.

    ``split`` picks among the splits of a folder or a glob; a file or a list of files is taken as it is.
    ``dtype`` is needed where no header and no index tells it.

    >>> (tmp / "shakespeare").mkdir()
    >>> np.arange(1000, dtype="<u2").tofile(tmp / "shakespeare/train.bin")
    >>> np.arange(10, dtype="<u2").tofile(tmp / "shakespeare/val.bin")
    >>> found = find(tmp / "shakespeare", split="val")
    >>> found.format, str(found.dtype), found.count
    ('nanogpt', 'uint16', 10)
    """
    if not isinstance(split, str) or not split:
        raise ArgumentError(f"split must be a name such as 'train' or 'val', got {split!r}")
    if not isinstance(path, (str, os.PathLike)):
        tokens = _listed(path, dtype)
    else:
        name = absolute(path)
        if store.is_folder(name):
            tokens = _folder(name, split, dtype)
        elif os.path.basename(name) in _INDEXES:
            tokens = _index(name, split, dtype)
        elif not store.exists(name) and _GLOB.search(os.fspath(path)):
            tokens = _matched(name, split, dtype)
        else:
            tokens = _files([name], dtype)
    if not tokens.count:
        raise FormatError(
            f"{tokens.segments[0].path if tokens.segments else path}: the {tokens.format} corpus holds no "
            "tokens: empty or not yet written; was it written to the end?"
        )
    return tokens


def _listed(paths: Iterable[Path], dtype: npt.DTypeLike | None) -> Tokens:
    try:
        names = [absolute(path) for path in paths]
    except TypeError:
        raise ArgumentError(f"path must be a path, a glob or a list of paths, got {paths!r}") from None
    if not names:
        raise ArgumentError("the list of files is empty; name one at least")
    if len(set(names)) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise ArgumentError(f"{twice}: is in the list more than once; name each file once")
    return _files(names, dtype)


def _matched(pattern: str, split: str, dtype: npt.DTypeLike | None) -> Tokens:
    names = store.glob(pattern)
    if not names:
        raise errors.NotFoundError(
            errno.ENOENT, "no file matches this pattern; check it and the working directory", pattern
        )
    names = in_order(names)
    return _files(_of_split(names, split, pattern, named=True), dtype)


def _folder(folder: str, split: str, dtype: npt.DTypeLike | None, named: bool = False) -> Tokens:
    """``named`` if the folder itself is called for the split."""
    for index in _INDEXES:
        if store.exists(os.path.join(folder, index)):
            return _index(os.path.join(folder, index), split, dtype)
    if store.exists(os.path.join(folder, UNFINISHED)):
        raise FormatError(
            f"{folder}: lowtide prepare has not finished here; run the same command again and it goes on"
        )
    listing = store.list_folder(folder)
    files, folders = ([name for name in names if not name.startswith(".")] for names in listing)
    present = set(files)
    kinds: dict[str, list[str]] = {}
    for name in in_order(files):
        stem, dot, suffix = name.rpartition(".")
        suffix = dot + suffix
        if suffix not in _SUFFIXES or (suffix == ".idx" and stem + ".bin" in present):
            continue
        kinds.setdefault(".idx" if stem + ".idx" in present else suffix, []).append(name)
    if len(kinds) > 1:
        several = "; ".join(f"{len(names)} {suffix} ({_some(names)})" for suffix, names in kinds.items())
        raise ArgumentError(
            f"{folder}: holds files of several kinds, and which are meant cannot be told: {several}; name "
            f"the files, as in lowtide.corpus({os.path.join(folder, '*' + next(iter(kinds)))!r})"
        )
    if not kinds:
        if split in folders and not named:
            return _folder(os.path.join(folder, split), split, dtype, named=True)
        step = "name the files, and their dtype if they are raw"
        if any(name.endswith(foreign.PREPARED) for name in files):
            step = f"tokenize text with `lowtide prepare {folder} OUT`, or {step}"
        raise FormatError(
            f"{folder}: holds no token corpus (corpus.json, index.json, or files that end in "
            f"{', '.join(_SUFFIXES)}), found {_some(in_order(files + folders)) or 'nothing'}; {step}"
        )
    [(suffix, names)] = kinds.items()
    names = _of_split(names, split, folder, named)
    if suffix == ".idx" and len(names) > 1:
        raise ArgumentError(
            f"{folder}: holds {len(names)} Megatron data sets ({_some(names)}), and which is meant cannot be "
            f"told; name one, as in lowtide.corpus({os.path.join(folder, names[0])!r}), or pass a list to "
            "have them one behind the other"
        )
    prefix = folder.rstrip(os.sep) + os.sep
    tokens = _files([prefix + name for name in names], dtype)
    if tokens.format == "nanogpt" and "meta.pkl" in present:
        from lowtide._tokens.formats import nanogpt

        return nanogpt.with_meta(tokens, os.path.join(folder, "meta.pkl"))
    return tokens


def _of_split(names: list[str], split: str, where: str, named: bool = False) -> list[str]:
    """The files whose names say that they belong to ``split``.

    Where no name says any, all are the train split; where the caller ``named`` files of one, that is meant.
    """
    wanted = _SAME.get(split, split)
    groups: dict[str | None, list[str]] = {}
    for name in names:
        word = _WORD.search(name.rpartition(os.sep)[2].lower())
        groups.setdefault(_SAME.get(word[1], word[1]) if word else None, []).append(name)
    if len(groups) == 1 and (named or (None in groups and wanted == "train")):
        return names
    if wanted not in groups:
        there = "; ".join(f"{key or 'no split'}: {_some(group)}" for key, group in groups.items())
        raise errors.NotFoundError(
            errno.ENOENT,
            f"no file here is named for the split {split!r} ({there}); name another split, or the files",
            where,
        )
    if None in groups:
        raise ArgumentError(
            f"{where}: some files are named for a split ({_some(groups[wanted])}) and others for none "
            f"({_some(groups[None])}), and whether they belong together cannot be told; name the files that "
            "are meant, with a list or a glob"
        )
    return groups[wanted]


def _some(names: list[str]) -> str:
    more = f", … {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(os.path.basename(name) for name in names[:_LISTED]) + more


def _index(path: str, split: str, dtype: npt.DTypeLike | None) -> Tokens:
    """A corpus that a JSON file describes."""
    if os.path.basename(path) == "corpus.json":
        from lowtide._tokens.formats import own

        return own.find(path, split, dtype)
    content = read_json(path)
    if "chunks" in content:
        from lowtide._tokens.formats import litdata

        return litdata.find(path, content, dtype)
    if "shards" in content:
        from lowtide._tokens.formats import mds

        return mds.find(path, content, dtype)
    raise FormatError(
        f"{path}: an index of LitData has 'chunks' and one of MosaicML Streaming 'shards', found "
        f"{brief(list(content))}; name the files that are meant"
    )


def _files(paths: list[str], dtype: npt.DTypeLike | None) -> Tokens:
    """Files in their order, all of one kind."""
    seen = [peek(path if path.endswith(_SUFFIXES) else _of_prefix(path)) for path in paths]
    first = _kind(seen[0])
    for one in seen[1:]:
        if (kind := _kind(one)) != first:
            raise ArgumentError(
                f"{one.path}: looks like {kind}, and {seen[0].path} like {first}: files of one corpus are of "
                "one kind; name those that belong together"
            )
    if first in ("raw", "olmo"):
        _refuse_foreign(seen[0], dtype)
    # Imported here so that nobody waits for what is not needed.
    found: Tokens = import_module(f"lowtide._tokens.formats.{_MODULES[first]}").find(seen, dtype)
    return found


def _refuse_foreign(seen: Peek, dtype: npt.DTypeLike | None) -> None:
    """Raise for a file that holds no tokens; with a dtype only if its name is not that of a file of tokens.

    Tokens may be any bytes, so a file called ``train.bin`` may start like a zip.
    """
    if dtype is not None and seen.path.endswith(_SUFFIXES):
        return
    with opened(seen.path) as file:
        if not file.size:
            return
        for format in FORMATS:
            if seen.head.startswith(format.magics):
                raise FormatError(
                    f"{seen.path}: is {format.title} file, and a corpus is made of other files; save its "
                    f"tokens with np.save, or open its arrays with lowtide.open({seen.path!r})"
                )
        kind = foreign.identify(file)
    if kind is not None:
        raise FormatError(kind.message(seen.path, tokens=True))


def _of_prefix(path: str) -> str:
    """Megatron's users name what comes before .bin and .idx."""
    return path + ".idx" if not store.exists(path) and store.exists(path + ".idx") else path


def _kind(seen: Peek) -> str:
    if seen.head.startswith(NPY_MAGIC):
        return "npy"
    if seen.head.startswith(MEGATRON_MAGIC):
        return "megatron"
    if seen.head[:4] in LLMC_MAGICS:
        return "llm.c"
    if seen.path.endswith(".bin"):
        return "megatron" if store.exists(seen.path[:-4] + ".idx") else "raw"
    suffix = os.path.splitext(seen.path)[1]
    folder, name = os.path.split(seen.path)
    if name in _INDEXES:
        raise ArgumentError(f"{seen.path}: is an index and no shard of tokens; name its folder: {folder!r}")
    return _BY_SUFFIX.get(suffix, "raw")
