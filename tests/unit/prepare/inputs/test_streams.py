"""Blocks of plain and compressed files."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from lowtide._prepare.inputs import find, streams
from lowtide._prepare.inputs.kind import ReadOptions
from lowtide.errors import FormatError, NotFoundError, TruncatedFileError
from tests.support.formats import refused
from tests.support.pieces import pieces_of

DATA = random.Random(0).randbytes(300_000) + b"tide" * 700_000


def streamed(data: bytes) -> bytes:
    """As the zstd command writes it: with a checksum, and with no size in front."""
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": streamed}
both = pytest.mark.parametrize("compression", COMPRESSORS)


@both
def test_blocks_are_bounded_and_join_to_data(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "x"
    for data in (DATA, b""):
        path.write_bytes(COMPRESSORS[compression](data))
        blocks = list(streams.blocks(str(path), compression))
        assert b"".join(blocks) == data
        assert all(0 < len(block) <= streams.BLOCK for block in blocks)


@both
def test_concatenated_streams_are_read(tmp_path: Path, compression: str) -> None:
    compress = COMPRESSORS[compression]
    (tmp_path / "x").write_bytes(b"".join(compress(part) for part in (b"low ", b"", b"tide")))
    assert b"".join(streams.blocks(str(tmp_path / "x"), compression)) == b"low tide"


def test_every_kind_of_zstd_frame_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.zst"
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0...."
    for length in (0, 10, 300, 70_000, 300_000):
        for data in (DATA[:length], b"a" * length):
            for size in (True, False):
                for checksum in (True, False):
                    compressor = zstandard.ZstdCompressor(write_content_size=size, write_checksum=checksum)
                    path.write_bytes(skipped + compressor.compress(data) + skipped)
                    assert b"".join(streams.blocks(str(path), "zst")) == data
                    path.write_bytes(path.read_bytes()[:-1])
                    with refused(TruncatedFileError, path):
                        list(streams.blocks(str(path), "zst"))
    path.write_bytes(skipped + zstandard.compress(b"low tide"))
    assert find([str(path)])[0].label == "text.zst"


@both
def test_stream_truncated_anywhere_raises(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "x"
    whole = COMPRESSORS[compression](b"low tide " * 50)
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with refused(FormatError, path):
            list(streams.blocks(str(path), compression))
    path.write_bytes(whole[:-1])
    with refused(TruncatedFileError, path, f"ends at byte {len(whole) - 1}", "truncated"):
        list(streams.blocks(str(path), compression))


@both
def test_damaged_file_raises(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "x"
    whole = bytearray(COMPRESSORS[compression](DATA[:10_000]))
    whole[5000] ^= 0xFF
    path.write_bytes(whole)
    with refused(FormatError, path, "is not valid"):
        list(streams.blocks(str(path), compression))


def test_missing_file_raises(tmp_path: Path) -> None:
    for compression in (None, "gz", "zst"):
        with refused(NotFoundError, tmp_path / "x"):
            list(streams.blocks(str(tmp_path / "x"), compression))


@both
@pytest.mark.parametrize("name", ["x.jsonl", "x.txt", "x"])
def test_compressed_documents_are_read(tmp_path: Path, compression: str, name: str) -> None:
    path = tmp_path / f"{name}.{compression}"
    options = ReadOptions(split_on="\n", unit_size=5, piece_size=16)
    path.write_bytes(COMPRESSORS[compression](b'{"text": "low"}\n{"text": "tide"}\n'))
    expected = ['{"text": "low"}', '{"text": "tide"}'] if name == "x.txt" else ["low", "tide"]
    for block in (1000, 3) if name != "x" else (1000,):  # by its first line, which must lie in a block
        assert [piece.text for piece in pieces_of(path, options, block)] == expected


@both
def test_invalid_compressed_line_raises_with_its_number(tmp_path: Path, compression: str) -> None:
    path = tmp_path / f"x.jsonl.{compression}"
    path.write_bytes(COMPRESSORS[compression](b'{"text": "low"}\n{"te'))
    with refused(FormatError, path, "line 2, byte 16"):
        pieces_of(path, ReadOptions())
