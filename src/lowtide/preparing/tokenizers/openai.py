"""Encodings of tiktoken, by name."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.errors import ArgumentError, FormatError, MissingExtraError, NotFoundError
from lowtide.formats.layout import brief
from lowtide.preparing.tokenizers.shared import ENDS, FORMAT, VERSION, decodable

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide.preparing.tokenizers import Ids

try:
    import tiktoken
except ImportError as missing:
    raise MissingExtraError(
        f"this tokenizer needs tiktoken, which cannot be imported ({missing}): pip install 'lowtide[prepare]'"
    ) from missing


class TiktokenTokenizer:
    """An encoding, kept with its vocabulary so that it is loaded again without a network.

    A text that holds the name of a special token is encoded as the text that it is.
    """

    def __init__(
        self,
        name: str,
        pattern: str,
        ranks: dict[bytes, int],
        special: dict[str, int],
        eos: str | None = None,
    ) -> None:
        self.name = name
        self._content = (pattern, ranks, special)
        self._encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )
        self.vocab_size = max([*ranks.values(), *special.values()], default=-1) + 1
        if eos is not None and eos not in special:
            raise ArgumentError(
                f"{name}: has no special token {eos!r}, found {brief(sorted(special))}; leave out eos"
            )
        self._end = eos or next((end for end in ENDS if end in special), None)
        self.eos = None if self._end is None else special[self._end]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        encode = self._encoding.encode_to_numpy  # no Python number for each token
        return [np.asarray(encode(text, disallowed_special=()), np.uint32) for text in texts]

    def decode(self, ids: npt.ArrayLike) -> str:
        text: str = self._encoding.decode(decodable(ids, self), errors="replace")
        return text

    def to_json(self) -> str:
        pattern, ranks, special = self._content
        content = {
            "format": FORMAT,
            "version": VERSION,
            "kind": "tiktoken",
            "name": self.name,
            "eos": self._end,
            "pattern": pattern,
            "special": special,
            "ranks": {base64.b64encode(token).decode(): rank for token, rank in ranks.items()},
        }
        return json.dumps(content) + "\n"


def from_content(content: Mapping[str, Any], where: str) -> TiktokenTokenizer:
    """The tokenizer of a file that ``to_json`` gave."""
    try:
        ranks = {
            base64.b64decode(token, validate=True): int(rank) for token, rank in content["ranks"].items()
        }
        special = {str(name): int(rank) for name, rank in content["special"].items()}
        return TiktokenTokenizer(content["name"], content["pattern"], ranks, special, content["eos"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{where}: is no tokenizer of tiktoken ({error!r}); prepare the corpus again"
        ) from error


def by_name(name: str, eos: str | None = None) -> TiktokenTokenizer:
    """The encoding called ``name``, from tiktoken's cache or from the network."""
    import requests  # tiktoken's own way to the network

    try:
        encoding: Any = tiktoken.get_encoding(name)
    except requests.RequestException as error:
        raise _unreachable(name, error) from error
    return TiktokenTokenizer(
        name, encoding._pat_str, encoding._mergeable_ranks, encoding._special_tokens, eos
    )


def names() -> list[str]:
    """The encodings that tiktoken knows."""
    return sorted(tiktoken.list_encoding_names())


def _unreachable(name: str, error: Any) -> NotFoundError:
    request = getattr(error, "request", None)
    address = getattr(request, "url", None)
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = folder or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    if address is None:
        return NotFoundError(f"the encoding {name!r} could not be downloaded ({error}); check the network")
    file = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    return NotFoundError(
        f"the encoding {name!r} is not in tiktoken's cache and could not be downloaded "
        f"({type(error).__name__}). Without a network: get {address} elsewhere, put it here as "
        f"{os.path.join(folder, file)} (TIKTOKEN_CACHE_DIR names the folder, tiktoken the file), and "
        "run again; gpt2 has two such files"
    )
