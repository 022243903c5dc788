"""LitData: ``index.json`` and chunks of samples, uncompressed, one array of token ids per sample.

With ``TokensLoader`` the samples of a chunk are nothing but tokens, one after another, and ``dim`` counts
them. Otherwise a sample is u32 size and then its tokens.
"""

from __future__ import annotations

import re

import numpy as np

from lowtide._arrays.formats.layout import size_error
from lowtide._io.jsonfiles import invalid
from lowtide._io.store import Store, opened
from lowtide._printable import brief
from lowtide._tokens.formats.documents import Column, integers
from lowtide._tokens.formats.index import Inside, agree, whole
from lowtide._tokens.formats.records import Gatherer, SampleFile
from lowtide._tokens.formats.tokens import Selection, TokenFormat, Tokens
from lowtide.errors import FormatError, UnsupportedError

_TENSORS = ("u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8")  # from 11 on
_ARRAYS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
DTYPES = {
    **{f"no_header_tensor:{code}": f"<{kind}" for code, kind in enumerate(_TENSORS, 11)},
    "no_header_tensor:20": "<u2",
    **{f"no_header_numpy:{code}": f"<{kind}" for code, kind in enumerate(_ARRAYS)},
}
"""LitData numbers torch's dtypes with their aliases, and NumPy's; these are the integers among them."""

_FORMAT = re.compile(r"no_header_(tensor|numpy):\d+")
_OFFSET: np.dtype[np.generic] = np.dtype("<u4")


class LitData(TokenFormat):
    """The chunks that ``index.json`` lists, in its order."""

    name = "litdata"
    index = "index.json"
    signature = "'chunks' of LitData"
    key = "chunks"

    def find(self, selection: Selection) -> Tokens:
        index = selection.index
        path, config, chunks = index.path, index.content.get("config"), index.content.get("chunks")
        if not isinstance(config, dict) or not isinstance(chunks, list) or not chunks:
            expected = "'config', an object, and 'chunks', a list that is not empty"
            raise invalid(f"{path}: the index of LitData", [config, chunks], expected)
        for key in ("compression", "encryption"):
            if config.get(key) is not None:
                raise UnsupportedError(
                    f"{path}: chunks cannot be read in place with {key} (config.{key} is "
                    f"{brief(config[key])}, expected null); optimize the data again with {key}=None"
                )
        dtype = agree(np.dtype(_dtype(path, config.get("data_format"))), selection.dtype, path)
        if not all(isinstance(chunk, dict) for chunk in chunks):
            raise invalid(f"{path}: chunks", chunks, "objects")
        sizes = [
            whole(chunk.get("chunk_size"), f"{path}: chunks[{i}].chunk_size", least=1, most=2**32 - 2)
            for i, chunk in enumerate(chunks)
        ]
        gatherer = Gatherer(sum(sizes), dtype.itemsize)
        inside = Inside(path)
        for i, (chunk, count) in enumerate(zip(chunks, sizes, strict=True)):
            name, (_, _, size, *_) = inside.stat(chunk.get("filename"), f"chunks[{i}].filename")
            promised = whole(chunk.get("chunk_bytes"), f"{path}: chunks[{i}].chunk_bytes")
            if size != promised:
                raise size_error(name, size, promised, f"chunks[{i}].chunk_bytes of {path}")
            with opened(name) as store:
                file = SampleFile.of(store, count)
                if chunk.get("dim") is None:
                    gatherer.add(store, file, _size)
                else:
                    _flat(gatherer, file, dtype.itemsize, whole(chunk["dim"], f"{path}: chunks[{i}].dim"))
        metadata = {"item_loader": config.get("item_loader")}
        return Tokens(self.name, dtype, tuple(gatherer.segments), gatherer.documents(), metadata=metadata)


def _dtype(path: str, data_format: object) -> str:
    if isinstance(data_format, list) and len(data_format) == 1 and isinstance(data_format[0], str):
        if data_format[0] in DTYPES:
            return DTYPES[data_format[0]]
        if _FORMAT.fullmatch(data_format[0]):
            raise invalid(f"{path}: config.data_format", data_format, "integers, as tokens are")
    raise UnsupportedError(
        f"{path}: samples must be single arrays of token ids with one axis (config.data_format "
        f"['no_header_tensor:16'] or the like), found {brief(data_format)}; optimize the data again with a "
        "function that yields such an array"
    )


def _flat(gatherer: Gatherer, file: SampleFile, itemsize: int, dim: int) -> None:
    if dim * itemsize != file.size - file.first:
        raise FormatError(
            f"{file.path}: dim is {dim} tokens of {itemsize} bytes, and the chunk has "
            f"{file.size - file.first} bytes of them: damaged, or of another index; write it again"
        )
    # The offsets after the first are the ends of the samples, in bytes.
    layout = integers(file.path, file.identity, file.count, 8, _OFFSET)
    gatherer.joined(file, Column(layout, "sample offsets", file.first, itemsize))


def _size(store: Store, start: int, stop: int) -> tuple[int, int]:
    """Each sample has its own size before it: LitData's default loader can hold several arrays per sample."""
    size = int.from_bytes(store.read(start, 4, "size of a sample"), "little")
    if start + 4 + size != stop:
        raise FormatError(
            f"{store.path}: a sample from byte {start} to {stop} says that it has {size} bytes after its "
            "first 4: damaged, or not of single arrays; write it again"
        )
    return start + 4, size
