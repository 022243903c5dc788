"""Files that are neither arrays nor tokens: what each is, and how to convert it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from lowtide._io.store import Store

LOOKED_AT = 512
"""First bytes that tell every kind: a tar file has its mark at byte 257."""

_PREPARE = "tokenize its text with `lowtide prepare {path} -o OUT`"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file, and the next step to get its numbers and its tokens."""

    name: str
    numbers: str
    tokens: str = _PREPARE

    def message(self, path: str, tokens: bool) -> str:
        step = (self.tokens if tokens else self.numbers).format(path=path)
        return f"{path}: is {self.name}, which cannot be read in place; {step} (if it is raw, pass its dtype)"


_IMAGE = (
    "decode it once, as with np.asarray(PIL.Image.open({path!r})), and write the pixels with lowtide.create",
    "extract its text and run `lowtide prepare` on that",
)
_TABLE = (
    "save its columns once, as with np.save('x.npy', table['column'].to_numpy())",
    "run `lowtide prepare {path} -o OUT` on its column of text, or of token ids (input_ids)",
)
_COMPRESSED = (
    "decompress it first",
    "decompress it first, or run `lowtide prepare {path} -o OUT` if it is compressed text",
)
_TORCH = Kind(
    "a file of torch.save",
    "load it with torch.load({path!r}, weights_only=True) and save it with safetensors.torch.save_file",
    "load it with torch.load({path!r}, weights_only=True) and save ids.numpy() with np.save",
)
_PICKLE = Kind(
    "a pickle, and a pickle from a stranger may run any code",
    "if you trust it, load it once and save its arrays with np.save",
    "if you trust it, load it once and save its ids with np.save",
)
_ARROW = Kind("an Arrow file", *_TABLE)
_KINDS = {
    b"PAR1": Kind("a Parquet file", *_TABLE),
    b"ARROW1": _ARROW,
    b"FEA1": Kind("a Feather file", *_TABLE),
    b"\x89PNG\r\n\x1a\n": Kind("a PNG image", *_IMAGE),
    b"\xff\xd8\xff": Kind("a JPEG image", *_IMAGE),
    b"GIF8": Kind("a GIF image", *_IMAGE),
    b"II*\0": Kind("a TIFF image", *_IMAGE),
    b"%PDF-": Kind("a PDF", "extract its numbers and save them with np.save", _IMAGE[1]),
    b"SQLite format 3\0": Kind(
        "an SQLite database",
        "query it once and write the rows with lowtide.create",
        "write its text as JSON lines and run `lowtide prepare` on these",
    ),
    b"MATLAB 5.0 MAT-file": Kind(
        "a MATLAB 5 file",
        "load it with scipy.io.loadmat({path!r}) and save its arrays with np.save",
        "load it with scipy.io.loadmat({path!r}) and save its ids with np.save",
    ),
    b"\x1f\x8b": Kind("compressed (gzip)", *_COMPRESSED),
    b"\x28\xb5\x2f\xfd": Kind("compressed (zstd)", *_COMPRESSED),
    b"\xfd7zXZ": Kind("compressed (xz)", *_COMPRESSED),
    b"BZh": Kind("compressed (bzip2)", *_COMPRESSED),
    # An old torch.save: a pickle of its magic number.
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19": _TORCH,
}
_TAR = Kind(
    "a tar archive (of a WebDataset, maybe)",
    "extract it with `tar -xf {path}` and open the files in it",
    "extract it with `tar -xf {path}` and run `lowtide prepare` on the folder",
)
_TEXTS = {
    ".csv": Kind(
        "text (CSV)",
        "parse it once, as with np.save('x.npy', np.loadtxt({path!r}, delimiter=','))",
        "write its column of text as JSON lines and run `lowtide prepare` on these",
    ),
    ".json": Kind("text (JSON)", "parse it once and save its arrays with np.save"),
    ".jsonl": Kind("text (JSON lines)", "parse it once and save its arrays with np.save"),
}
_TEXT = Kind("text", "parse it once, as with np.save('x.npy', np.loadtxt({path!r}))")
# How protocol 2 and later ones start: then a frame, a container, a string or a global.
_PICKLED = re.compile(rb"\x80[\x02-\x05](\x95.{6}\0\0|[\]})(cX\x8c])", re.DOTALL)
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
PREPARED = (".txt", ".md", ".jsonl", ".json", ".parquet", ".arrow", ".gz", ".zst")
"""Suffixes of what ``lowtide prepare`` reads."""


def identify(store: Store) -> Kind | None:
    """The kind of a file, if it is one of those that people try to open.

    >>> from lowtide._io.store import opened
    >>> _ = (tmp / "a.csv").write_text("x,y\\n1,2\\n")
    >>> with opened(tmp / "a.csv") as store:
    ...     identify(store).name
    'text (CSV)'
    """
    head = store.read(0, min(store.size, LOOKED_AT), "first bytes")
    suffix = os.path.splitext(store.path)[1].lower()
    if head.startswith(b"PK") and b"/data.pkl" in head:
        return _TORCH
    for magic, kind in _KINDS.items():
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return _TAR
    if suffix == ".arrow" and head.startswith(b"\xff\xff\xff\xff"):  # a stream, as Hugging Face writes
        return _ARROW
    if _PICKLED.match(head):
        return _PICKLE
    return _TEXTS.get(suffix, _TEXT) if _is_text(head) else None


def in_zip(names: list[str]) -> Kind:
    """The kind of a zip without NPY members."""
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        return _TORCH
    step = "extract it and open the files in it"
    return Kind(f"a zip of {len(names)} files without an NPY array in it", step, step)


def _is_text(head: bytes) -> bool:
    try:
        # The last character may be incomplete: up to 3 of its bytes are missing.
        text = head.decode("utf8") if len(head) < LOOKED_AT else head.decode("utf8", "ignore")
    except UnicodeDecodeError:
        return False
    lost = len(head) - len(text.encode("utf8"))
    return len(text) > 0 and lost <= 3 and not _CONTROL.search(text)
