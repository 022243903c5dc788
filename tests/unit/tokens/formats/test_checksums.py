"""lowtide._tokens.formats.checksums: a corpus is as it was written, or the error lists the files."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide._tokens.formats.checksums import verify
from lowtide.errors import FormatError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "sea.txt").write_text("low tide\n" * 100)
    lowtide.prepare(tmp_path / "sea.txt", tmp_path / "corpus", val_fraction=0, workers=1)
    return tmp_path / "corpus"


def test_folder_and_index_are_verified_alike(corpus: Path) -> None:
    verified = verify(corpus)
    assert verified == verify(corpus / "corpus.json")
    others = [path.stat().st_size for path in corpus.glob("[!.]*") if path.name != "corpus.json"]
    assert (verified.files, verified.nbytes) == (len(others), sum(others))


def test_changed_file_is_listed(corpus: Path) -> None:
    shard = next(corpus.glob("train*.bin"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        FormatError, match=rf"1 of 3 files are not as they were written: {shard.name} \(sha256"
    ):
        verify(corpus)
