"""The formats of token corpora that lowtide reads in place.

``find`` takes a folder, a file, a list of either or a glob. It goes by content; where content is not enough
it raises and never guesses: a raw file needs its dtype, a folder with two kinds of corpora needs the files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

import numpy.typing as npt

from lowtide._arrays import formats as arrays
from lowtide._arrays.formats import foreign
from lowtide._io import store
from lowtide._io.store import Neighbours, Peek, absolute
from lowtide._printable import brief, listed
from lowtide._tokens.formats.arrow import Arrow, ArrowSplits, canonical
from lowtide._tokens.formats.datatrove import Datatrove
from lowtide._tokens.formats.index import in_order
from lowtide._tokens.formats.litdata import LitData
from lowtide._tokens.formats.llmc import LLMC
from lowtide._tokens.formats.manifest import Manifested
from lowtide._tokens.formats.mds import MDS
from lowtide._tokens.formats.megatron import Megatron
from lowtide._tokens.formats.nanogpt import Raw
from lowtide._tokens.formats.npytokens import NPYTokens
from lowtide._tokens.formats.olmo import OLMo
from lowtide._tokens.formats.own import Own
from lowtide._tokens.formats.several import join
from lowtide._tokens.formats.tokens import UNFINISHED, IndexFile, Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError, missing

__all__ = ["FORMATS", "Segment", "TokenFormat", "Tokens", "find"]

Path = str | os.PathLike[str]

FORMATS: list[TokenFormat] = [
    NPYTokens(),
    Megatron(),
    LLMC(),
    Datatrove(),
    OLMo(),
    Own(),
    Manifested(),
    LitData(),
    MDS(),
    Arrow(),
    ArrowSplits(),
    Raw(),
]
"""The formats; the first that recognises a file gets it, and the last recognises every file but an index."""

_WORD = re.compile(r"(?:^|[^a-z])(train|training|val|valid|validation|test|dev|eval)(?![a-z])")


def find(path: Path | Iterable[Path], *, split: str = "train", dtype: npt.DTypeLike | None = None) -> Tokens:
    """What ``path`` holds and where its tokens are.

    ``split`` does not matter for a file or a list of files; ``dtype`` is for tokens without a header and an
    index.

    >>> (tmp / "shakespeare").mkdir()
    >>> np.arange(1000, dtype="<u2").tofile(tmp / "shakespeare/train.bin")
    >>> np.arange(10, dtype="<u2").tofile(tmp / "shakespeare/val.bin")
    >>> tokens = find(tmp / "shakespeare", split="val")
    >>> tokens.format, str(tokens.dtype), tokens.count
    ('nanogpt', 'uint16', 10)
    """
    if not isinstance(split, str) or not split:
        raise ArgumentError(f"split must be a name such as 'train' or 'val', got {split!r}")
    if not isinstance(path, (str, os.PathLike)):
        names = _listed(path)
        if store.is_folder(names[0]):
            return join([find(name, split=split, dtype=dtype) for name in names])
        tokens = _find(names, split, dtype)
    else:
        name = absolute(path)
        if store.is_folder(name):
            tokens = _folder(name, split, dtype)
        elif store.is_pattern(os.fspath(path)) and not store.exists(name):
            names = in_order(store.glob(name)) or _folders(name)
            if names and store.is_folder(names[0]):
                return join([find(folder, split=split, dtype=dtype) for folder in names])
            tokens = _find(_matches(names, name, split), split, dtype)
        else:
            tokens = _find([name], split, dtype)
    if not tokens.count:
        raise FormatError(
            f"{tokens.segments[0].path if tokens.segments else path}: the {tokens.format} corpus holds no "
            "tokens (found 0, expected 1 or more); write it to the end"
        )
    return tokens


def _listed(paths: Iterable[Path]) -> list[str]:
    try:
        names = [absolute(path) for path in paths]
    except TypeError:
        raise ArgumentError(f"path must be a path, a glob or a list of paths, got {paths!r}") from None
    if not names:
        raise ArgumentError("the list of files is empty; pass one file at least")
    if len(set(names)) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise ArgumentError(f"{twice}: is in the list more than once; pass each file once")
    return names


def _folders(pattern: str) -> list[str]:
    """The folders that match a pattern, and have files."""
    files = store.glob(os.path.join(pattern, "*"))
    return in_order(list({os.path.dirname(file) for file in files}))


def _matches(names: list[str], pattern: str, split: str) -> list[str]:
    if not names:
        raise missing(pattern, "no file matches this pattern; check it and the working directory")
    return _of_split(names, split, pattern, named=True)


def _folder(folder: str, split: str, dtype: npt.DTypeLike | None, named: bool = False) -> Tokens:
    """The corpus in a folder; ``named`` if the folder itself is called for the split."""
    for index in _indexes():
        if store.has_file(path := os.path.join(folder, index)):
            return _find([path], split, dtype)
    if not store.is_address(folder) and store.exists(os.path.join(folder, UNFINISHED)):
        raise FormatError(
            f"{folder}: lowtide prepare has not finished here; run the same command again to resume"
        )
    files, folders = (
        [name for name in names if not name.startswith(".")] for names in store.list_folder(folder)
    )
    groups = _groups(files)
    if len(groups) > 1:
        several = "; ".join(f"{len(names)} {suffix} ({_some(names)})" for suffix, names in groups.items())
        raise ArgumentError(
            f"{folder}: holds files of several kinds ({several}, expected one kind); pass the files, as in "
            f"lowtide.corpus({os.path.join(folder, '*' + next(iter(groups)))!r})"
        )
    if not groups:
        if split in folders and not named:
            return _folder(os.path.join(folder, split), split, dtype, named=True)
        step = "pass the files, and their dtype if they are raw"
        if any(name.endswith(foreign.PREPARED) for name in files):
            step = f"tokenize text with `lowtide prepare {folder} -o OUT`, or {step}"
        raise FormatError(
            f"{folder}: holds no token corpus (found {_some(in_order(files + folders)) or 'nothing'}, "
            f"expected {', '.join(_indexes())}, or files that end in {', '.join(_suffixes())}); {step}"
        )
    [(suffix, names)] = groups.items()
    names = _of_split(names, split, folder, named)
    if len(names) > 1 and any(format.pair and suffix == format.pair[1] for format in FORMATS):
        raise ArgumentError(
            f"{folder}: holds {len(names)} data sets with {suffix} ({_some(names)}, expected 1); pass one, "
            f"as in lowtide.corpus({os.path.join(folder, names[0])!r}), or a list to have them one after "
            "another"
        )
    prefix = os.path.join(folder, "")
    return _find([prefix + name for name in names], split, dtype, folder)


def _indexes() -> list[str]:
    return list(dict.fromkeys(format.index for format in FORMATS if format.index))


def _suffixes() -> tuple[str, ...]:
    return tuple(dict.fromkeys(suffix for format in FORMATS for suffix in format.suffixes))


def _groups(files: list[str]) -> dict[str, list[str]]:
    """The files of tokens among ``files`` by suffix; of a pair, the first file counts under the second's."""
    present = set(files)
    suffixes = _suffixes()
    partner = dict(format.pair for format in FORMATS if format.pair)
    data = {second: first for first, second in partner.items()}
    groups: dict[str, list[str]] = {}
    for name in in_order(files):
        stem, dot, end = name.rpartition(".")  # names that start with a dot are not here
        suffix = dot + end
        if suffix not in suffixes or (suffix in data and stem + data[suffix] in present):
            continue
        paired = suffix in partner and stem + partner[suffix] in present
        groups.setdefault(partner[suffix] if paired else suffix, []).append(name)
    return groups


def _of_split(names: list[str], split: str, where: str, named: bool = False) -> list[str]:
    """The files whose names say that they belong to ``split``.

    If no name contains a split, all files are the train split; if the caller ``named`` files of one split,
    they are that split.
    """
    word = canonical(split)
    groups: dict[str | None, list[str]] = {}
    for name in names:
        match = _WORD.search(name.rpartition(os.sep)[2].lower())
        groups.setdefault(canonical(match[1]) if match else None, []).append(name)
    if len(groups) == 1 and (named or (None in groups and word == "train")):
        return names
    if word not in groups:
        there = "; ".join(f"{key or 'no split'}: {_some(group)}" for key, group in groups.items())
        raise missing(
            where,
            f"no file here is named for the split {split!r} ({there}); pass another split, or the files",
        )
    if None in groups:
        raise ArgumentError(
            f"{where}: some files are named for a split ({_some(groups[word])}) and others for none "
            f"({_some(groups[None])}); pass the files that belong together, as a list or a glob"
        )
    return groups[word]


def _some(names: list[str]) -> str:
    return listed(list(map(os.path.basename, names)))


def _find(paths: list[str], split: str, dtype: npt.DTypeLike | None, folder: str | None = None) -> Tokens:
    """The tokens of files in their order, all of one format."""
    suffixes, indexes = _suffixes(), tuple(_indexes())
    files = store.peek_all([path if path.endswith(suffixes) else _of_prefix(path) for path in paths])
    for file in files:
        if file.path.endswith(indexes) and os.path.basename(file.path) in indexes:
            if len(files) > 1:
                folder = os.path.dirname(file.path)
                raise ArgumentError(
                    f"{file.path}: is an index, not a file of tokens; pass its folder: {folder!r}"
                )
            files = [IndexFile.read(file)]
    selection = Selection(files, split, dtype, folder)
    format = _format(files[0], selection.beside)
    for file in files[1:]:
        if (other := _format(file, selection.beside)) is not format:
            raise ArgumentError(
                f"{file.path}: looks like {other.name}, and {files[0].path} like {format.name}: files of one "
                "corpus are of one kind; pass those that belong together"
            )
    if format.plain and (dtype is None or not files[0].path.endswith(suffixes)):
        _refuse_foreign(files[0])
    return format.find(selection)


def _of_prefix(path: str) -> str:
    """The index of a data set that was given by what its two files have in common."""
    if not store.exists(path):
        for format in FORMATS:
            if format.pair and store.exists(path + format.pair[1]):
                return path + format.pair[1]
    return path


def _format(file: Peek, beside: Neighbours) -> TokenFormat:
    for format in FORMATS:
        if format.recognises(file, beside):
            return format
    assert isinstance(file, IndexFile)  # the last format recognises everything else
    known = " or ".join(format.signature for format in FORMATS if file.path.endswith(format.index or "\0"))
    raise FormatError(
        f"{file.path}: not the index of a known format ({brief(list(file.content))}, expected {known}); pass "
        "the files that are meant"
    )


def _refuse_foreign(file: Peek) -> None:
    """Raise for a file that holds no tokens.

    Not called for a file with a dtype and the name of a file of tokens: these may be any bytes, so that
    ``train.bin`` may start like a zip.
    """
    if not file.size:
        return
    with store.opened(file.path) as content:
        kind = foreign.identify(content)
    if kind is not None:
        raise FormatError(kind.message(file.path, tokens=True))
    for format in arrays.FORMATS:
        if file.head.startswith(format.magics):
            raise FormatError(
                f"{file.path}: is {format.title} file, and a corpus is made of other files; save its tokens "
                f"with np.save, or open its arrays with lowtide.open({file.path!r})"
            )
