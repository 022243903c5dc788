"""``char``: every character is a token, as in nanoGPT's shakespeare_char."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.jsonfiles import invalid
from lowtide._prepare.tokenizers.kind import Ids, Texts, Tokenizer, decodable, unencodable
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError


class CharTokenizer(Tokenizer):
    """Ids are positions in the sorted alphabet; none of them marks the end of a document.

    >>> tokenizer = CharTokenizer(alphabet(["low tide"]))
    >>> tokenizer.characters
    ' deilotw'
    >>> tokenizer.encode_batch(["tide"])[0].tolist()
    [6, 3, 1, 2]
    """

    kind = name = "char"
    eos = None
    trained = True

    @classmethod
    def create(cls, _name: str, texts: Texts, /) -> CharTokenizer:
        return cls("".join(texts.map(alphabet)))

    @classmethod
    def load(cls, content: Mapping[str, Any], path: str, _name: str, _eos: int | None, /) -> CharTokenizer:
        characters = content.get("characters")
        if not isinstance(characters, str) or not characters or list(characters) != sorted(set(characters)):
            expected = "a string, sorted and without duplicates"
            raise invalid(f"{path}: characters", characters, expected, "restore the file")
        return cls(characters)

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ArgumentError(
                "the tokenizer 'char' needs at least one character, got none; pass other sources"
            )
        self.vocab_size = len(self.characters)
        points = np.array([ord(character) for character in self.characters])
        # One more id stands for characters that are not in the alphabet.
        unknown = self.vocab_size
        self._ids = np.full(int(points[-1]) + 2, unknown, np.uint16 if unknown < 2**16 else np.uint32)
        self._ids[points] = np.arange(self.vocab_size)
        self._ascii: bytes | None = None
        if unknown < 256:  # bytes.translate is several times as fast as an index
            table = np.full(256, unknown, np.uint8)
            table[points[points < 128]] = np.flatnonzero(points < 128)
            self._ascii = table.tobytes()

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        try:
            return [self._encode(text) for text in texts]
        except UnicodeEncodeError as error:
            raise unencodable(error) from None

    def _encode(self, text: str) -> Ids:
        ids: Ids
        if self._ascii is not None and text.isascii():
            ids = np.frombuffer(text.encode("ascii").translate(self._ascii), np.uint8)
        else:
            points = np.frombuffer(text.encode("utf-32-le"), "<u4")
            ids = np.take(self._ids, points, mode="clip")  # the last entry is an unknown one
        if len(ids) and int(ids.max()) >= self.vocab_size:
            unknown = sorted(set(text) - set(self.characters))
            raise FormatError(
                f"the alphabet of the tokenizer has {self.vocab_size} characters, but not "
                f"{brief(''.join(unknown))}; prepare all sources in one run, or use the tokenizer 'byte'"
            )
        return ids

    def decode(self, ids: npt.ArrayLike) -> str:
        return "".join(self.characters[id] for id in decodable(ids, self))

    def to_json(self) -> str:
        return self.own_file(characters=self.characters)


def meta_pkl(tokenizer: Tokenizer) -> bytes:
    """nanoGPT's ``meta.pkl``, for its sample.py."""
    characters = [tokenizer.decode([id]) for id in range(tokenizer.vocab_size)]
    content = {
        "vocab_size": tokenizer.vocab_size,
        "itos": dict(enumerate(characters)),
        "stoi": {character: id for id, character in enumerate(characters)},
    }
    return pickle.dumps(content)


def alphabet(texts: Iterable[str]) -> str:
    """The characters of texts, sorted and each once.

    >>> alphabet(["low", "tide", "ω"])
    'deilotwω'
    """
    known = b""
    seen = np.zeros(0x110000, np.bool_)
    for text in texts:
        if text.isascii():
            # Most texts have no new character, and removing the known ones is the fastest way to see that.
            if new := text.encode("ascii").translate(None, known):
                known += bytes(set(new))
        else:
            seen[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
    seen[np.frombuffer(known, np.uint8)] = True
    return "".join(map(chr, np.flatnonzero(seen).tolist()))
