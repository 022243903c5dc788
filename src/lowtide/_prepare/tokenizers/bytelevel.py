"""``byte``: every byte of the UTF-8 is a token. It needs no vocabulary and no library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lowtide._prepare.tokenizers.shared import FORMAT, VERSION, decodable, unencodable

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._prepare.tokenizers import Ids


class ByteTokenizer:
    """Ids 0 to 255 are the bytes, 256 ends a document.

    >>> ByteTokenizer().encode_batch(["low"])[0].tolist()
    [108, 111, 119]
    >>> ByteTokenizer().decode([108, 111, 119, 256])
    'low'
    """

    name = "byte"
    vocab_size = 257
    eos = 256

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        try:
            return [np.frombuffer(text.encode(), np.uint8) for text in texts]
        except UnicodeEncodeError as error:
            raise unencodable(error) from None

    def decode(self, ids: npt.ArrayLike) -> str:
        return bytes(decodable(ids, self)).decode("utf-8", "replace")

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, "kind": "byte"}) + "\n"
