"""A tokenizer and an input kind that are added with one class and one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import lowtide
from lowtide._prepare import inputs, tokenizers
from lowtide._prepare.inputs.kind import File, Head, Kind, ReadOptions, Skip, Unit
from lowtide._prepare.inputs.pieces import Piece, document
from lowtide._prepare.inputs.streams import blocks
from lowtide._prepare.tokenizers import Ids, Tokenizer
from tests.support.preparing import as_bytes, documents


class BitTokenizer(Tokenizer):
    """Eight tokens per byte."""

    kind = name = "bit"
    vocab_size = 3
    eos = 2

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.unpackbits(np.frombuffer(text.encode(), np.uint8)) for text in texts]

    def decode(self, ids: npt.ArrayLike) -> str:
        bits = np.asarray(ids)
        return np.packbits(bits[bits < 2]).tobytes().decode()

    def to_json(self) -> str:
        return self.own_file()


class Subtitles(Kind):
    """Every cue of a subtitle file is a document."""

    name = "srt"

    def recognises(self, head: Head, /) -> bool:
        return head.name.endswith(".srt")

    def ranges(self, file: File, options: ReadOptions, /) -> Iterator[tuple[int, int]]:
        yield 0, file.size

    def read(self, unit: Unit, options: ReadOptions, skip: Skip | None, /) -> Iterator[Piece]:
        cues = b"".join(blocks(unit.path, unit.compression)).decode().strip().split("\n\n")
        for number, cue in enumerate(cues):
            yield from document("\n".join(cue.split("\n")[2:]), number, options.piece_size)


def test_registered_tokenizer_prepares_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "KINDS", [BitTokenizer, *tokenizers.KINDS])
    (tmp_path / "sea.txt").write_text("low tide")
    lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out", tokenizer="bit", val_fraction=0, workers=1)
    ids = lowtide.corpus(tmp_path / "out")[:]
    assert len(ids) == 8 * len("low tide") + 1
    assert ids[-1] == 2
    tokenizer = lowtide.load_tokenizer(tmp_path / "out")
    assert isinstance(tokenizer, BitTokenizer)
    assert tokenizer.decode(ids) == "low tide"


def test_registered_input_is_recognised_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "KINDS", [Subtitles(), *inputs.KINDS])
    cues = "1\n00:00:01,000 --> 00:00:02,000\nlow tide\n\n2\n00:00:03,000 --> 00:00:04,000\nhigh\ntide\n"
    (tmp_path / "sea.srt").write_text(cues)
    (tmp_path / "sea.txt").write_text("text")
    lowtide.prepare(tmp_path, tmp_path / "out", glob="*.*t", val_fraction=0, workers=1)
    expected = [as_bytes("low tide"), as_bytes("high\ntide"), as_bytes("text")]
    assert documents(tmp_path / "out", "train") == expected
