"""``byte``: the tokens are the bytes of the UTF-8. It needs no vocabulary and no library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowtide._prepare.tokenizers.kind import Ids, Tokenizer, decodable, unencodable


class ByteTokenizer(Tokenizer):
    """Ids 0 to 255 are the bytes, 256 ends a document.

    >>> ByteTokenizer().encode_batch(["low"])[0].tolist()
    [108, 111, 119]
    >>> ByteTokenizer().decode([108, 111, 119, 256])
    'low'
    """

    kind = name = "byte"
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
        return self.own_file()
