"""nanoGPT: ``train.bin`` and ``val.bin``, raw uint16, and a ``meta.pkl`` that is never simply unpickled."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide._io.store import Neighbours, Peek, opened
from lowtide._printable import brief
from lowtide._tokens.formats.index import token_dtype, whole
from lowtide._tokens.formats.tokens import IndexFile, Segment, Selection, TokenFormat, Tokens
from lowtide.errors import ArgumentError, FormatError, UnsupportedError

NAMES = ("train.bin", "val.bin")
MAX_META = 4 * 2**20
"""Bytes of the largest ``meta.pkl`` that is read: a vocabulary of some 150,000 entries."""
MAX_DICTS = 50
"""The largest number of dicts in it; nanoGPT's has three."""
_LOOKED_AT = 2**16  # bytes whose dtype is looked at

# What str, int and dict need, as pickle protocols 2 to 5 write them. Of these none calls, imports or copies.
_PLAIN = {
    *("PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "SETITEM", "SETITEMS", "BININT", "BININT1", "BININT2"),
    *("LONG1", "SHORT_BINUNICODE", "BINUNICODE", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
}


class Raw(TokenFormat):
    """Files without a header: nanoGPT's by their names, any others by the caller's dtype.

    >>> from lowtide._io.store import peek
    >>> np.arange(6, dtype="<u4").tofile(tmp / "ids.bin")
    >>> Raw().find(Selection([peek(str(tmp / "ids.bin"))], dtype="uint32")).segments[0].count
    6
    """

    name = "raw"
    suffixes = (".bin",)
    plain = True

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return not isinstance(file, IndexFile)

    def find(self, selection: Selection) -> Tokens:
        files, beside = selection.files, selection.beside
        other = next((file for file in files if not _is_nanogpt(file.path, beside)), None)
        if selection.dtype is None and other is not None:
            folder = os.path.dirname(other.path)
            if beside.has(os.path.join(folder, "corpus.json")):
                raise ArgumentError(
                    f"{other.path}: is a file of the corpus {folder}; pass that folder, or a dtype to read "
                    "the file alone"
                )
            raise ArgumentError(
                f"{other.path}: raw tokens need a dtype (starts with {other.head[:8]!r}, not a header that "
                f"lowtide knows); pass it, as in lowtide.corpus({other.path!r}, dtype='uint16') if it is as "
                "nanoGPT's, 'uint32' for vocabularies beyond 65,536"
            )
        if selection.dtype is None:
            _refuse_wide(files[0])
        dtype = token_dtype("<u2" if selection.dtype is None else selection.dtype, selection.path)
        segments = tuple(Segment.raw(file, dtype.itemsize, beside) for file in files)
        tokens = Tokens("nanogpt" if other is None else "raw", dtype, segments)
        meta = os.path.join(selection.folder or "", "meta.pkl")
        return with_meta(tokens, meta) if other is None and selection.folder and beside.has(meta) else tokens


def _refuse_wide(file: Peek) -> None:
    """Raise for tokens of four or eight bytes, whose upper halves would be read as tokens of a low id."""
    with opened(file.path) as store:
        pairs = np.frombuffer(store.read_some(0, min(store.size, _LOOKED_AT) // 4 * 4), "<u2").reshape(-1, 2)
    lower, upper = (set(column) for column in pairs.T.tolist())
    if len(pairs) < 16 or max(upper) >= 16 or len(lower) <= 4 * len(upper):
        return
    raise ArgumentError(
        f"{file.path}: looks like tokens of uint32 (of the first {2 * len(pairs)} uint16 every second one is "
        f"below {max(upper) + 1}, expected any id); pass dtype='uint32', or dtype='uint16' if it is right"
    )


def _is_nanogpt(path: str, beside: Neighbours) -> bool:
    folder, name = os.path.split(path)
    if name in NAMES:
        return True
    return name.endswith(".bin") and any(beside.has(os.path.join(folder, other)) for other in NAMES)


def with_meta(tokens: Tokens, path: str) -> Tokens:
    """``tokens`` with the content of ``meta.pkl``: vocab_size, stoi, itos.

    >>> import pickle
    >>> _ = (tmp / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "stoi": {"a": 0}}))
    >>> with_meta(Tokens("nanogpt", np.dtype("u2"), ()), str(tmp / "meta.pkl")).vocab_size
    65
    """
    meta = read_meta(path)
    vocab_size = None
    if "vocab_size" in meta:
        most = int(np.iinfo(tokens.dtype).max) + 1
        vocab_size = whole(meta["vocab_size"], f"{path}: vocab_size", least=1, most=most)
    return replace(tokens, vocab_size=vocab_size, metadata=meta)


def read_meta(path: str) -> dict[str, object]:
    """The dict in a ``meta.pkl``, if it consists of str, int and dict only.

    A pickle is a program. Every step of it is checked before any is run: those that import, call or build
    anything else are refused, and so are those that reserve memory for more than the file has bytes.
    """
    import pickletools  # few corpora need it

    tokens = os.path.join(os.path.dirname(path), NAMES[0])
    remedy = f"if you do not need it, move it away or pass the file of tokens: {tokens!r}"
    with opened(path) as store:
        if store.size > MAX_META:
            raise FormatError(
                f"{path}: too large ({store.size} bytes, expected at most {MAX_META}); {remedy}"
            )
        data = store.read(0, store.size, "pickle")
    try:
        argument: Any
        dicts = 0
        for step, argument, at in pickletools.genops(data):
            if step.name not in _PLAIN or (step.name == "LONG1" and not -(2**63) <= argument < 2**64):
                raise UnsupportedError(
                    f"{path}: the pickle asks for {step.name} ({brief(argument, 80)}) at byte {at}, and only "
                    "str, int and dict are admitted: a pickle from a stranger may run any code or take all "
                    f"memory; {remedy}"
                )
            dicts += step.name == "EMPTY_DICT"
            if dicts > MAX_DICTS:
                raise FormatError(f"{path}: holds more than {MAX_DICTS} dicts; {remedy}")
            # The memo is an array, and a number of 2**32 would make one of that length.
            if step.name.endswith("BINPUT") and argument > len(data):
                raise FormatError(f"{path}: the pickle's memo asks for place {argument}; {remedy}")
        meta = _unpickled(data)
        _check_tree(meta)
    except (FormatError, UnsupportedError):
        raise
    except Exception as error:  # the unpickler may raise anything
        raise FormatError(
            f"{path}: is not a valid pickle ({type(error).__name__}: {brief(str(error))}): damaged; {remedy}"
        ) from None
    if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
        raise FormatError(f"{path}: must hold a dict with names for keys, found {brief(meta)}; {remedy}")
    return meta


def _check_tree(meta: object) -> None:
    """Refuse a dict that is in two places or in itself, which could take forever to show, and surrogates."""
    seen: set[int] = set()
    waiting = [meta]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            value.encode("utf8")
        elif isinstance(value, dict):
            if id(value) in seen:
                raise ValueError("the same dict is in it twice")
            seen.add(id(value))
            waiting += [*value.keys(), *value.values()]


def _unpickled(data: bytes) -> object:
    import io
    import pickle

    class Plain(pickle.Unpickler):
        """Refuses every global, should one get past the check of the steps."""

        def find_class(self, module: str, name: str) -> object:
            raise UnsupportedError(f"the pickle asks for {module}.{name}, and nothing is imported for it")

    return Plain(io.BytesIO(data)).load()
